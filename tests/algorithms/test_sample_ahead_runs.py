"""Algorithms that sample ahead, on real EnvRunners."""

import random
import sys
import time

import numpy as np
import pytest
import ray

from rllib_llm import GRPOConfig, LLMPPOConfig, MARFTConfig, SelfPlayConfig, SFTConfig
from rllib_llm.algorithms.config.sampling_ahead import SamplingAheadSettings
from rllib_llm.callbacks.histograms import read_histograms
from rllib_llm.callbacks.result_keys import POLICY_STALENESS
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data, policy_episodes
from rllib_llm.data.types import TurnResult
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError

# Ray's processes cannot import tests.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
GREEDY = {"name": "group", "baseline": "greedy", "scale": "none"}
TINY = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}


class SlowCountdown(TextEnv):
    """Lasts one to three turns of up to 60 ms each, decided by the seed."""

    max_turns = 5

    def start(self, rng) -> str:
        self.left = int(rng.integers(1, 4))
        return f"Lasts {self.left} turns."

    def parse(self, completion):
        return completion or "nothing"

    def reply(self, action):
        time.sleep(random.uniform(0.0, 0.06))
        self.left -= 1
        reward = sum(action.count(vowel) for vowel in "aeiou") / 5
        return TurnResult(f"{self.left} left.", reward, terminated=self.left == 0)

    def random_action(self, rng):
        return "hi"


def config(kind=GRPOConfig, ahead=1, runners=2, **training):
    return (
        kind()
        .environment(SlowCountdown)
        .language_model(tiny=TINY)
        .generation(max_new_tokens=4)
        .rollouts(episodes_per_iteration=16, group_size=4)
        .env_runners(
            num_env_runners=runners, num_envs_per_env_runner=4, sample_ahead=ahead
        )
        .training(lr=1e-3, **training)
        .evaluation(evaluation_interval=None)
        .debugging(seed=0)
    )


def lags(algo, episodes):
    """Return how many updates old the weights of each turn are."""
    version = algo.learner_group._learner._weights_seq_no
    return [
        version - turn.weights_seq_no
        for episode in episodes
        for part in policy_episodes(episode)
        for turn in part.get_extra_model_outputs(columns.TURN)
    ]


def groups(episodes):
    return {episode_data(episode).task.group_id for episode in episodes}


def recorded(algo):
    """Let an algorithm keep the episodes of its batches."""
    collect, batches = algo.collect, []

    def keep():
        episodes = collect()
        batches.append((episodes, lags(algo, episodes)))
        return episodes

    algo.collect = keep
    return batches


@pytest.mark.slow
@pytest.mark.parametrize("ahead, staleness", [(1, None), (2, 3)])
def test_batches_are_whole_and_not_older_than_the_bound(ray_session, ahead, staleness):
    settings = {"drop_zero_variance_groups": False, "max_staleness": staleness}
    algo = config(ahead=ahead, **settings).build_algo()
    batches = recorded(algo)
    results = [algo.train() for _ in range(6)]
    algo.stop()
    trained = [group for episodes, _ in batches for group in groups(episodes)]
    assert len(trained) == len(set(trained)) == 24
    assert all(len(episodes) == 16 for episodes, _ in batches)
    largest = [max(found) for _, found in batches]
    assert largest[0] == 0 and max(largest) <= (staleness or ahead)
    assert max(largest) >= 1
    last = results[-1]["learners"]["default_policy"]
    assert 0 < last[POLICY_STALENESS] <= (staleness or ahead)
    assert last["is_weight_mean"] > 0  # tis="auto" corrects
    assert 0 < last["is_effective_sample_frac"] <= 1
    assert 0 < last["policy_staleness_max"] <= (staleness or ahead)
    assert 0 <= last["mixed_version_turn_frac"] <= 1
    ages = read_histograms(results[-1])["learners/default_policy/policy_staleness"]
    assert ages.high == last["policy_staleness_max"]
    assert 0 <= results[-1]["learner_idle_frac"] < 1
    assert 0 <= results[-1]["sampler_idle_frac"] < 1
    assert results[-1]["num_groups_retried"] == 0


