"""Runs whose Learners die are restarted, at most ``tune.max_failures`` times."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import ray
from ray import tune
from side_by_side import flat

from rllib_llm.algorithms.ppo.llm_ppo_learner import LLMPPOTorchLearner
from rllib_llm.distributed import is_first
from rllib_llm.modules.scorer import SCORER_MODULE
from rllib_llm.recipes import recipe_from_dict
from rllib_llm.recipes.tuning import make_tuner
from rllib_llm.runs.checkpoints import newest_checkpoint

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_session")]
# Ray's processes cannot import tests.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

RECIPE = {
    "algo": "LLMPPO",
    "env": "copy_probe-v0",
    "language_model": {
        "tiny": {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}
    },
    "generation": {"max_new_tokens": 3},
    "rollouts": {"episodes_per_iteration": 8, "rewards": ["environment", "scorer"]},
    "training": {"lr": 1e-2},
    "scorer": {"loss": "return", "lr": 1e-2, "minibatch_size": 2},
    "env_runners": {"num_envs_per_env_runner": 8},
    "evaluation": None,
    "learners": {"num_learners": 2},
    "stop": {"training_iteration": 3},
    "tune": {"checkpoint_frequency": 1, "max_failures": 1},
}
DEATHS = "deaths"


class Mortal(LLMPPOTorchLearner):
    """The second Learner dies amid the scorer's third update, unless one has before.

    The policy's third update is over then, and the scorer has made a first step.
    """

    _scorer_steps = 0

    def update_scorer(self, shard, iteration, prior_logit=0.0):
        self._scorer_steps = 0
        return super().update_scorer(shard, iteration, prior_logit)

    def _backward_scorer(self, data):
        deaths = Path(self.config.learner_config_dict[DEATHS])
        self._scorer_steps += 1
        is_amid = self._weights_seq_no == 3 and self._scorer_steps == 2
        if not is_first() and is_amid and not deaths.exists():
            deaths.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._backward_scorer(data)


def state_of(algo):
    """Return weights and optimisers."""
    state = algo.learner_group.get_state()["learner"]
    found = flat({key: state[key] for key in ("rl_module", "optimizer")})
    assert any(SCORER_MODULE in str(key) for key in found)
    return found


def test_a_killed_learner_changes_no_weight_of_the_run(tmp_path):
    recipe = recipe_from_dict({**RECIPE, "name": "mortal"})
    deaths = tmp_path / DEATHS
    config = recipe.build_config()
    config.learners(learner_class=Mortal, learner_config_dict={DEATHS: str(deaths)})
    tuner = make_tuner(recipe, tmp_path, config=config, run_name="run", callbacks=[])
    (result,) = tuner.fit()
    assert deaths.is_file() and result.error is None
    assert result.metrics["training_iteration"] == 3
    # From the checkpoint of the second iteration, not from the start.
    assert result.metrics["iterations_since_restore"] == 1
    errors = (Path(result.path) / "error.txt").read_text()
    assert "Learner 1 of 2 died" in errors and "after weights version 3" in errors
    undisturbed = config.build_algo()
    for _ in range(3):
        undisturbed.train()
    expected = state_of(undisturbed)
    undisturbed.restore_from_path(newest_checkpoint(Path(result.path)))
    assert undisturbed.iteration == 3
    found = state_of(undisturbed)
    undisturbed.stop()
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        # The scorer's mean and deviation are NaN, as no reward normalises them.
        is_float = np.asarray(value).dtype.kind == "f"
        assert np.array_equal(value, found[key], equal_nan=is_float), key


class Starts(dict):
    """Settings of a Trainable that is no algorithm."""

    save_episodes = False


class AlwaysFailing(tune.Trainable):
    """Adds a line to a file whenever it is started, and fails."""

    def setup(self, config):
        with open(config["starts"], "a", encoding="utf-8") as file:
            file.write("started\n")

    def step(self):
        raise RuntimeError("as always")


@pytest.mark.parametrize("max_failures", [0, 1])
def test_a_run_is_restarted_no_more_often_than_allowed(tmp_path, max_failures):
    tune.register_trainable("AlwaysFailing", AlwaysFailing)
    given = {**RECIPE, "name": "failing", "tune": {"max_failures": max_failures}}
    recipe = dataclasses.replace(recipe_from_dict(given), algo="AlwaysFailing")
    starts = tmp_path / "starts"
    config = Starts(starts=str(starts))
    tuner = make_tuner(recipe, tmp_path, config=config, run_name="run", callbacks=[])
    (result,) = tuner.fit()
    assert "as always" in str(result.error)
    assert len(starts.read_text().splitlines()) == max_failures + 1
