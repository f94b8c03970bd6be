"""Trials of recipes by the doctor."""

import pytest
from team_helpers import PairTogether, team_config

from rllib_llm import yaml_io
from rllib_llm.doctor import recipe_trial as doctor
from rllib_llm.doctor.findings import FAIL, OK, WARN
from rllib_llm.doctor.mismatch import mismatch_by_module

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

TINY = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}
RECIPE = {
    "algo": "LLMPPO",
    "env": "copy_probe-v0",
    "language_model": {"tiny": TINY},
    "generation": {"max_new_tokens": 3},
    "rollouts": {"episodes_per_iteration": 64},
    "sft": {"demonstrations": 1000},
    "stop": {"training_iteration": 2},
}


def examine(tmp_path, *overrides, **changes):
    path = tmp_path / "probe.yaml"
    path.write_text(yaml_io.dump({**RECIPE, **changes}))
    findings = list(doctor.examine_recipe(str(path), list(overrides), repr))
    return {f.name: f for f in findings}


def test_a_sound_recipe(tmp_path):
    findings = examine(tmp_path)
    assert list(findings) == [
        "recipe",
        "chat template",
        "prompts",
        "memory estimate",
        "engine",
        "sampling",
        "log-probabilities",
        "iteration",
    ]
    assert {f.status for f in findings.values()} == {OK}, findings
    assert "8 episodes" in findings["sampling"].observed


@pytest.mark.slow
def test_equal_returns_are_a_warning(tmp_path):
    changes = {
        "algo": "GRPO",
        "env": "team_helpers:Alone",
        "env_config": {"max_turns": 1},
        "rollouts": {
            "episodes_per_iteration": 64,
            "group_size": 16,
            "rewards": [{"name": "environment", "weight": 0}],
        },
    }
    finding = examine(tmp_path, **changes)["iteration"]
    assert finding.status == OK and "equal, as is usual" in finding.observed
    finding = examine(tmp_path, "sft.demonstrations=0", **changes)["iteration"]
    assert finding.status == WARN and "equal" in finding.observed and finding.remedy


@pytest.mark.parametrize(
    "override, at, message",
    [
        ("training.lrr=1", "recipe", "Did you mean 'lr'"),
        ("language_model.model=/no/such/model", "recipe", "does not exist"),
        ("generation.max_context_tokens=10", "prompts", "leaves no room"),
    ],
)
def test_failures_end_the_trial(tmp_path, override, at, message):
    findings = examine(tmp_path, override)
    last = list(findings.values())[-1]
    assert last.name == at and last.status == FAIL and message in last.observed


@pytest.mark.slow
def test_short_contexts_are_a_warning(tmp_path):
    findings = examine(
        tmp_path, "generation.max_context_tokens=70", "generation.max_new_tokens=40"
    )
    assert findings["prompts"].status == WARN, findings["prompts"]


def test_mismatch_of_different_weights(tmp_path, monkeypatch):
    """Noise on the Learner's weights shows in the mismatch."""
    import torch

    config = team_config(PairTogether)
    config.validate()
    algo = config.build_algo()
    tasks = config.build_task_source().next_groups(4)
    episodes = algo.play_extra_tasks(tasks, explore=True)
    mismatches = mismatch_by_module(algo, episodes)
    assert (
        set(mismatches) == {"a", "b"}
        and max(g.largest for g in mismatches.values()) < 1e-3
    )
    assert sum(g.tokens for g in mismatches.values()) == sum(
        e.custom_data["llm"].num_sampled for e in episodes
    )
    module = algo.learner_group._learner.module["a"].unwrapped()
    with torch.no_grad():
        for parameter in module.lm.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    noisy = mismatch_by_module(algo, episodes)
    assert noisy["a"].largest > 1e-2
    assert noisy["b"] == mismatches["b"]
    algo.stop()


@pytest.mark.slow
def test_a_mismatch_fails_the_trial(tmp_path, monkeypatch):
    measured = doctor.mismatch_by_module

    def shifted(algo, episodes):
        from dataclasses import replace

        return {m: replace(g, largest=0.5) for m, g in measured(algo, episodes).items()}

    monkeypatch.setattr(doctor, "mismatch_by_module", shifted)
    findings = examine(tmp_path)
    assert findings["log-probabilities"].status == FAIL
    assert (
        "float32" in findings["log-probabilities"].remedy
        and "iteration" not in findings
    )
