"""Sokoban: rules, solvability by an independent solver, rewards."""

import numpy as np
import pytest

from rllib_llm.envs.sokoban import Level, Sokoban, draw_level, solve
from rllib_llm.envs.transcript import expert_policy, play, random_policy
from rllib_llm.errors import ConfigError


def _rows(text: str) -> list[list[str]]:
    """The grid's symbols; the legend is the only line with commas."""
    return [line.split() for line in text.splitlines() if "," not in line]


def _solution_length(text: str) -> int | None:
    """Solve the grid as it is shown, by flooding sets of (player, boxes) positions."""
    rows = _rows(text)
    cells = {(r, c): s for r, row in enumerate(rows) for c, s in enumerate(row)}
    goal = frozenset(p for p, s in cells.items() if s in "T*+")
    boxes = frozenset(p for p, s in cells.items() if s in "X*")
    (player,) = (p for p, s in cells.items() if s in "P+")
    floor = {p for p, s in cells.items() if s != "#"}
    layer, seen = {(player, boxes)}, set()
    for moves in range(200):
        if any(b == goal for _, b in layer):
            return moves
        seen |= layer
        following = set()
        for (r, c), b in layer:
            for dr, dc in ((0, 1), (0, -1), (1, 0), (-1, 0)):
                to, far = (r + dr, c + dc), (r + 2 * dr, c + 2 * dc)
                if to not in floor or (to in b and far not in floor - b):
                    continue
                following.add((to, b ^ {to, far} if to in b else b))
        layer = following - seen
        if not layer:
            return None
    return None


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"size": 3},
        {"walls": 3, "depth": 4, "max_turns": 30},
        {"boxes": 2, "depth": 5, "max_turns": 40},
    ],
)
def test_levels_are_solvable_non_trivial_and_solved_optimally(config):
    env = Sokoban(config)
    for seed in range(40):
        prompt, _ = env.reset(seed=seed)
        best = _solution_length(prompt)
        assert best is not None
        assert 1 <= best <= env.max_turns
        assert not env.level.boxes & env.level.targets
        assert len(play(env, seed, expert_policy).actions) == best


def test_retracing_bounds_the_shortest_solution():
    rng = np.random.default_rng(0)
    for _ in range(100):
        level, bound = draw_level(rng, size=4, boxes=1, walls=2, depth=4)
        plan = solve(level)
        assert plan is not None
        assert len(plan) <= bound


def test_the_grid_shows_the_game_after_every_move():
    env = Sokoban({"boxes": 2, "depth": 4, "max_turns": 30})
    for seed in range(20):
        for text in play(env, seed, random_policy).observations[:-1]:
            symbols = [symbol for row in _rows(text) for symbol in row]
            assert len(symbols) == 16
            assert set(symbols) <= set("P+X*T_")
            assert sum(s in "P+" for s in symbols) == 1
            assert sum(s in "X*" for s in symbols) == 2
            assert sum(s in "T*+" for s in symbols) == 2


def _level(*rows: str) -> Level:
    cells = {(r, c): s for r, row in enumerate(rows) for c, s in enumerate(row)}

    def pick(symbols):
        return frozenset(p for p, s in cells.items() if s in symbols)

    (player,) = pick("P+")
    return Level(len(rows), pick("PX_T*+"), pick("T*+"), pick("X*"), player)


def test_pushing_rules():
    level = _level("######", "#PXX_#", "#X___#", "#____#", "#___T#", "######")
    assert level.after("up") is level
    assert level.after("right") is level  # a box behind the box
    pushed = level.after("down")
    assert pushed.player == (2, 1)
    assert (3, 1) in pushed.boxes
    assert pushed.after("down").after("down").player == (3, 1)  # the wall stops it


def test_a_box_in_a_corner_cannot_be_solved():
    level = _level("#####", "#X__#", "#__P#", "#__T#", "#####")
    assert solve(level) is None


def test_deadlocks_run_until_max_turns():
    env = Sokoban()
    env.reset(seed=0)
    env.level = _level("#####", "#X__#", "#__P#", "#__T#", "#####")
    rng = np.random.default_rng(0)
    ends = [env.step(env.expert_action(rng))[2:4] for _ in range(env.max_turns)]
    assert ends == [(False, False)] * 11 + [(False, True)]


def test_box_and_step_rewards():
    env = Sokoban({"box_reward": 1.0, "step_reward": -0.1})
    env.reset(seed=0)
    env.level = _level("#####", "#___#", "#PXT#", "#X_T#", "#####")
    assert env.step("go right")[1] == pytest.approx(0.9)
    assert env.step("go left")[1] == pytest.approx(-0.1)
    env.level = _level("#####", "#___#", "#P*_#", "#__T#", "#####")
    assert env.step("go right")[1] == pytest.approx(-1.1)
    env.level = _level("#####", "#___#", "#PXT#", "#___#", "#####")
    observation, reward, terminated, _, info = env.step("go right")
    assert (observation, terminated, info["success"]) == ("Solved!", True, True)
    assert reward == pytest.approx(1.9)


def test_the_default_reward_is_sparse():
    env = Sokoban()
    for seed in range(20):
        *before, last = play(env, seed, expert_policy).rewards
        assert set(before) <= {0.0}
        assert last == 1.0


def test_directions_name_everything_that_is_not_floor():
    level = Level(
        size=3,
        floor=frozenset({(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1)}),
        targets=frozenset({(2, 0)}),
        boxes=frozenset({(1, 1)}),
        player=(0, 1),
    )
    observed = (
        "P 1 2, X 1 down, T 1 down 1 left of X, # 1 down 1 right, # 2 down 1 right"
    )
    assert level.directions == observed


def _away(cell: tuple[int, int], words: list[str]) -> tuple[int, int]:
    row, column = cell
    for count, word in zip(words[::2], words[1::2], strict=True):
        row += int(count) * {"down": 1, "up": -1}.get(word, 0)
        column += int(count) * {"right": 1, "left": -1}.get(word, 0)
    return row, column


def test_directions_lead_to_what_the_grid_shows():
    grid, directions = Sokoban(), Sokoban({"observation": "directions"})
    for seed in range(20):
        rows = _rows(grid.reset(seed=seed)[0])
        parts = directions.reset(seed=seed)[0].splitlines()[0].split(", ")
        player, box, target = (part.split() for part in parts)
        at = int(player[1]) - 1, int(player[2]) - 1
        assert rows[at[0]][at[1]] in "P+"
        at = _away(at, box[1:])
        assert rows[at[0]][at[1]] == "X"
        at = _away(at, target[1:-2])
        assert rows[at[0]][at[1]] in "T+"


def test_an_unknown_kind_of_observation_is_refused():
    with pytest.raises(ConfigError, match="observation='text'"):
        Sokoban({"observation": "text"}).reset(seed=0)
