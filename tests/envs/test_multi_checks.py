"""Every check of check_multi_env fires on a game that is broken in that way."""

import dataclasses
import random
import re
from typing import ClassVar

import numpy as np
import pytest
from multi_toys import RawAEC, RawParallel

from rllib_llm.envs import (
    MultiAgentTextEnv,
    Outcome,
    check_common,
    check_env,
    check_multi_env,
    multi_checks,
)
from rllib_llm.errors import ConfigError


class Relay(MultiAgentTextEnv):
    """One agent passes a digit to the other; the base of all broken games."""

    possible_agents = ["teller_0", "hearer_0"]
    max_turns = 4

    def start(self, rng, upper: int = 9):
        self.digit, self.received = int(rng.integers(upper + 1)), None

    def prompt_for(self, agent):
        if agent == "teller_0":
            return f"Tell {self.digit}"
        return f"Heard {self.received}"

    def parse(self, agent, text):
        text = text.strip()
        return int(text) if len(text) == 1 and text in "0123456789" else None

    def apply(self, agent, action):
        if agent == "teller_0":
            self.received = action
            return None
        right = action == self.digit
        rewards = dict.fromkeys(self.possible_agents, float(right))
        return Outcome(rewards, terminated=True, success=right)

    def expert_action(self, agent, rng):
        return str(self.digit)

    def random_action(self, agent, rng):
        return str(rng.integers(10))


class GlobalRandom(Relay):
    def prompt_for(self, agent):
        return f"Lucky {random.random()}"


class GlobalNumpyRandom(Relay):
    def start(self, rng):
        super().start(rng)
        np.random.seed(self.digit)

    def prompt_for(self, agent):
        return f"Lucky {np.random.rand()}"


class SharedState(Relay):
    received_by_all: ClassVar[list[int]] = []

    def prompt_for(self, agent):
        self.received_by_all.append(1)
        return f"So far {len(self.received_by_all)}"


class RaisesInApply(Relay):
    def apply(self, agent, action):
        return [None][action]


class RaisesInReset(Relay):
    def start(self, rng):
        return {}["missing"]


class UnknownAgent(Relay):
    def apply(self, agent, action):
        return Outcome({"listener_0": 1.0})


class InfiniteReward(Relay):
    def apply(self, agent, action):
        return Outcome({agent: float("inf")})


class Endless(Relay):
    def step(self, action):
        self.turn = -5
        super().step(action)

    def apply(self, agent, action):
        return None


class FragileHearer(Relay):
    """A game in which only the second agent's parser fails."""

    def parse(self, agent, text):
        return super().parse(agent, text) if agent == "teller_0" else int(text)


class FragileTeller(Relay):
    def parse(self, agent, text):
        return int(text)


class NotReadyToBeCut(Relay):
    def prompt_for(self, agent):
        if agent == "hearer_0":
            return f"Heard {self.received + 0}"
        return super().prompt_for(agent)


class SwallowsOptions(Relay):
    def __init__(self, env_config=None):
        super().__init__()


class IgnoresInvalidAction(Relay):
    def __init__(self, env_config=None):
        super().__init__(env_config)
        self.invalid_action = "retry"


class NoTestSplit(Relay):
    def reset(self, seed=None, options=None):
        if options and "split" in options:
            raise ValueError("no options here")
        super().reset(seed, options)


class BadExpertFormat(Relay):
    def expert_action(self, agent, rng):
        return f"I say {self.digit}"


class FoolishExpert(Relay):
    def expert_action(self, agent, rng):
        return str((self.digit + (agent == "hearer_0")) % 10)


class NotPettingZoo(Relay):
    """A game that adds rewards without PettingZoo's bookkeeping."""

    def apply(self, agent, action):
        outcome = super().apply(agent, action) or Outcome()
        return dataclasses.replace(outcome, rewards={agent: 0.5})

    def _accumulate_rewards(self):
        pass


BROKEN = [
    (GlobalRandom, "np.random"),
    (GlobalNumpyRandom, "interleaved with the same actions"),
    (SharedState, "shared between instances"),
    (RaisesInApply, "IndexError"),
    (RaisesInReset, r"reset\(\) raised KeyError"),
    (UnknownAgent, "'listener_0', which UnknownAgent does not declare"),
    (InfiniteReward, "with inf in turn 1; rewards must be finite"),
    (Endless, "had not ended"),
    (FragileHearer, "'hearer_0' writing '' raised ValueError"),
    (FragileTeller, "'teller_0' writing '' raised ValueError"),
    (
        NotReadyToBeCut,
        r"With max_turns=1 seed 0, turn 1 raised TypeError(.|\n)+At the limit",
    ),
    (SwallowsOptions, "'not_an_option' was accepted"),
    (IgnoresInvalidAction, "invalid_action='end' let the episode go on"),
    (NoTestSplit, "test split"),
    (BadExpertFormat, "'I say .', which parse"),
    (FoolishExpert, "expert never succeeded in 16"),
    (NotPettingZoo, "api_test fails: AssertionError: reward returned by last"),
]


