"""RLlib's stock SingleAgentEnvRunner with the package's connectors."""

import pytest
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.data import columns
from rllib_llm.errors import ConfigError


def stock_config():
    return (
        LLMPPOConfig()
        .environment("guess_number-v0", env_config={"upper": 3, "max_turns": 2})
        .env_runners(
            env_runner_cls=SingleAgentEnvRunner,
            num_envs_per_env_runner=4,
            gym_env_vectorize_mode="vector_entry_point",
        )
        .generation(max_new_tokens=4)
        .rollouts(episodes_per_iteration=4)
    )


@pytest.mark.ray
def test_stock_runner_samples_and_trains(ray_session):
    algo = stock_config().build_algo()
    episodes = algo.env_runner.sample(num_episodes=4)
    assert len(episodes) >= 4
    for episode in episodes:
        turns = episode.get_extra_model_outputs(columns.TURN)
        assert len(turns) == len(episode) > 0
        assert all(len(t.action_ids) == len(t.action_logps) > 0 for t in turns)
        assert all(isinstance(a, str) for a in episode.get_actions())
    result = algo.train()
    learner = result["learners"]["default_policy"]
    assert learner["num_trained_tokens"] > 0
    assert learner["train_inference_mismatch_max"] < 1e-3
    algo.stop()


def test_stock_runner_refuses_groups():
    config = GRPOConfig().environment("guess_number-v0")
    config.env_runners(env_runner_cls=SingleAgentEnvRunner)
    with pytest.raises(ConfigError, match="group_size=8 needs LLMEnvRunner"):
        config.validate()


def test_stock_runner_refuses_unused_components():
    for components in ({"rewards": ["format"]}, {"filters": ["valid"]}):
        with pytest.raises(ConfigError, match="samples no tasks. Use LLMEnvRunner"):
            stock_config().rollouts(**components).validate()
