"""rllib-llm check --fork."""

import pytest

from rllib_llm.data.types import TurnResult
from rllib_llm.envs import check_env
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError, EnvContractError


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


def test_several_agents_are_refused():
    with pytest.raises(ConfigError, match="several agents"):
        check_env("dilemma-v0", forks=True)


@pytest.mark.parametrize(
    "name", ["search_facts-v0", "frozen_lake-v0", "webshop_text-v0", "python_tool-v0"]
)
def test_shipped_environments_can_be_forked(name):
    assert problems(name, forks=True) == []
