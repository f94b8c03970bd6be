"""BabyAI's levels in text; skipped where minigrid is not installed."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("minigrid")

from minigrid.core.grid import Grid
from minigrid.core.world_object import Ball, Box, Door, Key, Wall

from rllib_llm.envs import make_env
from rllib_llm.envs.adapters.babyai import ACTIONS, describe
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import ConfigError


def test_view_describes_things_with_their_positions():
    grid = Grid(7, 7)
    grid.set(3, 2, Wall())
    grid.set(1, 6, Wall())
    grid.set(0, 6, Wall())  # behind the other one
    grid.set(3, 5, Ball("red"))
    grid.set(2, 4, Key("grey"))
    grid.set(5, 6, Box("purple"))
    grid.set(4, 3, Door("blue", is_locked=True))
    grid.set(6, 0, Ball("green"))
    visible = np.ones((7, 7), dtype=bool)
    visible[6, 0] = False
    assert describe(grid, visible) == [
        "a wall 4 steps forward",
        "a wall 2 steps left",
        "a purple box 2 steps right",
        "a red ball 1 step forward",
        "a grey key 2 steps forward and 1 step left",
        "a locked blue door 3 steps forward and 1 step right",
    ]


def test_words_are_minigrids_actions_in_its_order():
    from minigrid.core.actions import Actions

    assert [a.name for a in Actions] == [
        *("left", "right", "forward", "pickup", "drop", "toggle", "done")
    ]
    env = make_env("babyai-v0")
    env.reset(seed=0)
    direction = env.grid_env.agent_dir
    env.step("I wanted to turn left. So: Turn Right!")
    assert env.grid_env.agent_dir == (direction + 1) % 4
    assert ACTIONS.index("turn right") == Actions.right


@pytest.mark.parametrize(
    "level",
    ["PickupLoc", "PutNextLocal", "OpenRedDoor", "UnlockPickup", "GoToObjMazeS4"],
)
def test_the_bot_solves_levels_also_after_mistakes(level):
    env = make_env("babyai-v0", {"level": f"BabyAI-{level}-v0", "max_turns": 500})
    rng = np.random.default_rng(0)
    for seed in range(3):
        assert play(env, seed, expert_policy).success is True
        env.reset(seed=seed)
        is_over = False
        while not is_over:  # turns do no harm but take time
            erring = rng.random() < 0.2
            completion = "turn left" if erring else env.expert_action(rng)
            _, _, terminated, truncated, info = env.step(completion)
            is_over = terminated or truncated
        assert info["success"] is True


def test_things_are_carried():
    env = make_env("babyai-v0", {"level": "BabyAI-PutNextLocal-v0"})
    transcript = play(env, 0, expert_policy)
    picked = transcript.actions.index("pick up")
    assert "You carry a" in transcript.observations[picked + 1]
    assert "You carry" not in transcript.observations[picked]


def test_rewards_can_be_minigrids():
    env = make_env("babyai-v0", {"reward": "minigrid"})
    transcript = play(env, 3, expert_policy)
    turns = len(transcript.actions)
    assert sum(transcript.rewards) == pytest.approx(1 - 0.9 * turns / 64)
    assert transcript.success is True


def test_a_levels_own_limit_truncates():
    env = make_env("babyai-v0", {"level": "BabyAI-GoToObjS4-v0"})
    transcript = play(env, 0, lambda env, rng: "toggle")
    assert len(transcript.actions) == 16 and transcript.truncated
    assert transcript.infos[-1]["stop_reason"] == "max_turns"
    assert transcript.success is False


def test_other_levels_of_minigrid_have_no_expert():
    env = make_env("babyai-v0", {"level": "MiniGrid-LavaGapS5-v0"})
    assert env.reset(seed=0)[1]["admissible_actions"] == list(ACTIONS)
    with pytest.raises(NotImplementedError, match="LavaGapS5"):
        env.expert_action(np.random.default_rng(0))
    for seed in range(20):  # into the lava, sooner or later
        transcript = play(env, seed, lambda env, rng: env.random_action(rng))
        if transcript.terminated and not transcript.success:
            return
    pytest.fail("nobody fell")


def test_rejected_draws_print_nothing(capsys):
    env = make_env("babyai-v0")
    for seed in range(20):
        env.reset(seed=seed)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"level": "BabyAI-GoToLocl-v0"}, "BabyAI-GoToLocal-v0"),
        ({"level": "FrozenLake-v1"}, "Unknown BabyAI or MiniGrid level"),
        ({"level": 3}, "level=3"),
        ({"reward": "dense"}, "reward='dense'"),
    ],
)
def test_impossible_options_are_refused(config, words):
    with pytest.raises(ConfigError, match=words):
        make_env("babyai-v0", config).reset(seed=0)