@pytest.mark.slow
def test_a_dead_env_runner_loses_no_group(ray_session):
    algo = config(drop_zero_variance_groups=False).build_algo()
    batches = recorded(algo)
    algo.train()
    actor = algo.env_runner_group._worker_manager.actors()[1]
    ray.kill(actor, no_restart=False)
    results = [algo.train() for _ in range(4)]
    algo.stop()
    trained = [group for episodes, _ in batches for group in groups(episodes)]
    assert len(trained) == len(set(trained)) == 20
    assert sum(result["num_groups_retried"] for result in results) > 0
    assert not any(result["num_episodes_lost"] for result in results)


@pytest.mark.slow
def test_a_checkpoint_holds_the_tasks_in_progress(ray_session, tmp_path):
    algo = config(drop_zero_variance_groups=False).build_algo()
    before = recorded(algo)
    for _ in range(2):
        algo.train()
    path = algo.save_to_path(str(tmp_path / "checkpoint"))
    algo.stop()
    restored = config(drop_zero_variance_groups=False).build_algo()
    restored.restore_from_path(path)
    after = recorded(restored)
    for _ in range(2):
        restored.train()
    restored.restore_from_path(path)  # as an alarm's rollback does
    restored.train()
    restored.stop()
    first = {group for episodes, _ in before for group in groups(episodes)}
    then = [groups(episodes) for episodes, _ in after]
    assert first == set(range(8))
    assert then[0] | then[1] == set(range(8, 16))
    assert then[2] < set(range(8, 16)) and max(after[2][1]) == 0


@pytest.mark.slow
def test_teams_and_critics_sample_ahead(ray_session):
    algo = (
        config(MARFTConfig)
        .environment("secret_sum-v0")
        .rollouts(group_size=1)
        .build_algo()
    )
    results = [algo.train() for _ in range(3)]
    algo.stop()
    for learner in results[-1]["learners"].values():
        if POLICY_STALENESS in learner:
            assert 0 < learner[POLICY_STALENESS] <= 1
            assert np.isfinite(learner["is_weight_mean"])


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c.env_runners(num_env_runners=0), "processes of their own"),
        (lambda c: c.training(tis=None), "corrects nothing"),
        (lambda c: c.training(max_staleness=1).env_runners(sample_ahead=2), "at least"),
        (
            lambda c: c.env_runners(sample_ahead=0).training(max_staleness=1),
            "no effect",
        ),
        (lambda c: c.training(dynamic_sampling_rounds=2), "dynamic_sampling_rounds=2"),
        (lambda c: c.training(advantage_estimator=GREEDY), "greedy rollouts"),
        (
            lambda c: c.fault_tolerance(sample_locally_if_none=True),
            "never samples on the driver",
        ),
    ],
)
def test_what_does_not_work_with_it_is_refused(change, message):
    built = config(drop_zero_variance_groups=True)
    change(built)
    with pytest.raises(ConfigError, match=message):
        built.validate()


@pytest.mark.parametrize("kind", [SelfPlayConfig, SFTConfig])
def test_algorithms_without_it_refuse_it(kind):
    built = kind().environment("guess_number-v0")
    built.env_runners(num_env_runners=1, sample_ahead=1)
    assert next(is_wrong for is_wrong, _ in built.ahead_obstacles())


def test_staleness_is_corrected_by_rule():
    assert config().resolved_tis() == "token"
    assert config(ahead=0).resolved_tis() is None
    assert config(old_logps="engine").resolved_tis() is None
    assert config(old_logps="engine").corrects_staleness
    assert not config(tis=None).corrects_staleness
    assert config(ahead=3).largest_staleness == 3
    assert config(ahead=3, max_staleness=5).largest_staleness == 5
    assert isinstance(LLMPPOConfig(), SamplingAheadSettings)
