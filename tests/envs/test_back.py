"""The tool `back`, by which an agent undoes its own turns."""

import numpy as np
import pytest

from rllib_llm.data.types import TurnResult
from rllib_llm.envs import TextEnv, back, make_env
from rllib_llm.envs.frozen_lake import FrozenLake
from rllib_llm.envs.tool_env import ToolEnv
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import ConfigError


class Counting(TextEnv):
    """Gives 1, 2, 3, ... and a random number; "win" and "lose" end it."""

    max_turns = 5
    system_prompt = "Count."

    def start(self, rng, slow: bool = False):
        self.rng, self.count = rng, 0
        return "Begin."

    def parse(self, completion):
        return completion if completion in ("on", "win", "lose", "back") else None

    def reply(self, action):
        self.count += 1
        ends = {"win": True, "lose": False}
        return TurnResult(
            f"{self.count} {int(self.rng.integers(1000))}",
            reward=float(self.count),
            terminated=action in ends,
            success=ends.get(action),
            metrics={"count": float(self.count)},
        )


@pytest.fixture
def made(monkeypatch):
    """Return a function that makes the environment with the task above."""

    def make(**options):
        env = make_env("back-v0", options)
        return env, env.reset(seed=3)[0]

    monkeypatch.setattr(back, "_task_class", lambda name: Counting)
    return make


def steps(env, *texts):
    return [env.step(text) for text in texts]


def test_back_returns_to_an_earlier_observation_and_cancels_its_rewards(made):
    env, opening = made(cost=0.25)
    assert (
        opening.startswith("Begin.\nSay back to undo") and env.system_prompt == "Count."
    )
    first, second, third, undo = steps(env, "on", "on", "on", "back 2")
    assert undo[0] == f"Undone, 2 times left.\n{first[0]}"
    assert undo[1] == -(2.0 + 3.0) - 0.25
    assert undo[4]["tool"] == "back" and undo[4]["metrics"] == {"times_back": 1.0}
    # The random generator of the task went back, too.
    assert [step[0] for step in steps(env, "on", "on")] == [second[0], third[0]]
    again = env.step("back 3")
    assert again[0] == "Undone, once left.\nBegin." and again[1] == -6.25
    (won,) = steps(env, "win")
    assert won[2] and won[4]["success"] is True and won[1] == 1.0
    assert won[4]["metrics"] == {"count": 1.0, "times_back": 2.0}


def test_the_return_is_that_of_the_turns_that_count(made):
    rng = np.random.default_rng(0)
    for _ in range(30):
        env, _ = made(uses=4)
        counted, total, over = [], 0.0, False
        while not over:
            text = str(rng.choice(["on", "on", "win", "lose", "back", "back 2"]))
            could = env.uses_left > 0
            _, reward, terminated, truncated, info = env.step(text)
            total, over = total + reward, terminated or truncated
            counted = [turn.reward for turn in env.earlier]
            assert could or info.get("tool") != "back"
        assert total == sum(counted) == sum(range(1, len(counted) + 1))


def test_failed_ends_can_be_undone_as_long_as_uses_are_left(made):
    env, _ = made(uses=1)
    lost = env.step("lose")
    assert not lost[2] and lost[0].endswith("Say back to undo it, or stop.")
    assert lost[4]["success"] is None and env.admissible_actions() == ["back", "stop"]
    assert env.expert_action(np.random.default_rng(0)) == "back"
    assert env.step("BACK.")[0] == "Undone, 0 times left.\nBegin."
    lost = env.step("lose")
    assert lost[2] and lost[4]["success"] is False


@pytest.mark.parametrize("text", ["stop", "anything", "on"])
def test_any_other_text_accepts_a_failed_end(made, text):
    env, _ = made()
    env.step("lose")
    observation, reward, terminated, _, info = env.step(text)
    assert terminated and reward == 0.0 and info["success"] is False
    assert not info["invalid_action"] and "back" not in observation


