"""FrozenLake: maps, moves, and the exact value of the best policy."""

import functools
import re

import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from rllib_llm.envs.frozen_lake import FrozenLake, mean_optimal_value
from rllib_llm.envs.grid import MOVES, parse_move
from rllib_llm.envs.transcript import expert_policy, play, random_policy


def test_first_message_shows_the_map_and_ends_with_the_format():
    env = FrozenLake()
    prompt, _ = env.reset(seed=0)
    rows = [line.split() for line in prompt.splitlines()[:4]]
    assert rows[0][0] == "P"
    assert rows[3][3] == "G"
    shown = "".join(map("".join, rows))
    assert shown == "".join(env.map).translate(str.maketrans("SFH", "P_O"))
    assert env.format_hint in prompt
    assert len(prompt) < 200


def test_every_message_lists_the_neighbouring_ice():
    env = FrozenLake()
    for seed in range(30):
        prompt, _ = env.reset(seed=seed)
        rows = [line.split() for line in prompt.splitlines()[:4]]
        cells = {"down": rows[1][0], "right": rows[0][1]}
        moves = [move for move, cell in cells.items() if cell == "_"]
        observed = f"row 1 column 1, ice {' '.join(moves)}"
        assert prompt.endswith("\n" + observed)
        assert env.step("go up")[0] == observed


def test_the_goal_is_announced_when_it_is_near():
    transcript = play(FrozenLake(), 0, expert_policy)
    last = transcript.observations[-2]
    assert re.fullmatch(r"row \d column \d, goal (down|right)(, ice [a-z ]+)?", last)


def test_listed_moves_lead_to_the_goal():
    # Depth-first search: new ice first, else the way back.
    env = FrozenLake({"max_turns": 60})
    for seed in range(100):
        text, _ = env.reset(seed=seed)
        done = False
        while not done:
            state = text.splitlines()[-1]
            observed = re.findall(r"(?:goal|ice|back) ([a-z]+)", state)
            text, reward, terminated, truncated, _ = env.step(f"go {observed[0]}")
            done = terminated or truncated
        assert reward == 1.0


def test_visited_ice_is_listed_as_the_way_back_only():
    env = FrozenLake()
    env.reset(seed=1)  # one way on from the start: down
    assert env.map[0][1] == "H"
    text = env.step("go down")[0]
    assert text.startswith("row 2 column 1, ice ") and "up" not in text


def test_moves_agree_with_gymnasium():
    env = FrozenLake()
    for seed in range(20):
        transcript = play(env, seed, random_policy)
        lake = FrozenLakeEnv(desc=env.map, is_slippery=False)
        lake.reset(seed=0)
        codes = {"go left": 0, "go down": 1, "go right": 2, "go up": 3}
        for action, reward in zip(transcript.actions, transcript.rewards, strict=True):
            _, expected, terminated, _, _ = lake.step(codes[action])
            assert reward == expected
        assert terminated == transcript.terminated


@pytest.mark.parametrize("size", [3, 4, 6])
def test_expert_takes_a_shortest_path(size):
    env = FrozenLake({"size": size, "max_turns": 20, "frozen_prob": 0.6})
    for seed in range(40):
        transcript = play(env, seed, expert_policy)
        assert transcript.success
        assert len(transcript.actions) == _shortest(env.map)


def _shortest(rows: list[str]) -> int:
    """Path length by repeated powers of the adjacency matrix."""
    size = len(rows)
    reached = {(0, 0)}
    for moves in range(1, size * size):
        reached |= {
            (r + dr, c + dc)
            for r, c in reached
            for dr, dc in ((0, 1), (1, 0), (0, -1), (-1, 0))
            if 0 <= r + dr < size and 0 <= c + dc < size
            if rows[r + dr][c + dc] != "H"
        }
        if (size - 1, size - 1) in reached:
            return moves
    raise AssertionError("no path")


def test_optimal_value_is_one_without_slipping():
    env = FrozenLake()
    for seed in range(10):
        env.reset(seed=seed)
        assert env.optimal_value() == 1.0


def test_optimal_value_equals_plain_recursion():
    env = FrozenLake({"slippery": True})
    for seed in range(5):
        env.reset(seed=seed)
        table = FrozenLakeEnv(desc=env.map, is_slippery=True).P

        @functools.cache
        def best(state, turns_left, table=table):
            if turns_left == 0:
                return 0.0
            totals = []
            for action in range(4):
                total = 0.0
                for chance, following, reward, done in table[state][action]:
                    later = 0.0 if done else best(following, turns_left - 1)
                    total += chance * (reward + later)
                totals.append(total)
            return max(totals)

        assert env.optimal_value() == pytest.approx(best(0, 12), abs=1e-12)


