"""A bandit with several arms."""

import numpy as np
import pytest

from rllib_llm.envs import check_env, make_env
from rllib_llm.envs.bandit import ARMS


def test_the_best_button_gives_most_and_ends_a_success():
    env = make_env("bandit-v0", {"arms": 3, "best": 1.0, "other": 0.0})
    text, _ = env.reset(seed=0)
    assert text.startswith("Buttons: red blue green. Each gives 1 or 0")
    best = env.best_arm
    wrong = (best + 1) % 3
    text, reward, *_, info = env.step(f"press {ARMS[wrong]}")
    assert (text, reward) == (f"{ARMS[wrong]} gave 0.", 0.0)
    assert info["metrics"]["regret"] == 1.0
    for _ in range(8):
        text, reward, terminated, truncated, info = env.step(f"press {ARMS[best]}")
        assert (text, reward) == (f"{ARMS[best]} gave 1.", 0.1)
        assert not terminated and not truncated and info["metrics"]["regret"] == 0.0
    *_, truncated, info = env.step(f"I press {ARMS[best].upper()}, press {ARMS[best]}")
    assert truncated and info["success"] is True


def test_a_button_that_does_not_exist_is_invalid():
    env = make_env("bandit-v0", {"arms": 2})
    env.reset(seed=0)
    assert env.step("press green")[4]["invalid_action"]
    assert env.presses.sum() == 0


def test_payouts_have_their_chances():
    env = make_env("bandit-v0", {"max_turns": 64, "best": 0.7, "other": 0.3})
    given, presses = np.zeros(2), np.zeros(2)
    for seed in range(60):
        env.reset(seed=seed)
        for turn in range(64):
            env.step(f"press {ARMS[turn % 5]}")
        is_best = np.arange(5) == env.best_arm
        for side, chosen in enumerate((is_best, ~is_best)):
            given[side] += env.given[chosen].sum()
            presses[side] += env.presses[chosen].sum()
    # Standard errors: 0.017 and 0.008.
    assert given / presses == pytest.approx([0.7, 0.3], abs=0.05)


def test_check_env_finds_nothing():
    report = check_env("bandit-v0")
    assert report.ok, str(report)
    # UCB1 on ten presses; random presses end with the best button in a fifth.
    assert 0.5 < report.measurements["expert_success"] < 1.0
