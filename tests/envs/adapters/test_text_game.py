"""Shared behaviour of all game adapters, on a game defined here."""

from __future__ import annotations

import pytest
from pettingzoo.test import api_test, seed_test

from rllib_llm.data.types import StopReason
from rllib_llm.envs import make_env
from rllib_llm.envs.adapters.text_game import TextGame
from rllib_llm.envs.adapters.words import find_word, list_words
from rllib_llm.envs.multi_agent_adapter import MultiAgentAdapter
from rllib_llm.errors import ConfigError, EnvContractError


class Race(TextGame):
    """Two players add 1 or 2 to a hidden start; who reaches 6 first wins."""

    def _load(self, options):
        return ["player_0", "player_1"]

    def _begin(self, rng):
        self.sum, self.mover, self.asked = int(rng.integers(2)), 0, 0

    def _next_agent(self):
        return None if self.sum >= 6 else f"player_{self.mover}"

    def _prompt(self, agent):
        self.asked += 1
        return f"{agent}: {self.sum}"

    def _move(self, agent, text):
        if text not in ("1", "2"):
            return None
        self.sum += int(text)
        self.mover = 1 - self.mover
        if self.sum < 6:
            return {}
        return {agent: 1.0, f"player_{self.mover}": -1.0}


def play(env, answers, seed=0):
    """Give the answers in turn; return rewards by agent and the last infos."""
    env.reset(seed=seed)
    returns = dict.fromkeys(env.possible_agents, 0.0)
    answers = iter(answers)
    infos = {}
    for agent in env.agent_iter():
        _, reward, terminated, truncated, info = env.last()
        returns[agent] += reward
        infos[agent] = info
        over = terminated or truncated
        env.step(None if over else next(answers))
    return returns, infos


def test_pettingzoo_tests_pass():
    api_test(Race(), num_cycles=50)
    seed_test(Race)


def test_rewards_ends_and_metrics():
    env = Race()
    returns, infos = play(env, ["2"] * 9, seed=1)
    assert {*returns.values()} == {1.0, -1.0}
    winner = max(returns, key=returns.get)
    for info in infos.values():
        assert info["stop_reason"] is StopReason.TERMINATED
        assert info["success"] is None
        assert info["metrics"][f"{winner}_won"] == 1.0
        assert info["metrics"]["draw"] == 0.0
        assert sum(info["metrics"].values()) == 1.0


def test_a_game_that_is_over_at_once_is_refused():
    class Over(Race):
        def _begin(self, rng):
            super()._begin(rng)
            self.sum = 6

    with pytest.raises(EnvContractError, match="Over is over before the first move"):
        Over().reset(seed=0)


def test_a_text_is_made_once_per_turn_and_observe_repeats_it():
    env = Race()
    env.reset(seed=0)
    texts = {env.observe("player_0")["text"] for _ in range(3)}
    assert texts == {f"player_0: {env.sum}"}
    assert env.asked == 1
    env.step("1")
    assert env.asked == 2
    assert env.observe("player_0")["text"] in texts


def test_an_invalid_answer_forfeits_the_game():
    returns, infos = play(Race(), ["1", "nonsense"])
    assert returns == {"player_0": 0.5, "player_1": -1.5}
    assert infos["player_1"]["invalid_action"] is True
    assert {info["stop_reason"] for info in infos.values()} == {StopReason.PARSE_ERROR}


def test_error_allowance_counts_errors_in_a_row():
    env = Race({"error_allowance": 1, "invalid_action_reward": -3.0})
    env.reset(seed=0)
    env.step("?")
    assert env.agent_selection == "player_0"
    assert env.infos["player_0"]["invalid_action"] is True
    assert env.observe("player_0")["text"].startswith("No legal move.")
    assert set(env.rewards.values()) == {0.0}
    env.step("1")  # forgiven
    for _ in range(2):
        assert env.agent_selection == "player_1"
        env.step("?")
    assert env.rewards == {"player_0": 0.5, "player_1": -3.0}
    assert all(env.terminations.values())


def test_max_turns_truncates_and_counts_invalid_answers():
    env = Race({"max_turns": 3, "error_allowance": 5})
    _, infos = play(env, ["1", "?", "?"])
    assert {info["stop_reason"] for info in infos.values()} == {StopReason.MAX_TURNS}
    assert all(info["metrics"] == {} for info in infos.values())


