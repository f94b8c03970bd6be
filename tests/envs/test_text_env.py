"""The base class: options, splits, success, and its error messages."""

import math

import pytest

from rllib_llm.data.types import StopReason
from rllib_llm.envs import TextEnv, TurnResult, in_split, register_text_env
from rllib_llm.envs.registry import TEXT_ENVS
from rllib_llm.errors import ConfigError, EnvContractError


class Echo(TextEnv):
    """Repeats the model's text; the word "win" wins."""

    max_turns = 3

    def start(self, rng, greeting: str = "Hi", volume: int = 1):
        self.volume = volume
        return greeting

    def reply(self, action):
        if action == "win":
            return TurnResult("Won", 1.0, terminated=True, success=True)
        return TurnResult(action * self.volume)


def test_options_come_from_defaults_then_config_then_reset():
    env = Echo({"greeting": "Hello"})
    assert env.options() == {"greeting": "Hello", "volume": 1}
    assert env.reset(seed=0)[0] == "Hello"
    assert env.reset(seed=0, options={"greeting": "Hey"})[0] == "Hey"
    assert env.reset(seed=0)[0] == "Hello"


def test_unknown_option_names_the_nearest():
    with pytest.raises(ConfigError, match=r"'volumee'.*Did you mean 'volume'"):
        Echo({"volumee": 2})
    with pytest.raises(ConfigError, match="Did you mean 'max_turns'"):
        Echo({"max_turn": 2})
    with pytest.raises(ConfigError, match="Did you mean 'split'"):
        Echo().reset(options={"splt": "test"})


def test_base_options_cannot_change_between_episodes():
    with pytest.raises(ConfigError, match="Set it in env_config"):
        Echo().reset(options={"max_turns": 2})


@pytest.mark.parametrize(
    "config",
    [
        {"max_turns": 0},
        {"max_turns": True},
        {"max_turns": 2.0},
        {"invalid_action": "ignore"},
        {"invalid_action_reward": math.nan},
        {"invalid_action_reward": "low"},
        {"report_expert": 1},
    ],
)
def test_base_options_are_checked(config):
    with pytest.raises(ConfigError, match=next(iter(config))):
        Echo(config)


@pytest.mark.parametrize(("invalid_action", "ends"), [("retry", False), ("end", True)])
def test_an_invalid_action_costs_its_reward_and_may_end_the_episode(
    invalid_action, ends
):
    class Strict(Echo):
        def parse(self, completion):
            return None if completion == "?" else completion

    env = Strict({"invalid_action": invalid_action, "invalid_action_reward": -0.25})
    env.reset(seed=0)
    observation, reward, terminated, _, info = env.step("?")
    assert (observation, reward, terminated) == (Strict.format_hint, -0.25, ends)
    assert info["invalid_action"] and info.get("stop_reason") == (
        StopReason.PARSE_ERROR if ends else None
    )


def test_the_seed_decides_the_episode():
    class Dice(Echo):
        def start(self, rng):
            return str(rng.integers(10**9))

    first, again, other = (Dice().reset(seed=seed)[0] for seed in (3, 3, 4))
    assert first == again != other


def test_unknown_split_is_refused():
    with pytest.raises(ConfigError, match="split='dev'"):
        Echo().reset(options={"split": "dev"})


def test_turn_limit_truncates_and_counts_as_failure():
    env = Echo()
    env.reset(seed=0)
    results = [env.step("a") for _ in range(3)]
    assert [r[2:4] for r in results] == [(False, False), (False, False), (False, True)]
    assert results[-1][4]["stop_reason"] == "max_turns"
    assert results[-1][4]["success"] is False
    env.reset(seed=0)
    assert env.step("a")[2:4] == (False, False)  # turns are counted per episode


def test_success_is_none_without_has_success():
    class Chat(Echo):
        has_success = False

    env = Chat({"max_turns": 1})
    env.reset(seed=0)
    assert env.step("a")[4]["success"] is None


