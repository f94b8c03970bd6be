"""docs/metrics.md has exactly the logged keys."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rllib_llm.callbacks import PROGRESS_KEYS
from rllib_llm.callbacks.metric_names import METRICS, check_metric_name
from rllib_llm.callbacks.result_keys import flat_keys
from rllib_llm.errors import ConfigError

ROOT = Path(__file__).parents[2]
SOMETIMES = "Only in some runs"
EVALUATION = re.compile("^evaluation(_before_training)?/(?=env_runners/)")
# What RLlib and Tune report about themselves.
OTHERS = re.compile(
    r"(perf|fault_tolerance|env_runner_group|config|learners/__all_modules__)/.*"
    r"|evaluation/(?!env_runners/).*"
    r"|timers/(restore|synch)_.*env.*"
    r"|learners/<module>/(num_module_steps_trained|num_trainable|module_train).*"
    r"|(done|date|timestamp|pid|hostname|node_ip|trial_id|training_iteration)"
    r"|(time|iterations)_(this_iter_s|total_s|since_restore)"
    r"|num_(training_step_calls_per_iteration|env_steps_sampled_lifetime).*"
)


def documented():
    """Return the documented keys: unconditional and conditional ones."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    keys = {True: set(), False: set()}
    for section in text.split("\n## ")[1:]:
        if section.startswith(("The progress line", "Read from", "Transcripts")):
            continue
        always = not section.startswith(SOMETIMES)
        for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE):
            keys[always].update(re.findall(r"`([^`]+)`", row))
    return keys[True], keys[False]


def matches(key, pattern):
    parts = re.split(r"<\w+>", pattern)
    return re.fullmatch(r"[^/]+".join(map(re.escape, parts)), key) is not None


def normalised(key):
    key = EVALUATION.sub("", key)
    return re.sub(r"^learners/(?!__all)[^/]+", "learners/<module>", key)


@pytest.mark.ray
def test_logged_keys_and_documented_keys_are_the_same(ray_session, config):
    config.evaluation(evaluation_interval=1, evaluation_duration=8)
    algo = config.build_algo()
    result = algo.train()
    algo.stop()
    logged = {normalised(k) for k in flat_keys(result)}
    logged = {k for k in logged if not OTHERS.fullmatch(k)}
    always, sometimes = documented()
    unknown = {k for k in logged if not any(matches(k, p) for p in always | sometimes)}
    assert not unknown, f"not in docs/metrics.md: {sorted(unknown)}"
    absent = {p for p in always if not any(matches(k, p) for k in logged)}
    assert not absent, f"documented but not logged: {sorted(absent)}"


def test_conditional_keys_exist_in_the_code():
    _, sometimes = documented()
    sources = "".join(
        p.read_text(encoding="utf-8") for p in (ROOT / "rllib_llm").rglob("*.py")
    )
    # Logged by its PPO loss, and names of its episode metrics.
    rllibs_own = {"vf_loss", "vf_loss_unclipped", "episode_return_mean", "num_episodes"}
    for key in sometimes:
        name = re.sub(r"/?<\w+>", "", key).rsplit("/", 1)[-1]
        assert name in rllibs_own or f'"{name}"' in sources, key


def test_progress_reads_documented_keys():
    always, sometimes = documented()
    for key in PROGRESS_KEYS:
        assert any(matches(normalised(key), p) for p in always | sometimes), key


def test_names_are_checked_against_what_is_documented():
    always, sometimes = documented()
    assert set(METRICS) == always | sometimes  # metric_names.py lists them all


@pytest.mark.parametrize(
    "name",
    [
        "training_iteration",
        "time_total_s",
        "env_runners/stop/terminated",
        "evaluation/env_runners/success_rate",
        "evaluation_before_training/env_runners/success_rate",
        "evaluation/env_runners/env/steps",
        "learners/alice/approx_kl_k3",
        "learners/alice/policy_learning_rate",
        "perf/cpu_util_percent",
        "league/win_rate/member_0",
    ],
)
def test_names_that_are_reported_pass(name):
    check_metric_name(name, "stop")


@pytest.mark.parametrize(
    "name, message",
    [
        ("env_runners/episode_retur_mean", "'env_runners/episode_return_mean'"),
        ("episode_return_mean", "'env_runners/episode_return_mean'"),
        ("evaluation/env_runners/succes_rate", "'evaluation/env_runners/success_rate'"),
        (
            "evaluation_before_training/env_runners/succes_rate",
            "'evaluation_before_training/env_runners/success_rate'",
        ),
        ("learners/alice/aprox_kl_k3", "'learners/alice/approx_kl_k3'"),
        ("training_iterations", "'training_iteration'"),
        ("zzz", r"docs/metrics\.md"),
    ],
)
def test_misspelt_names_are_errors_with_the_nearest_name(name, message):
    with pytest.raises(ConfigError, match=f"stop: unknown metric .*{message}"):
        check_metric_name(name, "stop")
