"""TextWorld's games; skipped where textworld is not installed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("textworld")

from rllib_llm.envs import make_env
from rllib_llm.envs.adapters.textworld_files import CHALLENGES, game_file
from rllib_llm.envs.adapters.textworld_games import clean_feedback
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import ConfigError

pytestmark = pytest.mark.slow
SMALL = {"games": 2, "level": 2}


def test_banner_prompt_and_status_line_are_left_out():
    feedback = (
        "\n | $$\\$$ |\n\nHey!\n\n\n\n-= Studio =-\nAn exit.\n\n>      -= Studio =-0/1"
    )
    assert clean_feedback(feedback) == "Hey!\n\n-= Studio =-\nAn exit."
    end = "You eat.\n\n\n     *** The End ***\n\nYou scored 1.\n>   -= Studio =-0/5"
    assert clean_feedback(end) == "You eat.\n*** The End ***"


@pytest.mark.parametrize("challenge", CHALLENGES)
def test_experts_win_every_challenge_also_after_mistakes(challenge):
    env = make_env("textworld-v0", {"challenge": challenge, "games": 1})
    for erring in (0.0, 0.3):
        rng = np.random.default_rng(0)

        def policy(env, _, rng=rng, erring=erring):
            if rng.random() < erring:
                return "look"
            return env.expert_action(rng)

        transcript = play(env, 0, policy)
        assert transcript.success is True, str(transcript)
        assert sum(transcript.rewards) == 1.0
        assert "$$" not in transcript.observations[0]
    env.close()


def test_rewards_can_be_score_increases():
    env = make_env(
        "textworld-v0", {"challenge": "cooking", "games": 1, "reward": "score"}
    )
    transcript = play(env, 0, expert_policy)
    assert sum(r > 0 for r in transcript.rewards) > 1
    assert sum(transcript.rewards) == pytest.approx(1.0)
    assert transcript.infos[-1]["metrics"] == {"score": 1.0}
    env.close()


def test_only_possible_commands_reach_the_engine():
    env = make_env("textworld-v0", SMALL)
    env.reset(seed=0)
    for completion in ("save", "quit", "restart", "take the moon", "tw-print"):
        text, _, terminated, _, info = env.step(completion)
        assert text == "That is not possible now." and info["invalid_action"]
        assert not terminated
    assert env.commands == []
    env.step("I should not look. Or should I? LOOK")
    assert env.commands == ["look"]
    env.close()


def test_games_are_made_once_and_are_the_same_elsewhere(tmp_path, monkeypatch):
    settings = {"level": 2}
    first = game_file("coin_collector", settings, "train", 0)
    changed = first.stat().st_mtime_ns
    assert game_file("coin_collector", settings, "train", 0) == first
    assert first.stat().st_mtime_ns == changed
    one = make_env("textworld-v0", {"games": 1, "level": 2})
    observed = str(play(one, 0, expert_policy))
    one.close()
    monkeypatch.setenv("RLLIB_LLM_CACHE", str(tmp_path))
    other = make_env("textworld-v0", {"games": 1, "level": 2})
    assert str(play(other, 0, expert_policy)) == observed
    other.close()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"challenge": "coin_colector"}, "coin_collector"),
        ({"level": 200}, "more than 100 rooms"),
        ({"challenge": "cooking", "level": 3}, "has no option 'level'"),
        ({"challenge_options": {"levle": 3}}, "Did you mean 'level'"),
        ({"games": 0}, "games=0"),
        ({"reward": "dense"}, "reward='dense'"),
    ],
)
def test_impossible_options_are_refused(config, words):
    with pytest.raises(ConfigError, match=words):
        make_env("textworld-v0", config).reset(seed=0)


def test_threads_may_generate_and_play_games_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("RLLIB_LLM_CACHE", str(tmp_path))  # so that games are generated

    def win(seed):
        env = make_env("textworld-v0", {**SMALL, "games": 8})
        transcript = play(env, seed, expert_policy)
        env.close()
        return transcript.success

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(win, range(16)))
