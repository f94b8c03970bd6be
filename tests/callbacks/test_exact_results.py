"""Exact timers, and evaluations reported once."""

from __future__ import annotations

import pytest

from rllib_llm.transcripts.collector import read_result


@pytest.mark.ray
def test_evaluation_is_reported_once_and_timers_add_up(ray_session, config):
    config.evaluation(evaluation_interval=2, evaluation_duration=8)
    algo = config.build_algo()
    results = [algo.train() for _ in range(3)]
    algo.stop()
    assert ["evaluation" in r for r in results] == [False, True, False]
    evaluation = results[1]["evaluation"]["env_runners"]
    for key in ("success_rate", "episode_return_mean", "turns_mean", "stop"):
        assert key in evaluation
    assert evaluation["num_episodes"] == 8
    splits = {r["split"] for r in read_result(results[1])}
    assert splits == {"train", "evaluation"}
    assert {r["iteration"] for r in read_result(results[1])} == {2}
    assert ["evaluation_iteration" in r["timers"] for r in results] == [
        False,
        True,
        False,
    ]
    steps = [r["timers"]["training_step"] for r in results]
    assert len(set(steps)) == 3  # not smoothed
    for result in results:
        timers = result["timers"]
        parts = timers["env_runner_sampling_timer"] + timers["learner_update_timer"]
        assert 0.9 * timers["training_step"] < parts <= timers["training_step"]
        assert timers["training_step"] <= result["time_this_iter_s"]


@pytest.mark.ray
@pytest.mark.slow
def test_evaluation_on_remote_runners(ray_session, config):
    config.evaluation(
        evaluation_interval=1, evaluation_duration=8, evaluation_num_env_runners=2
    )
    algo = config.build_algo()
    result = algo.train()
    algo.stop()
    assert result["evaluation"]["env_runners"]["num_episodes"] == 8
    assert "success_rate" in result["evaluation"]["env_runners"]
