"""Replay of games with completions of different rollouts."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from rllib_llm.env_runner.agents import as_playable
from rllib_llm.env_runner.replay import Replay, random_episodes
from rllib_llm.envs import MultiAgentTextEnv, Outcome
from rllib_llm.envs.games.dilemma import Dilemma
from rllib_llm.envs.games.secret_sum import SecretSum
from rllib_llm.envs.games.team import Team
from rllib_llm.errors import ConfigError

ONE_ROUND = {"min_rounds": 1, "max_rounds": 1}
VOTE = {
    "task": "copy_probe-v0",
    "task_config": {"max_turns": 1},
    "agents": ["ann_0", "ben_0", "cat_0"],
    "topology": "debate",
    "decide": "vote",
}


def game(env_class, config=None):
    return as_playable(env_class(config or {}))


def plays(env_class, config=None, **kwargs):
    """Return trajectories by task and agent, one per rollout."""
    by_task = {}
    for one in random_episodes(game(env_class, config), **kwargs):
        agents = by_task.setdefault(one.task.group_id, {})
        agents.setdefault(one.agent_id, []).append(one)
    return by_task


@pytest.mark.parametrize(
    ("env_class", "config"),
    [(Dilemma, ONE_ROUND), (Team, VOTE)],
    ids=["dilemma", "vote"],
)
def test_replay_of_a_rollout_gives_its_returns(env_class, config):
    replay = Replay(lambda: game(env_class, config))
    for agents in plays(env_class, config, rollouts=4).values():
        for rollout in zip(*agents.values(), strict=True):
            assert replay(rollout) == {p.agent_id: p.episode_return for p in rollout}


def test_replay_combines_completions_of_different_rollouts():
    replay = Replay(lambda: game(Dilemma, ONE_ROUND))
    agents = plays(Dilemma, ONE_ROUND, tasks=1, rollouts=8)[0]
    payoffs = {"cc": (1, 1), "cd": (0, 5 / 3), "dc": (5 / 3, 0), "dd": (1 / 3, 1 / 3)}
    combined = set()
    for row, column in itertools.product(*agents.values()):
        moves = row.completions[0][0] + column.completions[0][0]
        returns = replay([row, column])
        assert returns == pytest.approx(
            dict(zip(("row_0", "column_0"), payoffs[moves], strict=True))
        )
        combined.add(moves)
    assert combined == set(payoffs) and replay.num_games == 4 and replay.seconds > 0
    replay.forget()
    assert replay.num_games == 0


def test_replay_counts_votes_of_different_rollouts():
    replay = Replay(lambda: game(Team, VOTE))
    agents = plays(Team, VOTE, tasks=1, rollouts=5)[0]
    for players in itertools.product(*agents.values()):
        words = [p.completions[0] for p in players]
        wanted = players[0].observations[0].removeprefix("Say ")
        named = max(words, key=words.count)  # of equally many the first
        assert set(replay(players).values()) == {0.5 * (named == wanted)}


def test_observing_another_agent_within_the_turn_is_refused():
    agents = plays(SecretSum, tasks=1, rollouts=8)[0]
    replay = Replay(lambda: game(SecretSum))
    message = "'bob_0' observed .*says.* in turn 0 of its rollout.*no agent observes"
    with pytest.raises(ConfigError, match=message):
        for players in itertools.product(*agents.values()):
            replay(players)


class Haggle(MultiAgentTextEnv):
    """Both agents name a number at once until they agree, which gives a reward."""

    possible_agents = ["ann_0", "ben_0"]
    simultaneous = True
    max_turns = 9

    def start(self, rng):
        self.numbers = {}

    def prompt_for(self, agent):
        return "Your number?"

    def apply(self, agent, action):
        self.numbers[agent] = action

    def end_round(self):
        agreed = len(set(self.numbers.values())) == 1
        return Outcome(dict.fromkeys(self.numbers, float(agreed)), terminated=agreed)

    def random_action(self, agent, rng):
        return str(rng.integers(2))


def test_a_game_that_continues_is_refused_unless_truncated():
    agents = plays(Haggle, tasks=1, rollouts=8)[0]
    ann, ben = agents.values()
    one = next(p for p in ann if p.completions == ["0"])
    other = next(p for p in ben if p.completions == ["1"])
    assert Replay(lambda: game(Haggle))([one, other]) == {"ann_0": 0.0, "ben_0": 0.0}
    one.task = dataclasses.replace(one.task, max_turns=None)
    with pytest.raises(ConfigError, match="'ann_0' must act again after its 1 turns"):
        Replay(lambda: game(Haggle))([one, other])
    cut = Replay(lambda: game(Haggle), max_turns=1)
    assert cut([one, other]) == {"ann_0": 0.0, "ben_0": 0.0}


def test_agents_without_sampled_completions_are_refused():
    agents = plays(Dilemma, ONE_ROUND, tasks=1)[0]
    with pytest.raises(ConfigError, match="nothing was sampled for 'column_0'"):
        Replay(lambda: game(Dilemma, ONE_ROUND))([agents["row_0"][0]])


def test_random_episodes_need_random_action():
    class Silent(Haggle):
        random_action = MultiAgentTextEnv.random_action

    assert random_episodes(game(Silent)) == []
    played = random_episodes(game(Haggle), tasks=2, rollouts=3)
    assert len(played) == 12 and np.unique([p.episode for p in played]).size == 6
