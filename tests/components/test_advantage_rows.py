"""Advantages per turn: the gradient does not depend on the layout of rows."""

from __future__ import annotations

import numpy as np
import pytest
from component_helpers import ADVANTAGE_ESTIMATORS, spec
from team_helpers import (
    Pair,
    Run,
    assert_near,
    batches,
    gradients,
    make_team_learner,
    set_group_advantages,
    team_config,
)

from rllib_llm import GRPOConfig
from rllib_llm.advantages.estimators.combine import AdvantageEstimators
from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes

SETTINGS = {
    "broadcast": {"leader": "ann"},
    "hierarchical": {"proposer": "ann"},
    "turn": {"boundary": 1},
}


def config(name="group", **rollouts):
    """Two agents of one policy: its gradient has the advantages of all turns."""
    return team_config(
        Pair,
        GRPOConfig,
        policies=("team",),
        mapping="team",
        rollouts={"group_size": 4, "episodes_per_iteration": 8, **rollouts},
        training={
            "advantage_estimator": [spec(name, **SETTINGS.get(name, {}))],
            "drop_zero_variance_groups": False,
        },
    )


@pytest.fixture(scope="module")
def episodes():
    return Run(config()).sample(2)


@pytest.fixture(scope="module")
def learners():
    """One that merges rows, and one with a row per turn; the weights are the same."""
    made = [config(row_per_turn=per_turn) for per_turn in (False, True)]
    for each in made:
        each.validate()
    return [make_team_learner(each) for each in made]


@pytest.mark.parametrize("name", ADVANTAGE_ESTIMATORS)
def test_merged_rows_and_rows_per_turn_agree(name, episodes, learners):
    set_group_advantages(config(name), episodes)
    merged, per_turn = (gradients(each, episodes)["team"] for each in learners)
    assert any(float(g.abs().max()) > 1e-4 for g in merged.values())
    assert_near(merged, per_turn)


def test_the_rows_differ(episodes, learners):
    set_group_advantages(config(), episodes)
    merged, per_turn = (batches(each, episodes)["team"] for each in learners)
    assert len(merged[columns.INPUT_IDS]) < len(per_turn[columns.INPUT_IDS])
    assert merged["loss_mask"].sum() == per_turn["loss_mask"].sum()


@pytest.mark.parametrize("name", ["anchor", "magrpo", "return", "turn"])
def test_each_token_has_the_advantage_of_its_turn(name, episodes, learners):
    set_group_advantages(config(name), episodes)
    parts = [part for episode in episodes for part in agent_episodes(episode)]
    differ = 0
    for learner in learners:
        data = batches(learner, episodes)["team"]
        for row, index in enumerate(data[columns.EPISODE_INDEX]):
            advantages = np.atleast_1d(episode_data(parts[int(index)]).advantage)
            differ += len(set(advantages.tolist())) > 1
            mask = np.asarray(data["loss_mask"][row])
            turns = np.asarray(data[columns.TURN_IDS][row])[mask]
            expected = advantages[
                turns % len(advantages)
            ]  # one for all turns, or one each
            got = np.asarray(data["advantages"][row])[mask]
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)
    assert differ > 0


def test_policies_may_have_their_own_estimators():
    def of(advantages):
        return {"training": {"advantage_estimator": advantages}}

    made = team_config(
        Pair,
        GRPOConfig,
        policies={"a": of("magrpo"), "b": of([{"name": "group", "by": "turn"}])},
        rollouts={"group_size": 4, "episodes_per_iteration": 8},
    )
    run = Run(made, learner=False)
    assert made.uses_components and made.compares_rollouts
    played = run.sample(2)
    set_group_advantages(made, played)
    found = SampledEpisodes(played)
    table = found.table()
    expected = {
        "a": table.split(AdvantageEstimators(["magrpo"]).advantages(table)),
        "b": table.split(
            AdvantageEstimators([{"name": "group", "by": "turn"}]).advantages(table)
        ),
    }
    assert {one.module_id for one in found.trajectories} == {"a", "b"}
    for i, one in enumerate(found.trajectories):
        mine = expected[one.module_id][i]
        given = np.broadcast_to(found.data[i].advantage, len(mine))
        np.testing.assert_allclose(given, mine)
