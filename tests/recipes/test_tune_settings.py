"""The tune section: schedulers, the settings they may change, and metric names."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

from rllib_llm.errors import ConfigError
from rllib_llm.recipes import recipe_from_dict, search_spaces
from rllib_llm.recipes.search_spaces import has_space
from rllib_llm.recipes.tune_settings import num_trials

RETURN = "env_runners/episode_return_mean"
BASE = {
    "algo": "GRPO",
    "env": "bandit_probe-v0",
    "rollouts": {"episodes_per_iteration": 16, "group_size": 4},
    "training": {"lr": {"loguniform": [1e-5, 1e-3]}},
    "stop": {"training_iteration": 8},
}
ORDER = {"metric": RETURN, "mode": "max"}


def recipe(tune, **fields):
    return recipe_from_dict({**BASE, **fields, "tune": tune})


def pbt(**settings):
    scheduler = {"name": "pbt", "perturbation_interval": 2, **settings}
    return {"num_samples": 4, "scheduler": scheduler, **ORDER}


def test_schedulers_get_their_defaults():
    asha = recipe({"scheduler": "asha", **ORDER}).tune
    assert asha["scheduler"]["reduction_factor"] == 4 and asha["num_to_keep"] == 2
    population = recipe(pbt(quantile_fraction=0.5)).tune
    assert population["scheduler"]["quantile_fraction"] == 0.5
    assert population["num_to_keep"] == 4  # a checkpoint must outlive being copied
    assert recipe({**pbt(), "num_to_keep": None}).tune["num_to_keep"] is None


@pytest.mark.parametrize(
    "tune, message",
    [
        ({"num_samples": 0}, r"tune\.num_samples=0 must be a whole number"),
        ({"num_sample": 2}, "Did you mean 'num_samples'"),
        ({"scheduler": "ash", **ORDER}, "Did you mean 'asha'"),
        ({"scheduler": {"grace": 1}, **ORDER}, "must be one of asha, pbt"),
        (
            {"scheduler": {"name": "asha", "grace_perod": 1}, **ORDER},
            "Did you mean 'grace_period'",
        ),
        (
            {"scheduler": {"name": "asha", "grace_period": 9}, **ORDER},
            r"grace_period=9 must be at most 8, the iterations of the longest",
        ),
        (
            {"scheduler": {"name": "asha", "reduction_factor": 1}, **ORDER},
            "must be a number > 1",
        ),
        ({"scheduler": "asha", "mode": "max"}, r"tune\.metric is missing"),
        ({"scheduler": "asha", "metric": RETURN}, r"tune\.mode is missing"),
        (pbt(quantile_fraction=0.6), r"must be a number in \[0, 0\.5\]"),
        (pbt(perturbation_interval=0), "must be a whole number >= 1"),
        ({**pbt(), "num_samples": 1}, "population of one"),
        ({**pbt(), "max_concurrent_trials": 2}, "at least the population of 4"),
        ({**pbt(), "num_to_keep": 2}, "at least 4"),
    ],
)
def test_impossible_settings_are_errors(tune, message):
    with pytest.raises(ConfigError, match=message):
        recipe(tune)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"seed": {"grid": [0, 1]}}, "one run per seed"),
        ({"language_model": {"tiny": {"hidden_size": {"choice": [32, 64]}}}}, "asha"),
        ({"rollouts": {"group_size": {"choice": [4, 8]}}}, r"change rollouts\.group"),
        ({"training": {"lr": 1e-4}}, "at least one setting with a search space"),
        ({"training": {"weight_decay": {"uniform": [0, 1]}}}, "training.lr, "),
        ({"training": {"ref_kl_coeff": {"choice": [0, 0.1]}}}, "must not contain 0"),
        (
            {"training": {"ref_kl_coeff": {"choice": [1, 2]}, "ref_kl_target": 0.1}},
            "which adapts it",
        ),
    ],
)
def test_pbt_rejects_settings_stored_in_checkpoints(fields, message):
    with pytest.raises(ConfigError, match=message):
        recipe(pbt(), **fields)
    assert recipe({"scheduler": "asha", **ORDER}, seed={"grid": [0, 1]}).has_search


def test_asha_requires_max_iterations():
    with pytest.raises(ConfigError, match="requires the maximum length of a trial"):
        recipe({"scheduler": "asha", **ORDER}, stop={RETURN: 0.9})


def test_trials_are_counted():
    fields = {
        "seed": {"grid": [0, 1, 2]},
        "training": {
            "lr": {"grid": [1e-4, 1e-3]},
            "loss_terms": [{"name": "kl_cov", "weight": {"choice": [1, 2]}}],
        },
    }
    found = recipe_from_dict({**BASE, **fields, "tune": {"num_samples": 2}})
    assert num_trials(found.tune, found.resolved) == 12
    assert search_spaces.paths_of_spaces(fields) == [
        "seed",
        "training.lr",
        "training.loss_terms.0.weight",
    ]


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"stop": {"training_iterations": 3}}, "Did you mean 'training_iteration'"),
        ({"stop": {"env_runners/succes_rate": 1}}, "Did you mean 'env_runners/success"),
        ({"tune": {"metric": "episode_return_mean"}}, "Did you mean 'env_runners/epis"),
    ],
)
def test_names_are_checked_before_anything_runs(fields, message):
    with pytest.raises(ConfigError, match=message):
        recipe_from_dict({**BASE, **fields}).validate()


def test_spaces_are_found_at_any_depth():
    space = {"grid": [1, 2]}
    for value in (space, {"a": {"b": space}}, [1, [space]], {"a": [{"b": space}]}):
        assert has_space(value)
    assert not has_space({"a": [1, {"b": {"c": 2}}]})


def test_search_spaces_hidden_from_tune_are_rejected():
    mapping = {"policies": ["a", "b"], "policy_mapping_fn": {"grid": ["a", "b"]}}
    found = recipe_from_dict({**BASE, "multi_agent": mapping})
    with pytest.raises(
        ConfigError, match=r"policy_mapping_fn, training\.lr Tune would see 1"
    ):
        found.validate()
    components = {
        "advantage_estimator": {"grid": [[{"name": "group"}], [{"name": "anchor"}]]}
    }
    recipe_from_dict({**BASE, "training": components}).validate()


def test_trials_may_share_a_cpu_and_a_gpu():
    fields = {
        "resources": {"num_cpus_for_main_process": 0.25},
        "env_runners": {"num_env_runners": 2, "num_cpus_per_env_runner": 0.5},
        "learners": {"num_learners": 0, "num_gpus_per_learner": 0.25},
    }
    config = recipe({}, **fields).build_config(search_spaces.first_of)
    asked = config.algo_class.default_resource_request(config).required_resources
    assert asked == {"CPU": 1.25, "GPU": 0.25}


# The schedulers -----------------------------------------------------------------------


def make(found, tmp_path, recorded=()):
    """Return the scheduler with the results reported before."""
    from run_builder import write_trial

    from rllib_llm.recipes.schedulers import make_scheduler

    for name, values in dict(recorded).items():
        rows = [{RETURN: value} for value in values]
        write_trial(tmp_path / f"trial_{name}", {}, rows, done=False)
    scheduler = make_scheduler(found, tmp_path)
    scheduler.set_search_properties(RETURN, "max")
    return scheduler


def trial(name, iteration=None, status="PENDING", **config):
    """Return a stand-in for a Tune trial with the attributes that schedulers read."""
    newest = None
    if iteration is not None:
        newest = SimpleNamespace(metrics={"training_iteration": iteration})
    manager = SimpleNamespace(
        latest_checkpoint_result=newest,
        checkpoint_config=SimpleNamespace(num_to_keep=4),
    )

    class Trial(SimpleNamespace):
        __hash__ = object.__hash__

        def set_status(self, status):
            self.status = status

    return Trial(
        temporary_state=SimpleNamespace(saving_to=None),
        trial_id=name,
        status=status,
        config=config,
        evaluated_params={},
        experiment_tag=name,
        run_metadata=SimpleNamespace(checkpoint_manager=manager),
        checkpoint=f"checkpoint of {name}",
        is_finished=lambda: status in ("TERMINATED", "ERROR"),
    )


def result(iteration, value):
    return {"training_iteration": iteration, RETURN: value}


def test_asha_restores_results_reported_before_a_resume(tmp_path):
    scheduler = {"name": "asha", "grace_period": 2, "reduction_factor": 2}
    found = recipe({"scheduler": scheduler, **ORDER})
    fresh = make(found, tmp_path)
    weak = trial("weak")
    fresh.on_trial_add(None, weak)
    assert fresh.on_trial_result(None, weak, result(2, 0.1)) == "CONTINUE"
    resumed = make(found, tmp_path, recorded={"strong": [0.5, 0.6, 0.7]})
    resumed.on_trial_add(None, trial("strong", 3))
    resumed.on_trial_add(None, weak)
    assert resumed.on_trial_result(None, weak, result(1, 0.1)) == "CONTINUE"
    assert resumed.on_trial_result(None, weak, {"training_iteration": 2}) == "CONTINUE"
    assert resumed.on_trial_result(None, weak, result(2, 0.1)) == "STOP"


def population(tmp_path, recorded=(), **fields):
    return make(recipe(pbt(), **fields), tmp_path, recorded)


def test_pbt_values_stay_in_their_search_spaces(tmp_path):
    scheduler = population(
        tmp_path,
        training={
            "lr": {"loguniform": [1e-5, 1e-3]},
            "entropy_coeff": {"choice": [0.0, 0.01, 0.1]},
            "num_epochs": {"randint": [1, 4]},
        },
    )
    random.seed(0)
    np.random.seed(0)
    seen = {"lr": set(), "entropy_coeff": set(), "num_epochs": set()}
    donor = trial("donor", lr=9e-4, entropy_coeff=0.01, num_epochs=3)
    for _ in range(200):
        config, _ = scheduler._get_new_config(None, donor)
        for key, values in seen.items():
            values.add(config[key])
        donor.config = config
    assert min(seen["lr"]) >= 1e-5 and max(seen["lr"]) == 1e-3  # held at its bound
    assert len(seen["lr"]) > 20
    assert seen["entropy_coeff"] == {0.0, 0.01, 0.1}
    assert seen["num_epochs"] == {1, 2, 3}


class Controller(SimpleNamespace):
    """Stand-in for Tune's controller."""

    search_alg = None

    def get_trials(self):
        return self.trials

    def get_live_trials(self):
        return [t for t in self.trials if not t.is_finished()]


