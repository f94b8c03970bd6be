"""Rewards, filters and curricula, applied to groups before training."""

import asyncio

import numpy as np
import pytest

from rllib_llm.components.registry import COMPONENTS, bind, component
from rllib_llm.data.turn_table import TurnTable, example_table
from rllib_llm.data.types import StopReason, Task
from rllib_llm.errors import ConfigError, RLlibLLMError
from rllib_llm.filters.apply import Filters
from rllib_llm.rewards.combine import Rewards


def trajectories():
    found = example_table().trajectories
    found[1].invalid = [True, False]
    found[2].stop_reason = StopReason.MAX_TOKENS_TURN
    return found


def rewards_of(found):
    return [t.rewards for t in found]


# Rewards -----------------------------------------------------------------------------


def test_rewards_are_the_environments_by_default():
    found, before = trajectories(), rewards_of(trajectories())
    assert not Rewards().changes_anything
    parts = Rewards()(found)
    assert rewards_of(found) == before
    assert parts["environment"].tolist() == sum(before, [])


def test_parts_are_summed_with_their_weights():
    def talks(trajectory, *, per_token=1.0):
        return [per_token * n for n in trajectory.num_tokens]

    found, before = trajectories(), rewards_of(trajectories())
    rewards = Rewards(
        [
            {"name": "environment", "weight": 2.0},
            {"name": "format", "invalid": -1.0, "weight": 0.5},
            {"name": talks, "per_token": 0.1},
        ]
    )
    parts = rewards(found)
    for trajectory, old in zip(found, before, strict=True):
        expected = [
            2.0 * r - 0.5 * bad + 0.1 * n
            for r, bad, n in zip(
                old, trajectory.invalid, trajectory.num_tokens, strict=True
            )
        ]
        assert trajectory.rewards == pytest.approx(expected)
    assert set(parts) == {"environment", "format", "talks"}
    assert parts["format"].sum() == -0.5


def test_a_single_reward_goes_to_the_last_turn_and_may_be_awaited():
    async def late(trajectory):
        await asyncio.sleep(0.001)
        return 3.0

    found, before = trajectories(), rewards_of(trajectories())
    Rewards([late])(found)
    for trajectory, old in zip(found, before, strict=True):
        assert trajectory.rewards == [old[0], old[1] + 3.0]


def test_rewards_are_given_inside_a_running_loop_as_in_notebooks():
    async def late(trajectory):
        await asyncio.sleep(0)
        return 3.0

    async def cell():
        found = trajectories()
        Rewards([late])(found)
        return rewards_of(found)

    alone = trajectories()
    Rewards([late])(alone)
    assert asyncio.run(cell()) == rewards_of(alone)


def test_weights_may_change_from_iteration_to_iteration():
    spec = {"name": "environment", "weight": [[0, 1.0], [10, 0.0]]}
    for iteration, weight in ((0, 1.0), (5, 0.5), (10, 0.0), (99, 0.0)):
        found, before = trajectories(), rewards_of(trajectories())
        Rewards([spec])(found, iteration)
        assert np.allclose(rewards_of(found), weight * np.array(before))


def test_transforms_see_the_sum():
    found = trajectories()
    Rewards(["format"], [{"name": "clip", "low": -0.05, "high": 0.5}])(found)
    flat = np.concatenate(rewards_of(found))
    assert flat.min() == -0.05 and flat.max() == 0.5


def test_a_failing_reward_is_an_error_and_never_zero():
    def broken(trajectory):
        raise ConnectionError("no judge")

    with pytest.raises(RLlibLLMError, match="'broken' failed on seed 0.*no judge"):
        Rewards([broken])(trajectories())

    def unread(trajectory):
        return int("seven")

    with pytest.raises(RLlibLLMError, match="'unread' failed on seed 0.*seven"):
        Rewards([unread])(trajectories())


@pytest.mark.parametrize(
    ("parts", "transforms", "message"),
    [
        (["fromat"], [], "Did you mean 'format'"),
        ([{"name": "format", "invald": 1}], [], "Did you mean 'invalid'"),
        ([{"name": "format", "weight": "much"}], [], "must be a number or pairs"),
        ([{"name": "format", "weight": [[5, 1.0], [0, 0.0]]}], [], "pairs"),
        ([lambda t: [1.0]], [], "per turn"),
        ([lambda t: float("nan")], [], "finite"),
        ([], [{"name": "clip", "low": 1.0}], "must be below"),
        ([], [lambda table: np.zeros(3)], "per turn"),
    ],
)
def test_bad_rewards_are_refused_before_training(parts, transforms, message):
    with pytest.raises(ConfigError, match=message):
        Rewards(parts, transforms).try_out()


# Filters -----------------------------------------------------------------------------


def test_filters_drop_or_mask_and_see_what_is_left():
    seen = []

    def look(table):
        seen.append(len(table))
        return np.ones(len(table), bool)

    filters = Filters(["valid", "overlong", look])
    outcomes, shares = filters(TurnTable(trajectories()))
    assert [v.is_dropped for v in outcomes] == [False, True] + [False] * 6
    assert [v.is_masked for v in outcomes] == [False, False, True] + [False] * 5
    assert seen == [7]
    assert shares == pytest.approx({"valid": 1 / 8, "overlong": 1 / 7, "look": 0.0})


def test_the_effect_may_be_chosen():
    outcomes, _ = Filters([{"name": "overlong", "effect": "drop"}])(
        TurnTable(trajectories())
    )
    assert outcomes[2].is_dropped and not outcomes[2].is_masked


def test_single_turns_may_be_left_out_where_nothing_is_chained(monkeypatch):
    kept = {
        name: COMPONENTS["filter"].get(name) for name in COMPONENTS["filter"].names()
    }
    monkeypatch.setattr(COMPONENTS["filter"], "_items", kept)

    @component("filter", "last-turn-only-in-this-test", effect="turns")
    def last(table):
        return table.turn == 1

    name = "last-turn-only-in-this-test"
    outcomes, shares = Filters([name])(TurnTable(trajectories()))
    assert all(v.masked_turns == {0} for v in outcomes) and shares[name] == 0.5
    with pytest.raises(ConfigError, match="critic's returns"):
        Filters([name], turns_may_be_masked=False).try_out()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "valid", "most_invalid": 2.0}, "must be in"),
        ({"name": "valid", "effect": "msak"}, "Did you mean 'mask'"),
        ({"name": "valid", "weight": 1.0}, "no setting 'weight'"),
        (lambda table: table.returns, "one boolean"),
    ],
)
def test_bad_filters_are_refused(spec, message):
    with pytest.raises(ConfigError, match=message):
        Filters([spec]).try_out()


# Curricula ---------------------------------------------------------------------------


def test_the_horizon_grows_in_phases_and_stays():
    horizon = bind("curriculum", {"name": "horizon", "turns": [2, 5], "every": 3})
    task = Task(group_id=4, rollout=1, seed=9)
    turns = [horizon.call.assign(task, i).max_turns for i in range(8)]
    assert turns == [2, 2, 2, 5, 5, 5, 5, 5]
    with pytest.raises(ConfigError, match="needs 'turns'"):
        bind("curriculum", "horizon")
    with pytest.raises(ConfigError, match="every=0"):
        bind("curriculum", {"name": "horizon", "turns": [1], "every": 0})


def test_tables_follow_their_trajectories():
    table = TurnTable(trajectories())
    assert table.num_turns.tolist() == [2] * 8
    assert np.allclose(table.sum_turns(table.to_go(0.0)), table.returns)
