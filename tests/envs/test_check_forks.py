"""rllib-llm check --fork."""

import pytest

from rllib_llm.data.types import TurnResult
from rllib_llm.envs import MultiAgentTextEnv, Outcome, check_env
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import EnvContractError


class Adder(TextEnv):
    """Adds up numbers, three times."""

    max_turns = 5

    def start(self, rng):
        self.rng, self.total = rng, 0
        return "Numbers, please."

    def parse(self, completion):
        return int(completion) if completion in tuple("123456789") else None

    def reply(self, action):
        self.total += action + int(self.rng.integers(10))
        return TurnResult(
            f"{self.total}", self.total / 100, self.turn == 3, success=True
        )

    def random_action(self, rng):
        return str(rng.integers(1, 10))


class Outside(Adder):
    """Keeps a part of its state outside of the instance's attributes."""

    totals: dict[int, int] = {}

    def start(self, rng):
        Outside.totals[id(self)] = 0
        return super().start(rng)

    def reply(self, action):
        Outside.totals[id(self)] += action
        return TurnResult(f"{Outside.totals[id(self)]}", 0.0, self.turn == 3)


class Unprepared(Adder):
    """Can be restored only in an instance that was reset before."""

    _KEPT = Adder._KEPT | {"step_size"}

    def start(self, rng):
        self.step_size = 1
        return super().start(rng)

    def reply(self, action):
        return super().reply(action * self.step_size)


class Loud(Adder):
    """Cannot be copied, and never repeats itself."""

    calls = 0

    def snapshot(self):
        raise EnvContractError("No copy.")

    def reply(self, action):
        Loud.calls += 1
        return TurnResult(f"{Loud.calls}", 0.0, self.turn == 3)


class Uncopied(Adder):
    """Cannot be copied, but repeats itself."""

    def snapshot(self):
        raise EnvContractError("No copy.")


def problems(env, **settings):
    report = check_env(env, seeds=range(4), **settings)
    return [problem for problem in report.problems if "forked" in problem]


def test_sound_environments_pass():
    report = check_env(Adder, seeds=range(4), forks=True)
    assert report.ok, str(report)
    assert not any("snapshot" in warning for warning in report.warnings)


def test_state_outside_of_the_instance_is_found():
    assert problems(Outside) == []
    (problem,) = problems(Outside, forks=True)
    assert "forked by snapshot before turn" in problem
    assert "the observation of turn" in problem


def test_instances_that_were_never_reset_are_tried():
    (problem,) = problems(Unprepared, forks=True)
    assert "step_size" in problem


def test_texts_that_differ_when_played_again_are_found():
    (problem,) = problems(Loud, forks=True)
    assert "forked by its texts before turn" in problem


def test_replays_are_announced():
    report = check_env(Uncopied, seeds=range(4), forks=True)
    assert report.ok, str(report)
    assert any("plays the turns before it again" in w for w in report.warnings)


class Pair(MultiAgentTextEnv):
    """Two agents who add up numbers."""

    possible_agents = ["ann_0", "ben_0"]
    max_turns = 6
    outside: dict[int, int] = {}
    keeps_outside = False

    def start(self, rng):
        self.total = 0
        Pair.outside[id(self)] = 0

    def prompt_for(self, agent):
        shown = Pair.outside[id(self)] if self.keeps_outside else self.total
        return f"{agent}: {shown}, {int(self.np_random.integers(100))}."

    def parse(self, agent, text):
        return int(text) if text in tuple("123456789") else None

    def apply(self, agent, action):
        self.total += action
        Pair.outside[id(self)] = Pair.outside.get(id(self), 0) + action
        return Outcome({agent: action / 10}, terminated=self.turn == 4, success=True)

    def random_action(self, agent, rng):
        return str(rng.integers(1, 10))


class PairOutside(Pair):
    """Shows what no copy holds."""

    keeps_outside = True


def test_teams_are_forked():
    report = check_env(Pair, seeds=range(4), forks=True)
    assert report.ok, str(report)
    assert not any("snapshot" in warning for warning in report.warnings)
    assert problems(PairOutside) == []
    (problem,) = problems(PairOutside, forks=True)
    assert "forked by snapshot before turn" in problem


@pytest.mark.parametrize(
    "name",
    [
        "search_facts-v0",
        "frozen_lake-v0",
        "webshop_text-v0",
        "python_tool-v0",
        "dilemma-v0",
        "negotiation-v0",
        "scout_porter-v0",
        "team-v0",
    ],
)
def test_shipped_environments_can_be_forked(name):
    assert problems(name, forks=True) == []