def test_resumed_pbt_restores_its_state(tmp_path):
    recorded = {"a": [0.1, 0.2, 0.3, 0.4], "b": [0.1, 0.2, 0.3], "c": [0.5] * 8}
    scheduler = population(tmp_path, recorded)
    members = [
        trial("a", 4, lr=1e-4),
        trial("b", 3, lr=1e-4),
        trial("c", 8, "TERMINATED", lr=1e-4),
    ]
    controller = Controller(trials=members)
    for member in members:
        scheduler.on_trial_add(controller, member)
    a, b = (scheduler._trial_state[m] for m in members[:2])
    assert (a.last_train_time, a.last_score) == (4, 0.4)
    assert (b.last_train_time, b.last_score) == (2, 0.2)
    # a waits at iteration 4, as it did; b must get there first.
    assert [m.status for m in members] == ["PAUSED", "PAUSED", "TERMINATED"]
    assert scheduler.choose_trial_to_run(controller) is members[1]
    assert scheduler.on_trial_result(controller, members[1], result(3, 0)) == "CONTINUE"
    scheduler._checkpoint_or_exploit(members[0], controller, [members[0]], [])
    assert a.last_checkpoint == "checkpoint of a"


def test_pbt_continues_after_a_trial_ends_early(tmp_path):
    scheduler = population(tmp_path)
    members = [trial(name, lr=1e-4) for name in "abc"]
    controller = Controller(trials=members)
    for member in members:
        scheduler.on_trial_add(controller, member)
    for member in members[:2]:
        assert scheduler.on_trial_result(controller, member, result(2, 0)) == "PAUSE"
        member.status = "PAUSED"
    members[2].status = "RUNNING"
    assert scheduler.choose_trial_to_run(controller) is None  # a and b wait for c
    members[2].is_finished = lambda: True
    scheduler.on_trial_complete(controller, members[2], result(1, 1.0))
    assert scheduler.choose_trial_to_run(controller) is members[0]
    members[0].status = "RUNNING"
    assert scheduler.on_trial_result(controller, members[0], result(3, 0)) == "CONTINUE"
    assert scheduler.on_trial_result(controller, members[0], result(4, 0)) == "PAUSE"
