"""Functions of env_config as environments; errors before models are prepared."""

import importlib.util
import logging

import pytest

from rllib_llm import GRPO, GRPOConfig, LLMPPOConfig, SelfPlayConfig
from rllib_llm.envs.guess_number import GuessNumber
from rllib_llm.errors import ConfigError, EnvContractError, MissingExtraError

TINY = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}


def make_easy(env_config):
    """Return a game of two turns."""
    return GuessNumber({"upper": 3, "max_turns": 2, **env_config})


def small(env):
    return (
        GRPOConfig()
        .environment(env, env_config={"invalid_action_reward": -0.1})
        .language_model(tiny=TINY)
        .generation(max_new_tokens=4)
        .env_runners(num_envs_per_env_runner=4)
        .rollouts(episodes_per_iteration=4, group_size=4)
        .evaluation(evaluation_interval=1, evaluation_duration=2)
    )


def test_a_function_is_trained_on_evaluated_and_restored(ray_session, tmp_path):
    limit = 2
    algo = small(
        lambda env_config: GuessNumber({"max_turns": limit, **env_config})
    ).build_algo()
    result = algo.train()
    assert result["env_runners"]["num_episodes"] == 4
    assert result["evaluation"]["env_runners"]["num_episodes"] == 2
    algo.save_to_path(tmp_path)
    algo.stop()
    restored = GRPO.from_checkpoint(str(tmp_path))
    assert restored.config.make_text_env().max_turns == limit
    restored.stop()


def test_a_function_passes_validation_and_tells_its_faults():
    config = small(make_easy)
    config.validate()
    assert config.make_text_env().max_turns == 2
    with pytest.raises(ConfigError, match="no option 'lower'"):
        small(lambda env_config: make_easy({"lower": 1})).validate()
    with pytest.raises(EnvContractError, match="it must return a gymnasium.Env"):
        small(lambda env_config: 3).validate()


def test_unknown_environments_name_the_other_ways():
    with pytest.raises(ConfigError, match=r"class, a function of env_config, or 'pack"):
        small("my_game").validate()


@pytest.mark.parametrize(
    ("package", "extra", "config"),
    [
        (
            "peft",
            "lora",
            lambda: (
                LLMPPOConfig().environment("guess_number-v0").language_model(lora={})
            ),
        ),
        (
            "openskill",
            "games",
            lambda: SelfPlayConfig().environment("secret_sum-v0"),
        ),
    ],
)
def test_missing_extras_are_found_by_validate(monkeypatch, package, extra, config):
    import sys

    found = importlib.util.find_spec

    def without(name, *args):
        return None if name == package else found(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.models", None)
    with pytest.raises(MissingExtraError, match=rf"{package}.*rllib-llm\[{extra}\]"):
        config().validate()


class _HintPPO(GRPO):
    """An algorithm whose name RLlib has not seen yet."""


def test_the_new_api_stack_is_not_left(caplog):
    config = small(make_easy)
    config.algo_class = _HintPPO
    with caplog.at_level(logging.WARNING):
        config.validate()
    assert "api_stack" not in caplog.text
    with pytest.raises(ConfigError, match=r"api_stack\.enable_env_runner.*Leave"):
        GRPOConfig().api_stack(
            enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=False
        )
    config = small(make_easy)
    config.enable_rl_module_and_learner = False
    with pytest.raises(ConfigError, match=r"api_stack\.enable_rl_module_and_learner"):
        config.validate()


def test_learners_must_be_those_of_the_algorithm():
    from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner

    config = small(make_easy).learners(learner_class=PPOTorchLearner)
    with pytest.raises(ConfigError, match="must be a subclass of GRPOTorchLearner"):
        config.validate()


def test_minibatches_may_be_larger_than_rllibs_default_of_time_steps():
    config = small(make_easy).rollouts(episodes_per_iteration=8000)
    config.training(minibatch_size=8000).validate()
