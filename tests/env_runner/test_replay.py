"""Games played again with texts of different rollouts: same seed, nothing sampled."""

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
    """Trajectories by task, then agent: one of each rollout."""
    found = {}
    for one in random_episodes(game(env_class, config), **kwargs):
        agents = found.setdefault(one.task.group_id, {})
        agents.setdefault(one.agent_id, []).append(one)
    return found


@pytest.mark.parametrize(
    ("env_class", "config"),
    [(Dilemma, ONE_ROUND), (Team, VOTE)],
    ids=["dilemma", "vote"],
)
def test_a_game_played_again_pays_what_it_paid(env_class, config):
    replay = Replay(lambda: game(env_class, config))
    for agents in plays(env_class, config, rollouts=4).values():
        for rollout in zip(*agents.values(), strict=True):
            assert replay(rollout) == {p.agent_id: p.earned for p in rollout}


def test_texts_meet_that_never_met():
    replay = Replay(lambda: game(Dilemma, ONE_ROUND))
    agents = plays(Dilemma, ONE_ROUND, tasks=1, rollouts=8)[0]
    pays = {"cc": (1, 1), "cd": (0, 5 / 3), "dc": (5 / 3, 0), "dd": (1 / 3, 1 / 3)}
    met = set()
    for row, column in itertools.product(*agents.values()):
        moves = row.completions[0][0] + column.completions[0][0]
        found = replay([row, column])
        assert found == pytest.approx(
            dict(zip(("row_0", "column_0"), pays[moves], strict=True))
        )
        met.add(moves)
    assert met == set(pays) and replay.num_games == 4 and replay.seconds > 0
    replay.forget()
    assert replay.num_games == 0


def test_votes_are_counted_again():
    replay = Replay(lambda: game(Team, VOTE))
    agents = plays(Team, VOTE, tasks=1, rollouts=5)[0]
    for players in itertools.product(*agents.values()):
        words = [p.completions[0] for p in players]
        wanted = players[0].observations[0].removeprefix("Say ")
        named = max(words, key=words.count)  # of equally many the first
        assert set(replay(players).values()) == {0.5 * (named == wanted)}


def test_reading_each_other_within_the_turn_is_an_error():
    agents = plays(SecretSum, tasks=1, rollouts=8)[0]
    replay = Replay(lambda: game(SecretSum))
    message = "'bob_0' was sampled in turn 0 after reading .*says.*nobody reads what"
    with pytest.raises(ConfigError, match=message):
        for players in itertools.product(*agents.values()):
            replay(players)


class Haggle(MultiAgentTextEnv):
    """Both say a number at once, until they say the same; then it is paid."""

    possible_agents = ["ann_0", "ben_0"]
    simultaneous = True
    max_turns = 9

    def start(self, rng):
        self.said = {}

    def prompt_for(self, agent):
        return "Your number?"

    def apply(self, agent, action):
        self.said[agent] = action

    def end_round(self):
        agreed = len(set(self.said.values())) == 1
        return Outcome(dict.fromkeys(self.said, float(agreed)), terminated=agreed)

    def random_action(self, agent, rng):
        return str(rng.integers(2))


def test_a_game_that_goes_on_is_an_error_unless_the_run_cuts_it():
    agents = plays(Haggle, tasks=1, rollouts=8)[0]
    ann, ben = agents.values()
    one = next(p for p in ann if p.completions == ["0"])
    other = next(p for p in ben if p.completions == ["1"])
    assert Replay(lambda: game(Haggle))([one, other]) == {"ann_0": 0.0, "ben_0": 0.0}
    one.task = dataclasses.replace(one.task, max_turns=None)
    with pytest.raises(ConfigError, match="After 1 turns 'ann_0' is asked once more"):
        Replay(lambda: game(Haggle))([one, other])
    cut = Replay(lambda: game(Haggle), max_turns=1)
    assert cut([one, other]) == {"ann_0": 0.0, "ben_0": 0.0}


def test_every_agent_needs_sampled_texts():
    agents = plays(Dilemma, ONE_ROUND, tasks=1)[0]
    with pytest.raises(ConfigError, match="nothing was sampled for 'column_0'"):
        Replay(lambda: game(Dilemma, ONE_ROUND))([agents["row_0"][0]])


def test_a_game_without_random_play_is_not_tried():
    class Silent(Haggle):
        random_action = MultiAgentTextEnv.random_action

    assert random_episodes(game(Silent)) == []
    found = random_episodes(game(Haggle), tasks=2, rollouts=3)
    assert len(found) == 12 and np.unique([p.episode for p in found]).size == 6
