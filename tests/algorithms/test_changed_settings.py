"""Settings changed by a population take effect after a checkpoint's restore."""

from __future__ import annotations

import pytest

from rllib_llm.recipes import recipe_from_dict
from rllib_llm.recipes.tune_settings import MUTABLE

BASE = {
    "algo": "LLMPPO",
    "env": "copy_probe-v0",
    "language_model": {
        "tiny": {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "intermediate_size": 64,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        }
    },
    "generation": {"max_new_tokens": 3, "temperature": 1.0},
    "rollouts": {"episodes_per_iteration": 8},
    "training": {"lr": 1e-3, "critic_lr": 1e-3, "ref_kl_coeff": 0.1},
    "env_runners": {"num_envs_per_env_runner": 8},
    "stop": {"training_iteration": 2},
}
CHANGED = {
    "training": {
        "lr": 5e-3,
        "critic_lr": 2e-3,
        "clip_param": 0.3,
        "entropy_coeff": 0.5,
        "ref_kl_coeff": 0.7,
        "vf_loss_coeff": 0.1,
        "vf_clip_param": 2.0,
        "grad_clip": 3.0,
        "gamma": 0.5,
        "num_epochs": 2,
    },
    "generation": {"temperature": 0.5},
}


def build(changes, algo="LLMPPO"):
    merged = {
        k: {**v, **changes.get(k, {})} for k, v in BASE.items() if type(v) is dict
    }
    return (
        recipe_from_dict({**BASE, **merged, "algo": algo}).build_config().build_algo()
    )


@pytest.mark.ray
def test_settings_are_the_configs_not_the_checkpoints(ray_session, tmp_path):
    listed = {f"{s}.{k}" for s, given in CHANGED.items() for k in given}
    assert listed == set(MUTABLE) - {"training.clip_param_high"}  # GRPO's
    donor = build({})
    donor.train()
    donor.save_to_path(str(tmp_path))
    donor.stop()
    algo = build(CHANGED)
    algo.restore_from_path(str(tmp_path))
    learner, runner = algo.learner_group._learner, algo.env_runner
    for section, settings in CHANGED.items():
        for key, value in settings.items():
            for holder in (algo, learner, runner):
                assert getattr(holder.config, key) == value, f"{section}.{key}"
    gae = next(c for c in learner._learner_connector if type(c).__name__ == "TokenGAE")
    assert gae.settings["default_policy"].gamma == 0.5
    result = algo.train()["learners"]["default_policy"]
    algo.stop()
    assert result["policy_learning_rate"] == 5e-3
    assert result["critic_learning_rate"] == 2e-3
    assert result["curr_entropy_coeff"] == 0.5
    assert result["ref_kl_coeff"] == 0.7


@pytest.mark.ray
def test_an_adapted_coefficient_is_the_checkpoints(ray_session, tmp_path):
    steered = {"training": {"ref_kl_coeff": 0.1, "ref_kl_target": 1e3}}
    donor = build(steered)
    donor.train()  # far below the target: halved
    donor.save_to_path(str(tmp_path))
    donor.stop()
    steered["training"]["ref_kl_coeff"] = 0.9
    algo = build(steered)
    algo.restore_from_path(str(tmp_path))
    assert algo.learner_group._learner._ref_kl_coeffs["default_policy"] == 0.05
    algo.stop()