def test_joint_env_sees_everything():
    env = MultiAgentAdapter(Race({"max_turns": 2}))
    step = env.reset(seed=0, options={"split": "test"})
    assert list(step.observations) == ["player_0"]
    step = env.step({"player_0": "1"})
    step = env.step({"player_1": "1"})
    assert step.is_over
    assert step.truncated == ("player_0", "player_1")
    # Only the one to move has something new to read.
    assert list(step.final_observations) == ["player_0"]
    assert step.stop_reason == "max_turns"

    env = MultiAgentAdapter(Race())
    step = env.reset(seed=0)
    step = env.step({"player_0": "none"})
    assert step.is_over
    assert sorted(step.rewards) == [("player_0", -1.5), ("player_1", 0.5)]
    assert step.stop_reason == "parse_error"


class RewardedRace(Race):
    """A race in which every move has a reward of 0.25."""

    def _move(self, agent, text):
        granted = super()._move(agent, text)
        if granted is None:
            return None
        return {**granted, agent: granted.get(agent, 0.0) + 0.25}


def test_rewards_on_the_way_count_once():
    env = RewardedRace()
    returns, _ = play(env, ["1"] * 9, seed=0)
    joint = MultiAgentAdapter(RewardedRace())
    step = joint.reset(seed=0)
    given_rewards = dict.fromkeys(returns, 0.0)
    moves = 0
    while not step.is_over:
        step = joint.step(dict.fromkeys(step.observations, "1"))
        moves += 1
        for agent, reward in step.rewards:
            given_rewards[agent] += reward
    assert given_rewards == returns
    assert sum(given_rewards.values()) == 0.25 * moves
    assert moves >= 5


def test_same_seed_same_game_and_streams_go_on():
    def starts(env, seeds):
        found = []
        for seed in seeds:
            env.reset(seed=seed)
            found.append(env.sum)
        return found

    assert starts(Race(), [5] + [None] * 20) == starts(Race(), [5] + [None] * 20)
    assert len(set(starts(Race(), [5] + [None] * 20))) == 2


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"max_turn": 3}, "max_turns"),
        ({"max_turns": 0}, "max_turns"),
        ({"max_turns": None}, "max_turns"),
        ({"error_allowance": -1}, "error_allowance"),
        ({"error_allowance": True}, "error_allowance"),
        ({"invalid_action_reward": "low"}, "invalid_action_reward"),
        ({"invalid_opponent_reward": float("inf")}, "invalid_opponent_reward"),
    ],
)
def test_bad_options_are_refused(config, words):
    with pytest.raises(ConfigError, match=words):
        Race(config)


@pytest.mark.parametrize("options", [{"split": "exam"}, {"max_turns": 3}])
def test_bad_reset_options_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        Race().reset(seed=0, options=options)


def test_steps_out_of_place_are_refused():
    env = Race()
    with pytest.raises(EnvContractError, match="reset"):
        env.step("1")
    env.reset(seed=0)
    with pytest.raises(EnvContractError, match="player_0.*str"):
        env.step(1)


def test_make_env_takes_the_class():
    assert isinstance(make_env(Race, {"max_turns": 4}), Race)


@pytest.mark.parametrize(
    ("text", "words", "found"),
    [
        ("I bet", ["pass", "bet"], 1),
        ("BET? no: Pass.", ["pass", "bet"], 0),
        ("better", ["pass", "bet"], None),
        ("1-12", ["1-1", "1-12"], 1),
        ("x(1,2) then", ["x(1,1)", "x(1,2)"], 1),
        ("Bxc3", ["bxc3", "Bxc3"], 1),
        ("bxc3", ["bxc3", "Bxc3"], 0),
        ("BXC3", ["bxc3", "Bxc3"], None),
        ("", ["a"], None),
    ],
)
def test_find_word(text, words, found):
    assert find_word(text, words) == found


def test_list_words():
    assert list_words(["a"]) == "a"
    assert list_words(["a", "b", "c"]) == "a, b or c"
    assert list_words(list("abcd"), most=2) == "a, b ... (4 in all)"