def test_winning_in_the_last_turn_is_no_truncation():
    env = Echo({"max_turns": 1})
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("win")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["stop_reason"] == "terminated"
    assert info["success"] is True


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("text", "must return a TurnResult"),
        (TurnResult(None), "non-empty string"),
        (TurnResult(""), "non-empty string"),
        (TurnResult("a", math.inf), "finite"),
        (TurnResult("a", None), "finite"),
    ],
)
def test_broken_replies_are_named(result, message):
    class Broken(Echo):
        def reply(self, action):
            return result

    env = Broken()
    env.reset(seed=0)
    with pytest.raises(EnvContractError, match=message):
        env.step("a")


def test_empty_prompt_is_refused():
    with pytest.raises(EnvContractError, match="non-empty string"):
        Echo({"greeting": ""}).reset(seed=0)


def test_in_split_is_a_partition_of_the_stated_size():
    keys = [str(i) for i in range(5_000)]
    test = [key for key in keys if in_split(key, "test")]
    assert 0.17 < len(test) / len(keys) < 0.23
    assert all(in_split(key, "train") != in_split(key, "test") for key in keys)


def test_names_need_a_version_and_are_unique():
    with pytest.raises(ConfigError, match="echo-v0"):
        register_text_env("echo")
    assert "guess_number-v0" in TEXT_ENVS  # loads what is shipped
    with pytest.raises(ConfigError, match="taken"):
        register_text_env("guess_number-v0")(Echo)


def test_admissible_actions_stand_in_info_until_the_end():
    class Choices(Echo):
        def admissible_actions(self):
            return ["win", f"wait {self.turn}"]

    plain = Echo()
    assert plain.reset(seed=0)[1] == {}
    assert "admissible_actions" not in plain.step("a")[4]
    env = Choices()
    listed = [env.reset(seed=0)[1]["admissible_actions"]]
    listed.append(env.step("wait 0")[4]["admissible_actions"])
    assert listed == [["win", "wait 0"], ["win", "wait 1"]]
    assert "admissible_actions" not in env.step("win")[4]


class Listing(Echo):
    """Lists two actions; its expert draws one of them."""

    def admissible_actions(self):
        return ["win", "wait"]

    def expert_action(self, rng):
        return self.admissible_actions()[rng.integers(2)]


def expert_of(env, turns=12):
    infos = [env.reset(seed=3)[1]]
    infos += [env.step("wait")[4] for _ in range(turns - 1)]
    return [info["expert_probs"] for info in infos]


def test_the_expert_stands_beside_the_admissible_actions():
    assert "expert_probs" not in Listing().reset(seed=0)[1]
    given = {"report_expert": True, "max_turns": 20}
    found = expert_of(Listing(given))
    assert {tuple(probs) for probs in found} == {(0.0, 1.0), (1.0, 0.0)}
    assert expert_of(Listing(given)) == found  # drawn from the episode's seed
    ends = Listing(given)
    ends.reset(seed=0)
    assert "expert_probs" not in ends.step("win")[4]

    class Uncertain(Listing):
        def expert_probs(self, actions, rng):
            return [0.25, 0.75]

    assert expert_of(Uncertain(given))[0] == [0.25, 0.75]


def test_reporting_the_expert_leaves_the_episode_as_it_is():
    plain, reporting = Listing(), Listing({"report_expert": True})
    for env in (plain, reporting):
        env.reset(seed=5)
        env.step("wait")
    assert plain.np_random.random() == reporting.np_random.random()


def test_an_expert_that_cannot_be_reported_is_refused():
    class Free(Listing):
        def expert_action(self, rng):
            return "I win"

    with pytest.raises(EnvContractError, match="'I win'.*not among the admissible"):
        Free({"report_expert": True}).reset(seed=0)
    with pytest.raises(EnvContractError, match="lists none. Leave it out"):
        Echo({"report_expert": True}).reset(seed=0)
