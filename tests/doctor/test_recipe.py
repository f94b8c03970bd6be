"""The doctor tries recipes out."""

import pytest
from team_helpers import PairTogether, team_config

from rllib_llm import yaml_io
from rllib_llm.doctor import recipe as doctor
from rllib_llm.doctor.findings import FAIL, OK, WARN
from rllib_llm.doctor.mismatch import largest_gap

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
    found = list(doctor.examine_recipe(str(path), list(overrides), repr))
    return {f.name: f for f in found}


def test_a_sound_recipe(tmp_path):
    found = examine(tmp_path)
    assert list(found) == [
        "recipe",
        "chat template",
        "prompts",
        "memory estimate",
        "sampling",
        "log-probabilities",
        "iteration",
    ]
    assert {f.status for f in found.values()} == {OK}, found
    assert "8 episodes" in found["sampling"].found


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
    found = examine(tmp_path, **changes)["iteration"]
    assert found.status == OK and "equal, as is usual" in found.found
    found = examine(tmp_path, "sft.demonstrations=0", **changes)["iteration"]
    assert found.status == WARN and "equal" in found.found and found.remedy


@pytest.mark.parametrize(
    "override, at, message",
    [
        ("training.lrr=1", "recipe", "Did you mean 'lr'"),
        ("language_model.model=/no/such/model", "recipe", "does not exist"),
        ("generation.max_context_tokens=10", "prompts", "leaves no room"),
    ],
)
def test_mistakes_end_the_examination(tmp_path, override, at, message):
    found = examine(tmp_path, override)
    last = list(found.values())[-1]
    assert last.name == at and last.status == FAIL and message in last.found


@pytest.mark.slow
def test_short_contexts_are_a_warning(tmp_path):
    found = examine(
        tmp_path, "generation.max_context_tokens=70", "generation.max_new_tokens=40"
    )
    assert found["prompts"].status == WARN, found["prompts"]


def test_other_weights_are_seen(tmp_path, monkeypatch):
    """The gap is that of the weights: noise on the Learner's shows."""
    import torch

    config = team_config(PairTogether)
    config.validate()
    algo = config.build_algo()
    tasks = config.build_task_source().next_groups(4)
    episodes = algo.play_extra_tasks(tasks, explore=True)
    gaps = largest_gap(algo, episodes)
    assert set(gaps) == {"a", "b"} and max(g.largest for g in gaps.values()) < 1e-3
    assert sum(g.tokens for g in gaps.values()) == sum(
        e.custom_data["llm"].num_sampled for e in episodes
    )
    module = algo.learner_group._learner.module["a"].unwrapped()
    with torch.no_grad():
        for parameter in module.lm.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    noisy = largest_gap(algo, episodes)
    assert noisy["a"].largest > 1e-2
    assert noisy["b"] == gaps["b"]
    algo.stop()


@pytest.mark.slow
def test_a_disagreeing_engine_fails_the_examination(tmp_path, monkeypatch):
    gap = doctor.largest_gap

    def shifted(algo, episodes):
        from dataclasses import replace

        return {m: replace(g, largest=0.5) for m, g in gap(algo, episodes).items()}

    monkeypatch.setattr(doctor, "largest_gap", shifted)
    found = examine(tmp_path)
    assert found["log-probabilities"].status == FAIL
    assert "float32" in found["log-probabilities"].remedy and "iteration" not in found
