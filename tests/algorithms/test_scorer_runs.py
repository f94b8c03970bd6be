"""Runs with a scorer: the policy waits for it; two Learners in processes agree."""

from __future__ import annotations

import itertools
import math
import sys

import pytest
import ray
import torch
from scorer_helpers import scorer_config
from team_helpers import single_config

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.modules.scorer import SCORER_MODULE

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


@pytest.fixture
def sent_by_value():
    """Let Learners in other processes run this module's functions."""
    module = sys.modules[__name__]
    ray.cloudpickle.register_pickle_by_value(module)
    yield
    ray.cloudpickle.unregister_pickle_by_value(module)


def weights_of(learner):
    return {
        module_id: torch.cat(
            [p.detach().flatten() for p in module.unwrapped().parameters()]
        )
        for module_id, module in learner.module.items()
    }


def run_config(config_class, **sections):
    return single_config(
        config_class,
        slots=1,
        rollouts={
            "episodes_per_iteration": 8,
            "group_size": 4,
            "rewards": [{"name": "environment", "weight": 0.0}, "scorer"],
        },
        scorer={"loss": "return", "lr": 1e-2, "warmup_iters": 1},
        **sections,
    )


@pytest.mark.parametrize("config_class", [GRPOConfig, LLMPPOConfig])
def test_the_policy_waits_and_then_learns_from_scores(config_class):
    algo = run_config(config_class).build_algo()
    learner = algo.learner_group._learner
    seen = [weights_of(learner)]
    results = []
    for _ in range(3):
        results.append(algo.train())
        seen.append(weights_of(learner))
    changed = [
        {m for m in after if not torch.equal(before[m], after[m])}
        for before, after in itertools.pairwise(seen)
    ]
    assert changed[0] == {SCORER_MODULE}
    assert changed[2] == {SCORER_MODULE, "default_policy"}
    # Scores are those before the update: a head is 0 at the beginning.
    assert results[0]["reward_parts"]["scorer"] == 0
    assert results[2]["reward_parts"]["scorer"] != 0
    assert results[2]["reward_parts"]["environment"] == 0
    assert results[0]["num_updates_skipped"] == 1
    assert results[0]["learners"][SCORER_MODULE]["score_loss"] > 0
    assert results[0]["scorer"]["num_units"] == 8
    algo.stop()


def test_a_scorer_that_is_not_trained_any_more_reports_no_statistics():
    # A mean of no values is NaN, which the alarm `nan` would take for a loss.
    config = run_config(GRPOConfig)
    algo = config.scorer(iters=1).build_algo()
    first, second = algo.train(), algo.train()
    assert first["learners"][SCORER_MODULE]["score_loss"] > 0
    assert SCORER_MODULE not in second["learners"]
    algo.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("sent_by_value")
def test_two_learners_hold_the_same_scorer():
    # A shipped environment: processes of Learners cannot import those of tests.
    config = scorer_config(loss="outcome", lr=1e-2, warmup_iters=2)
    config.rollouts(episodes_per_iteration=8).learners(num_learners=2)
    config.env_runners(num_envs_per_env_runner=4)
    algo = config.build_algo()
    for _ in range(2):
        result = algo.train()
    answers = algo.learner_group.foreach_learner(weights_of)
    one, other = (answer.get() for answer in answers)
    assert one.keys() == {SCORER_MODULE, "default_policy"}
    assert all(torch.equal(one[m], other[m]) for m in one)
    # It is log 2 before the first step.
    assert 0 < result["learners"][SCORER_MODULE]["score_loss"] < math.log(2) - 0.01
    assert result["scorer"]["num_units"] == 8
    algo.stop()