def test_optimal_value_predicts_the_expert_on_slippery_ice():
    env = FrozenLake({"slippery": True, "max_turns": 30})
    values, solved = [], []
    for seed in range(400):
        solved.append(play(env, seed, expert_policy).success)
        values.append(env.optimal_value())
    values = np.array(values)
    deviation = np.sqrt(np.sum(values * (1 - values))) / len(values)
    assert abs(np.mean(solved) - values.mean()) < 4 * deviation
    randomly = [play(env, seed, random_policy).success for seed in range(400)]
    assert np.mean(randomly) < values.mean() - 4 * deviation


def test_expert_uses_the_last_turn_for_the_goal():
    """With one turn left only a chance to reach the goal at once counts."""
    env = FrozenLake({"slippery": True})
    env.reset(seed=0)
    env._lake.s = 14  # left of the goal
    env.turn = 11
    # Down, right and up may all slide onto the goal; left never does.
    assert env.expert_action(np.random.default_rng(0)) != "go left"
    gains = env._action_values(14, np.zeros(16))
    assert gains == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])


def test_more_turns_never_lower_the_optimal_value():
    env = FrozenLake({"slippery": True, "max_turns": 40})
    env.reset(seed=0)
    values = env._value_table()[:, 0]
    assert np.all(np.diff(values) >= 0)
    assert values[0] == 0
    assert 0 < values[12] < values[40] < 1


def test_mean_optimal_value_averages_held_out_maps():
    config = {"slippery": True}
    env = FrozenLake(config)
    values = []
    for seed in range(5):
        env.reset(seed=seed, options={"split": "test"})
        values.append(env.optimal_value())
    mean = mean_optimal_value(config, seeds=range(5))
    assert mean == pytest.approx(np.mean(values))
    assert 0 < mean < mean_optimal_value({}, seeds=range(5)) == 1.0


def test_slippery_episodes_follow_their_seed():
    config = {"slippery": True}
    first, second = FrozenLake(config), FrozenLake(config)
    for seed in range(30):
        a, b = play(first, seed, random_policy), play(second, seed, random_policy)
        assert a.observations == b.observations


def test_map_statistics_match_gymnasiums_generator():
    env = FrozenLake()
    ours = [sum(env_map(env, seed).count("H") for _ in "1") for seed in range(300)]
    theirs = ["".join(generate_random_map(4, 0.8, seed)) for seed in range(300)]
    expected = np.mean([text.count("H") for text in theirs])
    assert np.mean(ours) == pytest.approx(expected, abs=0.35)


def env_map(env: FrozenLake, seed: int) -> str:
    env.reset(seed=seed)
    return "".join(env.map)


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ("go left", "left"),
        ("I go down, no: Go  UP.", "up"),
        ("go left\ngo right", "right"),
        ("left", None),
        ("going left", None),
        ("go lefty", None),
        ("cargo left", None),
        ("go\nleft", None),
        ("", None),
    ],
)
def test_the_last_move_counts(text, move):
    assert parse_move(text) == move


def test_on_slippery_ice_the_moves_named_safe_never_end_in_a_hole():
    moves, observed = list(MOVES), 0
    for seed in range(40):
        env = FrozenLake({"slippery": True, "max_turns": 40})
        observation, _ = env.reset(seed=seed)
        table = FrozenLakeEnv(desc=env.map, is_slippery=True).P
        state = 0
        safe = re.search(r"safe ([a-z ]+)", observation.splitlines()[-1])
        for index, move in enumerate(moves):
            falls = any(done and not gain for _, _, gain, done in table[state][index])
            named = safe is not None and move in safe.group(1).split()
            assert named == (not falls)
            observed += named
    assert observed


@pytest.mark.parametrize("slippery", [False, True])
@pytest.mark.parametrize("scripted", [expert_policy, random_policy])
def test_thoughts_repeat_what_was_read_and_change_no_move(scripted, slippery):
    options = {"slippery": slippery}
    plain = play(FrozenLake(options), 3, scripted)
    thinking = play(FrozenLake({**options, "thoughts": True}), 3, scripted)
    assert thinking.observations == plain.observations
    assert thinking.rewards == plain.rewards
    for read, reply, move in zip(
        plain.observations, thinking.actions, plain.actions, strict=False
    ):
        assert reply == f"{read.splitlines()[-1]}. {move}"
        assert parse_move(reply) == parse_move(move)
