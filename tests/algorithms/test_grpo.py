"""GRPO: advantages per group, dropped groups, resampling; real iterations."""

import numpy as np
import pytest
from learner_helpers import TINY, fake_episode

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.grpo.grpo import estimators_of_policies
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.errors import ConfigError


def bandit(**training):
    return (
        GRPOConfig()
        .environment("bandit_probe-v0")
        .language_model(tiny=TINY)
        .generation(max_new_tokens=4)
        .rollouts(episodes_per_iteration=16, group_size=4)
        .training(**training)
    )


@pytest.fixture(scope="module")
def algo(ray_session):
    built = bandit(lr=1e-3).build_algo()
    yield built
    built.stop()


def test_advantages_are_relative_to_the_group(algo):
    made = [
        fake_episode(i, group=i // 4, reward=r)
        for i, r in enumerate([1.0, 0.0, 0.0, 1.0, 3.0, 1.0, 1.0, 3.0])
    ]
    kept = algo.process_episodes(SampledEpisodes(made))
    algo._set_advantages(kept)
    advantage_estimator = np.array([episode_data(e).advantage for e in kept])
    assert np.allclose(advantage_estimator.reshape(2, 4).sum(axis=1), 0.0)
    assert np.allclose(
        advantage_estimator[:4], advantage_estimator[4:], atol=1e-5
    )  # the scale is taken out


def test_groups_without_variance_are_dropped_and_counted(algo):
    made = [
        fake_episode(i, group=i // 2, reward=r)
        for i, r in enumerate([1.0, 1.0, 0.0, 1.0])
    ]
    kept = algo.process_episodes(SampledEpisodes(made))
    assert {episode_data(e).task.group_id for e in kept} == {1}
    assert algo.metrics.peek("zero_variance_group_frac") == 0.5


def test_iterations_with_nothing_to_learn_change_nothing(ray_session):
    # A random model never answers the probe: every return is 0.
    algo = bandit().build_algo()
    before = algo.get_module().get_state()
    result = algo.train()
    assert result["zero_variance_group_frac"] == 1.0
    assert result["num_updates_skipped"] == 1
    after = algo.get_module().get_state()
    assert all(np.array_equal(before[k], after[k]) for k in before)
    algo.stop()


def test_dynamic_sampling_refills_and_stops(ray_session, monkeypatch):
    algo = bandit(dynamic_sampling_rounds=3).build_algo()
    calls = []
    variance = iter([2, 1, 4, 4])  # groups with variance in each sampled batch

    def sample(count):
        calls.append(count)
        useful = min(next(variance), count)
        first = 10 * len(calls)
        return SampledEpisodes(
            fake_episode(g * 4 + i, group=first + g, reward=float(i % 2 and g < useful))
            for g in range(count)
            for i in range(4)
        )

    monkeypatch.setattr(algo, "sample_groups", sample)
    episodes = algo.collect()
    assert calls == [4, 2, 1]
    assert len({episode_data(e).task.group_id for e in episodes}) == 4
    assert all(episode_data(e).advantage is not None for e in episodes)
    algo.stop()


def test_dr_grpo_and_rloo_by_setting(algo):
    made = [fake_episode(i, group=0, reward=float(i)) for i in range(4)]
    for baseline, factor in (("mean", 1.0), ("leave_one_out", 4 / 3)):
        algo.config = algo.config.copy(copy_frozen=False)
        algo.config.training(advantage_baseline=baseline, advantage_scale="none")
        algo._advantage_estimators = estimators_of_policies(algo.config)
        algo._set_advantages(SampledEpisodes(made))
        advantage_estimator = [episode_data(e).advantage for e in made]
        assert np.allclose(advantage_estimator, factor * (np.arange(4) - 1.5))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"advantage_scale": "grup"}, "Did you mean 'group'"),
        ({"advantage_baseline": "none"}, "needs advantage_scale='none'"),
        ({"use_critic": True}, "Use GRPO or SFT to train without a critic, LLMPPO"),
        ({"use_kl_loss": True}, "GRPO has no KL to the old policy"),
        (
            {"dynamic_sampling_rounds": 2, "drop_zero_variance_groups": False},
            "drops none",
        ),
        ({"ref_kl_coeff": 0.1, "ref_kl_in": "reward"}, "token-level advantages"),
        ({"ref_kl_coeff": 0.1, "ref_kl_estimator": "k1"}, "gradient of zero"),
        ({"loss_agg_mode": "seq-mean-token-sum-norm"}, "needs loss_agg_constant"),
        ({"clip_param_high": 0.0}, "clip_param_high"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        bandit(**settings).validate()


def test_group_size_must_divide():
    config = bandit().rollouts(group_size=5)
    with pytest.raises(ConfigError, match=r"Try episodes_per_iteration=15"):
        config.validate()
    with pytest.raises(ConfigError, match="group of one"):
        bandit().rollouts(group_size=1).validate()
