"""MultiAgentAdapter: infos, rewards, order and ends that other wrappers lose."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from multi_toys import (
    RawAEC,
    RawParallel,
    Scripted,
    Together,
    made,
    over,
)
from pettingzoo.utils import OrderEnforcingWrapper

from rllib_llm.envs import MultiAgentAdapter, Outcome, make_env
from rllib_llm.errors import EnvContractError

TESTS_AND_ROOT = os.pathsep.join(str(p) for p in Path(__file__).parents[1:3])


def joint(cls, plan=(), config=None, **attributes):
    return MultiAgentAdapter(made(cls, plan, **attributes)(config))


def test_one_agent_at_a_time_and_all_agents_of_a_round():
    env = joint(Scripted)
    assert list(env.reset(seed=0, options=None).observations) == ["ann_0"]
    assert list(env.step({"ann_0": "x"}).observations) == ["ben_0"]
    env = joint(Together)
    step = env.reset(seed=0)
    assert list(step.observations) == ["ann_0", "ben_0", "cid_0"]
    step = env.step({"cid_0": "c", "ann_0": "a", "ben_0": "b"})
    assert env.unwrapped.log[3:6] == [("ann_0", "a"), ("ben_0", "b"), ("cid_0", "c")]
    assert list(step.infos) == ["ann_0", "ben_0", "cid_0"]
    assert step.infos["ben_0"]["parsed_action"] == "b"


def test_only_agents_with_an_invalid_action_are_asked_again():
    env = joint(Together, config={"invalid_action_reward": -1.0})
    env.reset(seed=0)
    step = env.step({"ann_0": "a", "ben_0": "?", "cid_0": "c"})
    assert step.observations == {"ben_0": "Say something."}
    assert step.rewards == [("ben_0", -1.0)]
    step = env.step({"ben_0": "b"})
    assert list(step.observations) == ["ann_0", "ben_0", "cid_0"]


def test_rewards_to_anyone_at_any_time():
    """Reward agents before their first action, while waiting, and after leaving."""
    plan = [
        Outcome({"ben_0": 1.0, "cid_0": 2.0}, terminated=["ann_0"]),
        over({"ann_0": 3.0, "ben_0": 4.0, "cid_0": 5.0}),
    ]
    env = joint(Scripted, plan, late_agents=("cid_0",))
    env.reset(seed=0)
    first = env.step({"ann_0": "x"})
    assert first.rewards == [("ben_0", 1.0), ("cid_0", 2.0)]
    assert first.terminated == ("ann_0",) and not first.is_over
    last = env.step({"ben_0": "x"})
    assert last.rewards == [("ann_0", 3.0), ("ben_0", 4.0), ("cid_0", 5.0)]
    assert last.terminated == ("ben_0",) and last.is_over


def test_mixed_ends_are_over_and_name_who_bootstraps():
    end = Outcome({"ann_0": 1.0}, terminated=["ann_0"], truncated=["ben_0", "cid_0"])
    env = joint(Scripted, [end])
    env.reset(seed=0)
    step = env.step({"ann_0": "x"})
    assert step.is_over and not step.observations
    assert step.terminated == ("ann_0",) and step.truncated == ("ben_0", "cid_0")
    assert step.final_observations == {
        "ben_0": "hello ben_0, turn 1",
        "cid_0": "hello cid_0, turn 1",
    }
    assert step.stop_reason == "max_turns"
    with pytest.raises(
        EnvContractError, match=r"The episode has ended: call reset\(\)"
    ):
        env.step({"ben_0": "x"})


def test_agents_with_nothing_new_have_no_final_observation():
    def prompt_for(self, agent):
        return "" if agent == "ann_0" and self.turn else "go"

    env = joint(Scripted, config={"max_turns": 1}, prompt_for=prompt_for)
    env.reset(seed=0)
    step = env.step({"ann_0": "x"})
    assert step.truncated == ("ann_0", "ben_0", "cid_0")
    assert step.final_observations == {"ben_0": "go", "cid_0": "go"}


def test_late_joiners_are_asked_and_early_leavers_are_not():
    def apply(self, agent, action):
        if agent == "ann_0" and self.turn == 1:
            self.join("cid_0")
            return Outcome(terminated=["ann_0"])

    env = joint(Scripted, late_agents=("cid_0",), apply=apply)
    step, asked = env.reset(seed=0), []
    for _ in range(5):
        (agent,) = step.observations
        asked.append(agent)
        step = env.step({agent: "x"})
    assert asked == ["ann_0", "ben_0", "cid_0", "ben_0", "cid_0"]


def test_episode_results_come_from_the_infos():
    plan = [
        Outcome(metrics={"a": 1.0}),
        over({"ben_0": 1.0}, success=True, metrics={"b": 2.0}),
    ]
    env = joint(Scripted, plan)
    env.reset(seed=0)
    first = env.step({"ann_0": "x"})
    assert (first.success, first.metrics, first.stop_reason) == (None, {"a": 1.0}, None)
    last = env.step({"ben_0": "x"})
    assert (last.success, last.metrics) == (True, {"b": 2.0})
    assert last.stop_reason == "terminated" and type(last.stop_reason) is str


def test_wrong_agents_are_refused():
    env = joint(Scripted)
    env.reset(seed=0)
    for actions in ({}, {"ben_0": "x"}, {"ann_0": "x", "ben_0": "x"}):
        with pytest.raises(EnvContractError, match=r"to act are \['ann_0'\]"):
            env.step(actions)


def test_system_prompts_are_per_agent():
    def system_prompt_for(self, agent):
        return f"You are {agent}."

    env = joint(Scripted, system_prompt_for=system_prompt_for)
    assert env.system_prompt_for("ben_0") == "You are ben_0."
    assert joint(Scripted, system_prompt="Hi").system_prompt_for("ann_0") == "Hi"
    assert MultiAgentAdapter(RawAEC([])).system_prompt_for("ann_0") is None


# Other people's AEC environments ---------------------------------------------------


def test_plain_aec_env_is_played_to_its_end():
    events = [
        ({"ben_0": 1.0}, [], []),
        ({"ann_0": 2.0, "ben_0": 3.0}, ["ann_0"], []),
        ({"ben_0": 4.0}, [], ["ben_0"]),
    ]
    env = MultiAgentAdapter(RawAEC(events))
    step = env.reset(seed=7)
    assert step.observations == {"ann_0": "ann_0 at 0"}
    assert step.infos == {"ann_0": {"born": 7}, "ben_0": {"born": 7}}
    step = env.step({"ann_0": "x"})
    assert step.rewards == [("ben_0", 1.0)] and list(step.observations) == ["ben_0"]
    step = env.step({"ben_0": "x"})
    assert step.rewards == [("ann_0", 2.0), ("ben_0", 3.0)]
    assert step.terminated == ("ann_0",) and step.observations == {
        "ben_0": "ben_0 at 2"
    }
    assert env.unwrapped.dead_steps == 1
    step = env.step({"ben_0": "x"})
    assert step.rewards == [("ben_0", 4.0)] and step.is_over
    assert step.truncated == ("ben_0",) and step.terminated == ()
    assert step.final_observations == {"ben_0": "ben_0 at 3"}
    assert step.stop_reason == "max_turns" and env.unwrapped.agents == []


def test_ends_are_reported_once_before_the_dead_step():
    events = [({}, ["cid_0"], []), ({}, [], []), ({}, [], ["ann_0", "ben_0"])]
    env = RawAEC(events, in_turn=True)
    env.possible_agents = ["ann_0", "ben_0", "cid_0"]
    env = MultiAgentAdapter(env)
    env.reset(seed=0)
    step = env.step({"ann_0": "x"})
    assert step.terminated == ("cid_0",) and list(step.observations) == ["ben_0"]
    assert "cid_0" in env.unwrapped.agents
    step = env.step({"ben_0": "x"})
    assert step.terminated == () and list(step.observations) == ["ann_0"]
    assert env.unwrapped.agents == ["ann_0", "ben_0"]
    step = env.step({"ann_0": "x"})
    assert step.is_over and step.truncated == ("ann_0", "ben_0")
    assert env.unwrapped.agents == []


def test_mixed_end_of_a_plain_aec_env():
    env = MultiAgentAdapter(
        RawAEC([({"ann_0": 1.0, "ben_0": 2.0}, ["ann_0"], ["ben_0"])])
    )
    env.reset(seed=0)
    step = env.step({"ann_0": "x"})
    assert step.is_over and step.terminated == ("ann_0",)
    assert step.truncated == ("ben_0",) and list(step.final_observations) == ["ben_0"]
    assert step.rewards == [("ann_0", 1.0), ("ben_0", 2.0)]


@pytest.mark.parametrize("shape", [str, lambda text: {"text": text, "extra": 1}])
def test_observations_are_texts_or_hold_one(shape):
    env = MultiAgentAdapter(RawAEC([], shape=shape))
    assert env.reset(seed=0).observations == {"ann_0": "ann_0 at 0"}


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (lambda text: np.zeros(3), "observation of 'ann_0' is ndarray"),
        (lambda text: {"board": 1}, "is dict.*'text'"),
        (lambda text: "", "expects 'ann_0' to act on an empty text"),
    ],
)
def test_other_observations_are_refused(shape, words):
    with pytest.raises(EnvContractError, match=words):
        MultiAgentAdapter(RawAEC([], shape=shape)).reset(seed=0)


def test_broken_envs_are_named():
    env = MultiAgentAdapter(RawAEC([({}, ["ann_0"], [])], buries=False))
    env.reset(seed=0)
    with pytest.raises(EnvContractError, match="keeps 'ann_0' among its agents"):
        env.step({"ann_0": "x"})
    env = MultiAgentAdapter(
        RawParallel(["ann_0"], [(["ann_0"], {"anna_0": 1.0}, [], [])])
    )
    env.reset(seed=0)
    with pytest.raises(EnvContractError, match="reward 1.0 to 'anna_0'.*mean 'ann_0'"):
        env.step({"ann_0": "x"})
    env = MultiAgentAdapter(RawAEC([({"ann_0": float("inf")}, [], [])]))
    env.reset(seed=0)
    with pytest.raises(EnvContractError, match="with inf; rewards"):
        env.step({"ann_0": "x"})


def test_wrapped_text_envs_keep_their_rounds_and_grants():
    plan = [Outcome(terminated=["ann_0"]), over({"ann_0": 1.0})]
    env = MultiAgentAdapter(OrderEnforcingWrapper(made(Together, plan)()))
    assert list(env.reset(seed=0).observations) == ["ann_0", "ben_0", "cid_0"]
    env.step(dict.fromkeys(["ann_0", "ben_0", "cid_0"], "x"))
    step = env.step(dict.fromkeys(["ben_0", "cid_0"], "x"))
    assert step.rewards == [("ann_0", 1.0)]


# Parallel environments -------------------------------------------------------------


def test_plain_parallel_env_keeps_the_order_of_possible_agents():
    rounds = [(["cid_0", "ann_0"], {"ben_0": 1.0}, ["ben_0"], [])]
    rounds.append(([], {"ann_0": 2.0}, ["ann_0"], ["cid_0"]))
    possible = ("ann_0", "cid_0", "ben_0")
    env = MultiAgentAdapter(RawParallel(["cid_0", "ben_0", "ann_0"], rounds, possible))
    step = env.reset(seed=3)
    assert list(step.observations) == list(possible)
    assert step.infos["ben_0"] == {"seed": 3}
    step = env.step({"ann_0": "a", "ben_0": "b", "cid_0": "c"})
    assert step.terminated == ("ben_0",) and list(step.observations) == [
        "ann_0",
        "cid_0",
    ]
    step = env.step({"ann_0": "a", "cid_0": "c"})
    assert step.is_over and step.terminated == ("ann_0",)
    assert step.truncated == ("cid_0",)
    assert step.final_observations == {"cid_0": "cid_0 reads 2"}
    assert step.rewards == [("ann_0", 2.0)]


def test_late_joiners_of_a_parallel_env():
    rounds = [(["ann_0", "ben_0"], {"cid_0": 1.0}, [], [])]
    rounds += [(["cid_0", "ann_0"], {"ben_0": 2.0}, ["ben_0"], [])]
    rounds += [([], {"ben_0": 3.0}, ["ann_0", "cid_0"], [])]
    env = MultiAgentAdapter(RawParallel(["ann_0", "ben_0"], rounds))
    env.reset(seed=0)
    assert env.step({"ann_0": "a", "ben_0": "b"}).rewards == [("cid_0", 1.0)]
    step = env.step({"ann_0": "a", "ben_0": "b"})
    assert list(step.observations) == ["ann_0", "cid_0"]
    step = env.step({"ann_0": "a", "cid_0": "b"})
    assert step.rewards == [("ben_0", 3.0)] and step.is_over


def test_agents_of_a_parallel_env_with_nothing_to_read_are_not_asked():
    def shape(text):
        return {"text": "" if text.startswith("ben_0") else text}

    rounds = [(["ann_0", "ben_0"], {}, [], []), ([], {}, ["ann_0", "ben_0"], [])]
    env = MultiAgentAdapter(RawParallel(["ann_0", "ben_0"], rounds, shape=shape))
    assert list(env.reset(seed=0).observations) == ["ann_0"]
    env.step({"ann_0": "a"})
    assert env.unwrapped.got == [{"ann_0": "a", "ben_0": ""}]
    env = MultiAgentAdapter(RawParallel(["ben_0"], rounds, shape=shape))
    with pytest.raises(EnvContractError, match=r"no observation, but \['ben_0'\]"):
        env.reset(seed=0)


def test_vanishing_and_reviving_agents_are_named():
    env = MultiAgentAdapter(RawParallel(["ann_0", "ben_0"], [(["ann_0"], {}, [], [])]))
    env.reset(seed=0)
    with pytest.raises(EnvContractError, match="dropped 'ben_0'"):
        env.step({"ann_0": "a", "ben_0": "b"})
    rounds = [
        (["ann_0"], {}, ["ben_0"], []),
        (["ann_0", "ben_0"], {}, [], []),
    ]
    env = MultiAgentAdapter(RawParallel(["ann_0", "ben_0"], rounds))
    env.reset(seed=0)
    env.step({"ann_0": "a", "ben_0": "b"})
    with pytest.raises(EnvContractError, match="returned 'ben_0' after its end"):
        env.step({"ann_0": "a"})
    env = MultiAgentAdapter(RawParallel(["dan_0"], []))
    with pytest.raises(EnvContractError, match="'dan_0', which is not one of its"):
        env.reset(seed=0)


def test_a_set_of_agents_has_one_order_in_every_process():
    code = (
        "from multi_toys import RawParallel; from rllib_llm.envs import "
        "MultiAgentAdapter\n"
        "names = {'ben_0', 'ann_0', 'dora_0', 'cid_0'}\n"
        "env = MultiAgentAdapter(RawParallel(set(names), [], possible=names))\n"
        "print(env.possible_agents, list(env.reset(seed=0).observations))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": TESTS_AND_ROOT},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    names = ["ann_0", "ben_0", "cid_0", "dora_0"]
    assert printed == {f"{names} {names}\n"}


def test_only_pettingzoo_envs_with_declared_agents():
    with pytest.raises(EnvContractError, match="GuessNumber; it requires a pettingzoo"):
        MultiAgentAdapter(make_env("guess_number-v0"))
    with pytest.raises(EnvContractError, match="no possible_agents"):
        MultiAgentAdapter(RawParallel([], [], possible=[]))
