"""Exact metrics of an iteration with one or several EnvRunners."""

from __future__ import annotations

import numpy as np
import pytest
from callback_helpers import make_episode
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_llm.callbacks.defaults import install_defaults
from rllib_llm.callbacks.episode_metrics import log_episodes
from rllib_llm.callbacks.exact_results import ExactResults
from rllib_llm.data.episode_data import episode_data
from rllib_llm.transcripts.collector import TranscriptCollector


@pytest.fixture
def loggers(config):
    """A root logger and two runners' loggers."""
    lookup = config.stats_cls_lookup
    root = MetricsLogger(root=True, stats_cls_lookup=lookup)
    return root, [MetricsLogger(stats_cls_lookup=lookup) for _ in range(2)]


def report(root, runners, parts):
    for runner, rounds in zip(runners, parts, strict=True):
        for episodes in rounds:
            log_episodes(runner, episodes, num_failed=0)
    root.aggregate([r.reduce() for r in runners], key="env_runners")
    return root.compile()["env_runners"]


def test_means_weight_episodes_equally(loggers):
    root, runners = loggers
    many = [make_episode([r], seed=i, success=r > 0) for i, r in enumerate([1, 0, 0])]
    one = [make_episode([0.5, 2.5], seed=9, tokens=7, success=True, invalid=1)]
    result = report(root, runners, [[many], [one]])
    assert result["episode_return_mean"] == pytest.approx((1 + 0 + 0 + 3) / 4)
    assert result["success_rate"] == pytest.approx(2 / 4)
    assert result["turns_mean"] == pytest.approx(5 / 4)
    assert result["completion_tokens_mean"] == pytest.approx((3 * 3 + 14) / 4)
    assert result["episode_return_max"] == 3 and result["episode_return_min"] == 0
    assert result["num_episodes"] == 4
    assert result["stop"]["terminated"] == 1.0
    assert sum(result["stop"].values()) == pytest.approx(1.0)


def test_turn_means_weight_turns_equally(loggers):
    root, runners = loggers
    short, long = make_episode([0]), make_episode([0] * 4, tokens=8, invalid=3)
    result = report(root, runners, [[[short]], [[long]]])
    assert result["tokens_per_turn_mean"] == pytest.approx((3 + 4 * 8) / 5)
    assert result["invalid_action_frac"] == pytest.approx(3 / 5)
    assert result["cut_turn_frac"] == pytest.approx(2 / 5)
    assert result["prefix_break_frac"] == pytest.approx(1 / 5)


def test_means_over_several_rounds_of_changing_size(loggers):
    root, runners = loggers
    first = [[[make_episode([4])]], []]
    assert report(root, runners, first)["episode_return_mean"] == 4
    rounds = [[make_episode([r]) for r in (1, 2, 3)], [make_episode([10])]]
    result = report(root, runners, [rounds, [[make_episode([0])]]])
    assert result["episode_return_mean"] == pytest.approx(16 / 5)
    assert result["episode_return_max"] == 10
    assert result["num_episodes_lifetime"] == 6
    silent = report(root, runners, [[], []])
    assert np.isnan(silent["episode_return_mean"])


def test_success_and_env_metrics_count_only_where_defined(loggers):
    root, runners = loggers
    solved, undefined = make_episode([1], success=True), make_episode([0])
    episode_data(solved).metrics = {"boxes": 2.0}
    result = report(root, runners, [[[solved, undefined]], []])
    assert result["success_rate"] == 1.0
    assert result["env"]["boxes"] == 2.0


def test_means_survive_a_checkpoint(config, loggers):
    root, runners = loggers
    report(root, runners, [[[make_episode([1])]], []])
    log_episodes(runners[0], [make_episode([2])], [])
    root.aggregate([runners[0].reduce()], key="env_runners")
    restored = MetricsLogger(root=True, stats_cls_lookup=config.stats_cls_lookup)
    restored.set_state(root.get_state())
    assert restored.peek(("env_runners", "episode_return_mean")) == 2.0


def test_user_callbacks_are_added_to_the_defaults(config):
    class Mine(RLlibCallback):
        pass

    class More(TranscriptCollector):
        per_iteration = 16

    config.callbacks(Mine)
    install_defaults(config)
    assert config.callbacks_class == [ExactResults, TranscriptCollector, Mine]
    install_defaults(config)
    assert len(config.callbacks_class) == 3
    config.callbacks([More, Mine])
    install_defaults(config)
    assert config.callbacks_class == [ExactResults, More, Mine]


@pytest.mark.ray
@pytest.mark.parametrize(
    "num_env_runners", [0, pytest.param(2, marks=pytest.mark.slow)]
)
def test_result_holds_this_iterations_means(ray_session, config, num_env_runners):
    config.env_runners(num_env_runners=num_env_runners)
    config.rollouts(episodes_per_iteration=5)
    algo = config.build_algo()
    sampled = []
    sample_groups = algo.sample_groups

    def record(num_groups):
        episodes = sample_groups(num_groups)
        sampled[:] = episodes
        return episodes

    algo.sample_groups = record
    for _ in range(2):
        result = algo.train()["env_runners"]
        tokens = [episode_data(e).num_sampled for e in sampled]
        assert len(set(tokens)) > 1  # otherwise any weighting would do
        assert len(sampled) == result["num_episodes"] == 5
        assert result["completion_tokens_mean"] == pytest.approx(np.mean(tokens))
        assert result["num_completion_tokens"] == sum(tokens)
        returns = [e.get_return() for e in sampled]
        assert result["episode_return_mean"] == pytest.approx(np.mean(returns))
        turns = sum(map(len, sampled))
        assert result["tokens_per_turn_mean"] == pytest.approx(sum(tokens) / turns)
        assert len(result["transcripts"]) in (4, 5)
    algo.stop()
