"""Environments of pictures that have a counterpart in text."""

from __future__ import annotations

import numpy as np
import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import ConfigError
from rllib_llm.pictures.cells import cell_picture
from rllib_llm.pictures.contract import digest

SYMBOLS = {
    (240, 240, 240): "_",
    (50, 50, 60): "#",
    (60, 200, 80): "T",
    (150, 95, 30): "X",
    (225, 40, 40): "P",
    (200, 60, 220): "+",
    (40, 90, 230): "*",
}


def test_cells_are_squares_of_about_equal_size():
    cells = np.arange(27).reshape(3, 3, 3)
    picture = cell_picture(cells, 7)
    for i in range(7):
        for j in range(7):
            np.testing.assert_array_equal(picture[i, j], cells[i * 3 // 7, j * 3 // 7])


@pytest.mark.parametrize("config", [{}, {"size": 6, "walls": 3, "boxes": 2}])
def test_sokoban_in_pictures_is_the_task_in_text(config):
    config = {"max_turns": 30, **config}
    shown, text = (
        make_env(name, config) for name in ("sokoban_pictures-v0", "sokoban-v0")
    )
    for seed in range(20):
        options = {"split": ("train", "test")[seed % 2]}
        one = play(shown, seed, expert_policy, options=options)
        two = play(text, seed, expert_policy, options=options)
        assert (one.actions, one.rewards) == (two.actions, two.rewards)
        assert len(set(one.observations[1:-1])) <= 1  # nothing but pictures differs
        assert one.success and one.observations[-1] == "Solved!"


def test_levels_are_drawn_cell_by_cell():
    env = make_env(
        "sokoban_pictures-v0", {"size": 5, "walls": 3, "boxes": 2, "pixels": 50}
    )
    seen = set()
    for seed in range(30):
        picture = env.reset(seed=seed)[1]["images"][0]
        assert picture.dtype == np.uint8 and picture.shape == (50, 50, 3)
        for _ in range(6):
            cells = picture[5::10, 5::10]
            rows = [" ".join(SYMBOLS[tuple(map(int, c))] for c in row) for row in cells]
            assert "\n".join(rows) == str(env.level)
            seen |= set("".join(rows))
            action = env.expert_action(np.random.default_rng(seed))
            *_, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                break
            picture = info["images"][0]
    assert seen >= set("_#TXP*")


@pytest.mark.parametrize("side", [2, 3])
def test_a_whole_jigsaw_grows_evenly(side):
    env = make_env("canvas_pictures-v0", {"side": side, "pixels": 32, "max_turns": 9})
    length = 32 // side * side
    for seed in range(10):
        picture = env.reset(seed=seed)[1]["images"][0].astype(int)
        assert picture.shape == (length, length, 3)
        assert not is_even(picture)
        while env.tiles != env.whole:
            before = picture
            a, b = env.parse(action := env.expert_action(None))
            _, _, terminated, _, info = env.step(action)
            if terminated:
                assert "images" not in info
                break
            picture = info["images"][0].astype(int)
            expected = before.copy()
            expected[env._area(a)] = before[env._area(b)]
            expected[env._area(b)] = before[env._area(a)]
            np.testing.assert_array_equal(picture, expected)
        assert is_even(env._picture().astype(int))


def is_even(picture):
    """Return whether red grows to the right and green to the bottom, blue stays."""
    red, green, blue = np.moveaxis(picture, -1, 0)
    grows = (np.diff(red, axis=1) > 0).all() and (np.diff(green, axis=0) > 0).all()
    stays = not np.diff(red, axis=0).any() and not np.diff(green, axis=1).any()
    return grows and stays and len(np.unique(blue)) == 1


@pytest.mark.parametrize("name", ["canvas_pictures-v0", "sokoban_pictures-v0"])
def test_held_out_pictures_are_not_in_training(name):
    env, seen = make_env(name), {}
    for split in ("train", "test"):
        pictures = [
            env.reset(seed=s, options={"split": split})[1]["images"][0]
            for s in range(200)
        ]
        seen[split] = set(map(digest, pictures))
        assert len(seen[split]) > 50
    assert not seen["train"] & seen["test"]


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("canvas_pictures-v0", {"side": 4}),
        ("canvas_pictures-v0", {"pixels": 8}),
        ("sokoban_pictures-v0", {"size": 2}),
        ("sokoban_pictures-v0", {"size": 10, "pixels": 19}),
    ],
)
def test_impossible_pictures_are_refused(name, config):
    with pytest.raises(ConfigError, match=list(config)[-1]):
        make_env(name, config).reset(seed=0)