def test_the_end_of_the_tasks_turns_can_be_undone(made):
    env, _ = made()
    assert not any(step[2] or step[3] for step in steps(env, *["on"] * 5, "back 4"))
    assert env.step("win")[4]["success"] is True


def test_no_use_beyond_the_limits(made):
    env, _ = made(uses=1)
    assert env.step("back")[0] == "There are 0 turns to undo, not 1."
    # A text that says more than the tool's word is the task's.
    assert env.step("not back")[4]["invalid_action"]
    assert env.step("on")[1] == 1.0
    assert env.step("back 0")[0] == "There are 1 turns to undo, not 0."
    assert env.uses_left == 1
    env.step("back")
    # Then the word is the task's.
    observation, _, _, _, info = env.step("back")
    assert observation.startswith("1 ") and info["parsed_action"] == ("task", "back")
    assert env.step("nonsense")[4]["invalid_action"]


def test_thoughts_may_stand_before_the_word(made):
    env, opening = made(thoughts=True)
    assert opening.endswith("Thoughts may stand on the lines before it.")
    env.step("on")
    assert env.step("on\nis wrong, so\n back 1. ")[4]["tool"] == "back"
    # The last line alone is the tool's; the task reads whole texts.
    assert env.step("back is better")[4]["invalid_action"]
    assert env.step("back\non")[4]["invalid_action"]
    env, opening = made()
    env.step("on")
    assert "Thoughts" not in opening and env.step("no\nback")[4]["invalid_action"]
    with pytest.raises(ConfigError, match="thoughts"):
        made(thoughts="yes")


def test_without_uses_it_is_the_task(made):
    env, task = made(uses=0)[0], Counting()
    task.reset(seed=int(np.random.default_rng(3).integers(2**31)))
    env.reset(seed=3)
    for text in ("on", "on", "lose"):
        ours, its = env.step(text), task.step(text)
        assert ours[:4] == its[:4] and ours[4]["success"] == its[4]["success"]