def test_the_sound_game_passes_and_is_measured():
    report = check_env(Relay)
    assert report.ok, str(report)
    numbers = report.measurements
    assert numbers["expert_success"] == 1.0 and numbers["expert_return"] == 2.0
    assert numbers["expert_return/hearer_0"] == 1.0
    assert numbers["expert_turns_mean"] == 2.0
    assert 0 <= numbers["random_success"] < 0.5
    assert str(report).startswith("Relay: ok")


@pytest.mark.parametrize(
    ("env", "words"), BROKEN, ids=lambda x: getattr(x, "__name__", "")
)
def test_broken_game_is_reported(env, words):
    report = check_multi_env(env)
    assert not report.ok
    assert any(re.search(words, p) for p in report.problems), str(report)


def test_every_check_for_several_agents_fires(monkeypatch):
    fired = set()

    def recorded(check):
        def run(subject):
            problems = list(check(subject))
            fired.update([check.__name__] * bool(problems))
            return problems

        return run

    own = {check.__name__ for check in multi_checks._MORE_CHECKS}
    wrapped = [recorded(c) for c in multi_checks._MORE_CHECKS]
    monkeypatch.setattr(multi_checks, "_MORE_CHECKS", wrapped)
    monkeypatch.setattr(check_common, "SINGLE_AGENT_CHECKS", ())
    for env, _ in BROKEN:
        check_multi_env(env)
    assert fired == own


class Bytes:
    """A tokenizer of UTF-8 bytes without a chat template."""

    def encode(self, text, add_special_tokens=True):
        assert not add_special_tokens
        return list(text.encode())

    def decode(self, ids):
        return bytes(ids).decode()


def test_the_longest_conversation_is_that_of_one_agent():
    report = check_env(Relay, tokenizer=Bytes(), max_context_tokens=9)
    assert report.ok, str(report)
    assert report.measurements["conversation_tokens_max"] == len("Heard 7\n7")
    report = check_env(Relay, tokenizer=Bytes(), max_context_tokens=8)
    assert "The conversation reached 9 tokens" in report.problems[0]


def test_system_prompts_count_per_agent():
    class Polite(Relay):
        def system_prompt_for(self, agent):
            return "x" * (100 if agent == "teller_0" else 1)

    numbers = check_env(Polite, tokenizer=Bytes()).measurements
    assert numbers["conversation_tokens_max"] == 100 + len("\nTell 7\n7")


def test_experts_without_success_need_no_positive_return():
    class Rivals(Relay):
        has_success = False

        def apply(self, agent, action):
            if agent == "hearer_0":
                return Outcome({"teller_0": 1.0, "hearer_0": -1.0}, terminated=True)

    report = check_env(Rivals)
    assert report.ok, str(report)
    assert report.measurements["expert_return/hearer_0"] == -1.0


def sound_aec(env_config):
    events = [({}, [], [])] * 3 + [({"ann_0": 1.0}, ["ann_0"], ["ben_0"])]
    return RawAEC(events)


def test_plain_pettingzoo_envs_are_checked_without_our_options():
    report = check_env(sound_aec)
    assert report.ok, str(report)
    assert "expert_success" not in report.measurements
    assert report.measurements["random_turns_mean"] == 4.0


def test_plain_parallel_envs_are_checked():
    rounds = [
        (["ann_0", "ben_0"], {}, [], []),
        ([], {"ann_0": 1.0}, ["ann_0", "ben_0"], []),
    ]

    def build(env_config):
        possible = ["ann_0", "ben_0"]
        return RawParallel(list(possible), rounds, possible=possible)

    report = check_env(build)
    assert report.ok, str(report)
    assert report.measurements["random_return/ann_0"] == 1.0


def test_a_plain_env_that_breaks_pettingzoo_is_found():
    report = check_env(lambda env_config: RawAEC([({}, ["ann_0"], [])], buries=False))
    assert any("among its agents after step(None)" in p for p in report.problems)


def test_seeds_are_needed():
    with pytest.raises(ConfigError, match="seeds is empty"):
        check_env(Relay, seeds=[])


def test_the_command_line_checks_games_of_several_agents(capsys):
    from rllib_llm.cli.implementation.check import check

    assert check("secret_sum-v0", ["agents=3"], None, None)
    printed = capsys.readouterr().out
    assert "secret_sum-v0: ok" in printed and "expert_return/carol_0: 1" in printed
