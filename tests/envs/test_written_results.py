"""Results of a tool that the agent writes itself."""

import numpy as np
import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.search_facts import SearchFacts
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import ConfigError

ASKED = "Write the result."


def started(seed=1, **options):
    env = make_env("written_results-v0", options)
    return env, env.reset(seed=seed)[0]


def test_the_agents_text_stands_where_the_tools_result_would(monkeypatch):
    env, _ = started()
    monkeypatch.setattr(SearchFacts, "use", None)  # no tool is used
    asked, result = env.step("<search>x</search>"), env.step("  A document. ")
    assert asked[0] == ASKED and result[0] == "A document."
    assert [s[4]["written_result"] for s in (asked, result)] == [False, True]
    assert [s[4]["tool"] for s in (asked, result)] == ["search", None]
    # Also where an episode is cut before its answer.
    for step in (asked, result):
        assert step[4]["gold_answers"] == env.task.gold_answers()
        assert step[4]["documents"] == []
    last = env.step(f"<answer>{env.task.gold_answers()[0]}</answer>")
    assert last[1] == 1.0 and last[2] and last[4]["success"] is True
    assert last[4]["gold_answers"] == env.task.gold_answers()
    assert last[4]["metrics"] == {"tool_uses": 1.0} and not last[4]["written_result"]


def test_with_the_real_tool_it_is_the_task():
    env, question = started(tool="real", task_config={"hops": 2})
    plain = make_env("search_facts-v0", {"hops": 2})
    seed = int(np.random.default_rng(1).integers(2**31))
    assert plain.reset(seed=seed)[0] == question
    rng = np.random.default_rng(0)
    for _ in range(3):
        text = plain.expert_action(rng)
        assert text == env.expert_action(rng)
        mine, its = env.step(text), plain.step(text)
        assert mine[:4] == its[:4]
        assert mine[4].get("documents") == its[4].get("documents")
    assert its[2]


def test_an_empty_result_is_asked_for_again():
    env, _ = started(invalid_action_reward=-0.5)
    env.step("<search>x</search>")
    text, reward, *_, info = env.step("   ")
    assert (text, reward) == (ASKED, -0.5)
    assert info["invalid_action"] and info["written_result"]  # not trained either
    nothing = started()[0].step("hm")
    assert nothing[0] == env.task.format_hint and not nothing[4]["written_result"]


def test_the_expert_writes_what_the_real_tool_shows_and_never_uses_it():
    config = {"hops": 2, "results": 1}
    own = play(started(task_config=config)[0], 5, expert_policy)
    real = play(started(task_config=config, tool="real")[0], 5, expert_policy)
    assert own.success and real.success
    assert own.actions[0::2] == real.actions  # uses and answer
    assert own.actions[1::2] == real.observations[1:3]
    again = play(started(task_config=config)[0], 5, expert_policy)
    assert again.actions == own.actions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "frozen_lake-v0"}, "ToolOrAnswer"),
        ({"task": "geo_pictures-v0"}, "shows pictures, and an agent writes text"),
        ({"tool": "none"}, "tool='none' must be one of written, real"),
    ],
)
def test_unsuitable_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        started(**options)
