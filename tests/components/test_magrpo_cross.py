"""MAGRPO's cross mode against a slow loop over combinations, on made-up games."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest
from component_helpers import advantages_of, trajectory

from rllib_llm.advantages.estimators.combine import AdvantageEstimators
from rllib_llm.advantages.estimators.magrpo_cross import MAX_GAMES
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.errors import ConfigError

CROSS = {"name": "magrpo", "joint": "cross"}


def pay(players):
    """Return each agent's reward in a made-up game, a function of the texts."""
    texts = sorted((p.agent_id, *p.completions) for p in players)
    draws = np.random.default_rng(zlib.crc32(repr(texts).encode()))
    return {p.agent_id: float(draws.random()) for p in players}


def games(rng, tasks=2, rollouts=3, agents=2, turns=1, words=3, replay=pay):
    """Rollouts of games of a few words, each agent rewarded in its last turn."""
    made = []
    for task, rollout in itertools.product(range(tasks), range(rollouts)):
        players = [
            trajectory(
                task,
                rollout,
                agent,
                np.zeros(turns),
                completions=[f"{task} {rng.integers(words)}" for _ in range(turns)],
            )
            for agent in range(agents)
        ]
        for player in players:
            player.rewards[-1] = pay(players)[player.agent_id]
        made += players
    return TurnTable(made, replay)


def worth(table, one, team):
    """Mean of the team's return over what the others said in equal situations."""
    fits = [
        other
        for other in table.trajectories
        if other.task.group_id == one.task.group_id
        and all(
            a.completions[:-1] == b.completions[:-1]
            for a, b in zip(together(table, one), together(table, other), strict=True)
        )
    ]
    agents = sorted({other.agent for other in fits} - {one.agent})
    samples = [[o for o in fits if o.agent == agent] for agent in agents]
    return np.mean(
        [team(list(pay([one, *met]).values())) for met in itertools.product(*samples)]
    )


def together(table, one):
    return [o for o in table.trajectories if o.episode == one.episode]


@pytest.mark.parametrize("team", ["mean", "sum"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out", "none"])
@pytest.mark.parametrize("agents", [1, 2, 3])
def test_a_text_is_worth_its_mean_over_combinations(agents, baseline, team):
    table = games(np.random.default_rng(agents), agents=agents)
    of_team = {"mean": np.mean, "sum": np.sum}[team]
    worths = np.array([worth(table, one, of_team) for one in table.trajectories])
    expected = worths.copy()
    for i, one in enumerate(table.trajectories):
        others = [
            worths[j]
            for j, other in enumerate(table.trajectories)
            if (other.task.group_id, other.agent) == (one.task.group_id, one.agent)
            and (j != i or baseline == "mean")
        ]
        expected[i] -= 0.0 if baseline == "none" else np.mean(others)
    found = advantages_of(table, **CROSS, team=team, baseline=baseline)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert np.ptp(found) > 0.01
    alike = advantages_of(table, "magrpo", team=team, baseline=baseline)
    assert np.allclose(found, alike) == (agents == 1)


def test_only_rollouts_that_came_the_same_way_meet():
    table = games(np.random.default_rng(0), rollouts=8, turns=2, words=2)
    found = advantages_of(table, **CROSS, baseline="none", discount=0.5)
    own = advantages_of(table, "magrpo", baseline="none", discount=0.5)
    last = table.turn == 1
    expected = [worth(table, one, np.mean) for one in table.trajectories]
    np.testing.assert_allclose(found[last], expected, atol=1e-9)
    np.testing.assert_allclose(found[~last], own[~last], atol=1e-9)
    assert np.abs(found - own)[last].max() > 0.01


def test_agents_without_a_turn_have_fewer_samples():
    """Ann's 'end' ends the game before Ben acts; his message has no effect."""

    def replay(players):
        words = {p.agent_id: p.completions[0] for p in players}
        if words["agent_0"] == "end":
            return {"agent_0": -1.0}
        return dict.fromkeys(words, 1.0 + (words["agent_1"] == "b"))

    def one(rollout, agent, text, reward):
        return trajectory(0, rollout, agent, [reward], completions=[text])

    table = TurnTable(
        [
            one(0, 0, "end", -1.0),
            one(1, 0, "go", 1.0),
            one(1, 1, "a", 1.0),
            one(2, 0, "go", 2.0),
            one(2, 1, "b", 2.0),
        ],
        replay,
    )
    found = advantages_of(table, **CROSS, baseline="none")
    # Ben: (moot + 2 "go") / 3; Ann: over his two texts.
    ben = [(-1 + 1 + 1) / 3, (-1 + 2 + 2) / 3]
    np.testing.assert_allclose(found, [-1.0, 1.5, ben[0], 1.5, ben[1]])


def test_equal_texts_meet_once():
    met = []
    table = games(
        np.random.default_rng(0),
        tasks=1,
        rollouts=6,
        words=2,
        replay=lambda players: met.append(players) or pay(players),
    )
    for one in table.trajectories:  # who read something else is another sample
        one.observations = ["start"]
    advantages_of(table, **CROSS)
    assert len(met) == 4  # two words each


def test_games_that_texts_do_not_decide_are_refused():
    table = games(
        np.random.default_rng(0),
        replay=lambda players: {p.agent_id: 7.0 for p in players},
    )
    with pytest.raises(ConfigError, match="but 7 when played again.*Seed the env"):
        advantages_of(table, **CROSS)


def test_too_many_combinations_are_refused_before_any_is_played():
    def replay(players):
        raise AssertionError

    table = games(np.random.default_rng(0), 1, rollouts=65, replay=replay)
    with pytest.raises(ConfigError, match=r"4225 games.*65 x 65.*smaller group_size"):
        advantages_of(table, **CROSS)
    assert MAX_GAMES == 64**2


def test_it_needs_games_that_can_be_played_again():
    table = games(np.random.default_rng(0), replay=None)
    with pytest.raises(ConfigError, match="only GRPO can do that. Use joint='aligned'"):
        advantages_of(table, **CROSS)
    assert (
        AdvantageEstimators([CROSS]).replays_games()
        and not AdvantageEstimators(["magrpo"]).replays_games()
    )
    with pytest.raises(ConfigError, match="joint is 'crossed'"):
        AdvantageEstimators([{**CROSS, "joint": "crossed"}]).try_out()