def test_the_expert_falls_by_mistake_and_undoes_it():
    """Demonstrations with mistakes teach the tool."""
    from rllib_llm.offline.demonstrations import demonstrate

    env, plain = make_env("back-v0"), make_env("back-v0", {"uses": 0})
    solved = {True: 0, False: 0}
    undone = 0
    for seed in range(100):
        for which in (env, plain):
            demo = demonstrate(which, seed=seed, mistake_rate=0.4)
            solved[which is env] += bool(demo.success)
            undone += demo.completions.count("back")
    assert undone > 60 and solved[True] > solved[False] + 10
    transcript = play(env, 0, expert_policy)
    assert "back" not in transcript.actions and isinstance(env.task, FrozenLake)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"task": "team-v0"}, "task='team-v0' is not a single-agent TextEnv"),
        ({"task": "service_desk-v0", "thoughts": True}, "thoughts=true has no effect"),
        ({"task": "back-v0"}, "task='back-v0' is not"),
        ({"uses": -1}, "uses=-1 must be an int from 0"),
        ({"cost": -0.5}, "cost=-0.5 must be a number from 0"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        make_env("back-v0", options).reset(seed=0)


# Tasks with tools ---------------------------------------------------------------------


class Till:
    """Tools with a state, which `back` must restore."""

    def __init__(self):
        self.total = 0

    def pay(self, coins: int) -> str:
        """Put coins into the till.

        Args:
            coins: Number of coins.
        """
        self.total += coins
        return f"{self.total} coins."


class Paying(ToolEnv):
    """The answer must be the number of coins in the till, at least 3."""

    max_turns = 4

    def start(self, rng):
        self.till = Till()
        self.tools = [self.till]
        return "Pay 3 coins."

    def judge(self, answer):
        return float(answer == str(self.till.total) and self.till.total == 3)

    def expert_action(self, rng):
        if self.till.total < 3:
            return self.write_call("pay", coins=1)
        return str(self.till.total)


@pytest.fixture
def paying(monkeypatch):
    def make(tool_format="auto", **options):
        task_config = {"tool_format": tool_format}
        env = make_env("back-v0", {"task_config": task_config, **options})
        return env, *env.reset(seed=3)

    monkeypatch.setattr(back, "_task_class", lambda name: Paying)
    return make


def call(env, name, **arguments):
    return env.step(env.task.write_call(name, **arguments))


@pytest.mark.parametrize("tool_format", ["auto", "tags"])
def test_back_is_a_tool_among_those_of_the_task(paying, tool_format):
    env, opening, info = paying(tool_format)
    assert "Call back to undo your last turns, 3 times at most." in opening
    named = [tool["function"]["name"] for tool in info.get("tools", [])]
    assert sorted(named) == ([] if tool_format == "tags" else ["back", "pay"])
    assert ("<back>" in opening) == (tool_format == "tags")
    call(env, "pay", coins=2)
    assert "7 coins." in call(env, "pay", coins=5)[0]
    shown, reward, ended, _, info = call(env, "back")
    text = "Undone, 2 times left.\n"
    assert text in shown and shown.count("2 coins.") == 1 and reward == 0 and not ended
    assert info["tool"] == "back" and env.task.till.total == 2
    if tool_format == "auto":  # as the results of tools that a template renders
        (result,) = info["tool_results"]
        assert result == {"name": "back", "content": f"{text}2 coins."}
    else:
        assert "tool_results" not in info
    # The tools have the state of that turn as well.
    assert "3 coins." in call(env, "pay", coins=1)[0]
    assert "Pay 3 coins." in call(env, "back", turns=2)[0]
    assert env.task.till.total == 0 and env.uses_left == 1


def test_failed_answers_and_ends_by_calls_can_be_undone(paying):
    env, *_ = paying()
    call(env, "pay", coins=3)
    wrong = env.step("4")
    assert not wrong[2] and wrong[0].endswith("Call back to undo it, or say stop.")
    expert = env.expert_action(np.random.default_rng(0))
    assert expert == env.task.write_call("back")
    assert not env.step(expert)[2] and env.task.till.total == 3
    # Back alone is an answer: with tools it is no word of the environment.
    assert env.step("back")[0].endswith("or say stop.")
    call(env, "back", turns=1)
    for _ in range(3):
        last = call(env, "pay", coins=0)
    choice = " Call back to undo it, or say stop."
    assert not last[3] and last[0].endswith(choice)
    (result,) = last[4]["tool_results"]
    assert result["content"] == f"3 coins.{choice}"
    call(env, "back")
    won = env.step("3")
    assert won[2] and won[4]["success"] is True and won[1] == 1.0


def test_back_beside_other_calls_or_without_uses_is_an_error_of_the_tool(paying):
    env, *_ = paying(uses=1)
    both = [env.task.write_call("pay", coins=1), env.task.write_call("back")]
    shown, *_, info = env.step("\n".join(both))
    assert "must be the only call" in shown and env.task.till.total == 1
    assert info["tool_error"] and env.uses_left == 1
    call(env, "back")
    assert env.task.till.total == 0 and env.uses_left == 0
    call(env, "pay", coins=1)
    assert "there must be uses left" in call(env, "back")[0]
    # Arguments that cannot be read are a problem of the call.
    env, *_ = paying()
    assert call(env, "back", turns="x")[4]["invalid_action"]


@pytest.mark.parametrize("uses", [0, 3])
def test_the_expert_of_a_shipped_task_with_tools_succeeds(uses):
    env = make_env("back-v0", {"task": "service_desk-v0", "uses": uses})
    for seed in range(5):
        transcript = play(env, seed, expert_policy)
        assert transcript.success is True, str(transcript)
    # Its tools are described in the first message.
    assert ("<back>" in env.reset(seed=0)[0]) == bool(uses)
