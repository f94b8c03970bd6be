"""Bad settings of advantage estimators are refused by validate()."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from component_helpers import advantages_of, random_table, trajectory

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.selfplay.self_play import SelfPlayConfig
from rllib_llm.data.turn_table import TurnTable, example_table
from rllib_llm.errors import ConfigError

TINY = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}


def config(env="secret_sum-v0", config_class=GRPOConfig, group_size=4, **training):
    return (
        config_class()
        .environment(env)
        .language_model(tiny=TINY)
        .rollouts(episodes_per_iteration=8, group_size=group_size)
        .training(**training)
    )


@pytest.mark.parametrize(
    ("advantage_estimator", "message"),
    [
        ("grup", "Did you mean 'group'"),
        ([], "advantage_estimator is empty"),
        ({"name": "group", "scal": "none"}, "Did you mean 'scale'"),
        ({"name": "group", "unit": "token"}, "unit is 'token'.*'trajectory'"),
        ({"name": "group", "unit": "turn", "by": "turn"}, "Omit unit"),
        (
            {"name": "group", "unit": "turn", "baseline": "leave_one_out"},
            "unit='turn' with by='agent', baseline='leave_one_out'",
        ),
        ({"name": "anchor", "discount": 1.5}, r"discount is 1.5.*\[0, 1\]"),
        ({"name": "anchor", "similarity": 0.0}, "similarity=0.*e.g. 0.95"),
        ({"name": "anchor", "scale": "std"}, "scale is 'std'"),
        ("turn", "needs 'boundary'"),
        ({"name": "turn", "boundary": 0}, "boundary=0 must be a whole number >= 1"),
        ({"name": "turn", "boundary": 1.0}, "boundary=1.0 must be a whole number"),
        ({"name": "return", "discount": -0.1}, r"discount is -0.1.*\[0, 1\]"),
        ({"name": "return", "baseline": "group"}, "baseline is 'group'"),
        ({"name": "maxrl", "of": "reward"}, "of is 'reward'"),
        ({"name": "magrpo", "team": "max"}, "team is 'max'"),
        ({"name": "magrpo", "discount": 2}, r"gamma is 2.*\[0, 1\]"),
        ({"name": "broadcast", "leader": "alise"}, "Did you mean 'alice_0'"),
        ({"name": "hierarchical", "proposer": "eve"}, "proposer='eve' names no agent"),
        ({"name": "history", "window": 0}, "window=0 must be a whole number"),
        ({"name": "history", "statistic": "p90"}, "statistic is 'p90'"),
        ({"name": "history", "of": "batch"}, "of is 'batch'"),
        ({"name": "group", "weight": "2"}, "weight='2' must be a number"),
    ],
)
def test_bad_estimators_are_refused(advantage_estimator, message):
    with pytest.raises(ConfigError, match=message):
        config(
            advantage_estimator=advantage_estimator, drop_zero_variance_groups=False
        ).validate()


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        ({"name": "whiten", "by": "role"}, "by is 'role'"),
        ({"name": "whiten", "unit": "row"}, "unit is 'row'"),
        ({"name": "clip", "low": 1.0}, "low=1.0, high=5.0: must enclose 0"),
        ({"name": "clip", "weight": 2.0}, "'clip' has no setting 'weight'"),
        ({"name": "weight", "strength": 2.0}, r"strength is 2.0.*\[0, 1\]"),
        ({"name": "weight", "power": 0}, "power is 0.*above 0"),
        ({"name": "weight", "formula": "focal"}, "formula is 'focal'"),
        ({"name": "weight", "by": "agent"}, "by is 'agent'"),
        ({"name": "weight", "by": "info"}, "by='info' with key=''.*Set both"),
        ({"name": "weight", "key": "kind"}, "by='group' with key='kind'"),
        ("discount_turns", "needs 'discount'"),
        ({"name": "discount_turns", "discount": 3}, r"discount is 3.*\[0, 1\]"),
    ],
)
def test_transforms_are_checked(transform, message):
    with pytest.raises(ConfigError, match=message):
        config(advantage_transforms=[transform]).validate()


def test_infos_that_the_example_lacks_are_read_in_training():
    weight = {"name": "weight", "by": "info", "key": "kind"}
    config(advantage_transforms=[weight]).validate()
    with pytest.raises(ConfigError, match="must enclose 0"):
        config(advantage_transforms=[weight, {"name": "clip", "low": 1.0}]).validate()


@pytest.mark.parametrize("advantages", ["return", "history", "per_player"])
def test_zero_variance_groups_stay_where_rollouts_are_not_compared(advantages):
    with pytest.raises(
        ConfigError, match=f"drop_zero.*advantage_estimator \\({advantages}\\).*False"
    ):
        config(advantage_estimator=advantages).validate()
    free = config(
        advantage_estimator=advantages, drop_zero_variance_groups=False, group_size=1
    )
    free.validate()  # no group is needed either
    with pytest.raises(ConfigError, match="group_size=1"):
        config(advantage_estimator="maxrl", group_size=1).validate()


def test_shorthands_belong_to_the_default_estimator():
    with pytest.raises(ConfigError, match="advantage_scale='none' would have no eff"):
        config(advantage_estimator="maxrl", advantage_scale="none").validate()


def test_self_play_accepts_all_estimators():
    game = {"env": "open_spiel/kuhn_poker-v0", "config_class": SelfPlayConfig}
    config(**game, group_size=1, advantage_estimator="per_player").validate()
    with pytest.raises(ConfigError, match="group_size=1"):
        config(**game, group_size=1, advantage_estimator="group").validate()
    with pytest.raises(ConfigError, match="role_decay=0.5 would have no effect"):
        config(**game, advantage_estimator="group", role_decay=0.5).validate()


def test_a_single_agent_has_no_leader():
    with pytest.raises(ConfigError, match="leader='alice' names no agent"):
        advantages = {"name": "broadcast", "leader": "alice"}
        config("guess_number-v0", advantage_estimator=advantages).validate()


@pytest.mark.parametrize("name", ["siblings", "treepo", "treerl"])
def test_trees_need_forks(name):
    lake = {"env": "frozen_lake-v0", "advantage_estimator": ["group", {"name": name}]}
    message = f"'{name}' compares episodes that share turns.*fork is None.*'group'"
    with pytest.raises(ConfigError, match=message):
        config(**lake).validate()
    forked = config(**lake).rollouts(fork={"name": "every_turn", "first": 1})
    forked.validate()
    with pytest.raises(ConfigError, match="scale is 'batch'"):
        trees = {"name": "treepo", "scale": "batch"}
        config(advantage_estimator=trees).validate()


def test_shares_of_success_must_be_ones():
    negative = TurnTable([trajectory(rewards=[-1.0])])
    with pytest.raises(ValueError, match="-1 is negative.*of='success'"):
        advantages_of(negative, "maxrl")
    unsaid = random_table(0)
    for one in unsaid.trajectories:
        one.success = None
    with pytest.raises(ValueError, match="reports no success.*of='return'"):
        advantages_of(unsaid, "maxrl", of="success")


def test_a_leader_is_one():
    table = example_table(["boss_0", "boss_1", "worker_0"])
    with pytest.raises(ValueError, match="leader='boss' names 2 agents"):
        advantages_of(table, "broadcast", leader="boss")


def test_the_example_table_has_the_environments_agents():
    table = example_table(["a_0", "b_0", "c_0"], rollouts=3)
    assert len(table) == 18 and len(np.unique(table.episode)) == 6
    assert {t.agent_id for t in table.trajectories} == {"a_0", "b_0", "c_0"}
    assert all(dataclasses.is_dataclass(t) for t in table.trajectories)
