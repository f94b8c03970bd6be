"""RLlib's stock MultiAgentEnvRunner with the package's connectors."""

import pytest
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner

from rllib_llm import LLMPPOConfig, MARFTConfig
from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes
from rllib_llm.errors import ConfigError

TINY = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}


def stock_config(config_class=LLMPPOConfig, env="team-v0", **env_config):
    return (
        config_class()
        .environment(env, env_config=env_config)
        .language_model(tiny=TINY)
        .multi_agent(
            policies=["first", "rest"],
            policy_mapping_fn={"adviser": "first", "*": "rest"},
        )
        .env_runners(env_runner_cls=MultiAgentEnvRunner, num_envs_per_env_runner=3)
        .generation(max_new_tokens=4)
        .rollouts(episodes_per_iteration=4)
    )


@pytest.mark.ray
@pytest.mark.parametrize(
    "env", [{}, {"agents": ["adviser_0", "b_0", "c_0"], "topology": "debate"}]
)
def test_stock_runner_samples_and_trains(ray_session, env):
    algo = stock_config(**env).build_algo()
    episodes = algo.env_runner.sample(num_episodes=4)
    assert len(episodes) >= 4
    for episode in episodes:
        for part in agent_episodes(episode):
            turns = part.get_extra_model_outputs(columns.TURN)
            assert len(turns) == len(part) > 0
            assert all(len(t.action_ids) == len(t.action_logps) > 0 for t in turns)
            assert all(isinstance(a, str) for a in part.get_actions())
            wanted = "first" if part.agent_id == "adviser_0" else "rest"
            assert part.module_id == wanted
    result = algo.train()
    for policy in ("first", "rest"):
        learner = result["learners"][policy]
        assert learner["num_trained_tokens"] > 0
        assert learner["train_inference_mismatch_max"] < 1e-3
    algo.stop()


def test_marft_needs_llm_env_runner():
    with pytest.raises(ConfigError, match="needs LLMEnvRunner"):
        stock_config(MARFTConfig).validate()
