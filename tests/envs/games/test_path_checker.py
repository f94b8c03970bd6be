"""Path checker: observations, true and false replies, and the experts."""

import numpy as np
import pytest

from rllib_llm.envs import MultiAgentAdapter, make_env
from rllib_llm.envs.one_player import OnePlayer
from rllib_llm.envs.transcript import expert_policy, play

EDGE = "path right right down down"


def grid(walls=((0, 1),), **options):
    env = MultiAgentAdapter(
        make_env("path_checker-v0", {"size": 3, "walls": 1, **options})
    )
    env.reset(seed=0)
    env.unwrapped.walls = set(walls)
    return env


def test_ok_is_graded_by_the_walls():
    for walls, right in ((((0, 1),), False), (((1, 1),), True)):
        env = grid(walls)
        step = env.step({"planner_0": EDGE})
        assert step.observations["checker_0"].startswith(
            f"Walls (row column): {walls[0][0] + 1} {walls[0][1] + 1}. planner_0: path"
        )
        step = env.step({"checker_0": "ok"})
        assert step.is_over and step.success is right
        assert dict(step.rewards) == (
            {"planner_0": 1.0, "checker_0": 1.0} if right else {}
        )
        assert step.metrics == {"attempts": 1.0}


def test_a_named_wall_is_passed_on_and_another_path_asked_for():
    env = grid()
    env.step({"planner_0": EDGE})
    step = env.step({"checker_0": "wall 1 2"})
    assert step.observations == {"planner_0": "checker_0: wall 1 2. Another path?"}
    game = env.unwrapped
    plan = game.expert_action("planner_0", np.random.default_rng(0))
    assert plan == "path down down right right"
    step = env.step({"planner_0": plan})
    assert step.observations["checker_0"].startswith("planner_0: path down down")
    assert env.step({"checker_0": "ok"}).success is True


def test_the_planner_sees_no_walls():
    env = make_env("path_checker-v0")
    texts = set()
    for seed in range(20):
        env.reset(seed=seed)
        texts.add(env.observe("planner_0")["text"])
    assert len(texts) == 1


def test_attempts_run_out():
    env = grid(attempts=2)
    for _ in range(2):
        env.step({"planner_0": EDGE})
        step = env.step({"checker_0": "wall 1 2"})
    assert step.is_over and step.success is False and step.rewards == []
    assert step.stop_reason == "terminated"


def test_false_claims_never_stop_the_expert_planner():
    env = grid(attempts=8)
    game, rng = env.unwrapped, np.random.default_rng(0)
    for cell in ("1 2", "2 1", "2 2", "3 2", "2 3"):
        plan = game.expert_action("planner_0", rng)
        assert game.parse("planner_0", plan) is not None
        env.step({"planner_0": plan})
        env.step({"checker_0": f"wall {cell}"})


@pytest.mark.parametrize(
    ("agent", "text", "action"),
    [
        ("planner_0", EDGE, EDGE.split()[1:]),
        ("planner_0", "path up, or " + EDGE, EDGE.split()[1:]),
        ("planner_0", "path right right down", None),  # short of the goal
        ("planner_0", "path left right right right down down", None),  # outside
        ("planner_0", "right right down down", None),
        ("planner_0", "path " + "right left " * 30, None),
        ("checker_0", "ok", "ok"),
        ("checker_0", "not ok: wall 2 3", (1, 2)),
        ("checker_0", "wall 4 1", None),
        ("checker_0", "wall 0 1", None),
        ("checker_0", "looks fine", None),
    ],
)
def test_parsing(agent, text, action):
    assert grid().unwrapped.parse(agent, text) == action


@pytest.mark.parametrize(
    "options", [{"size": 3, "walls": 2}, {"size": 6, "walls": 8, "attempts": 6}]
)
def test_experts_agree_at_every_size(options):
    env = OnePlayer(
        MultiAgentAdapter(make_env("path_checker-v0", {"max_turns": 24, **options}))
    )
    for seed in range(30):
        split = {"split": ("train", "test")[seed % 2]}
        assert play(env, seed, expert_policy, options=split).success is True
