"""Actions of the guard on synthetic results."""

from __future__ import annotations

import pytest

from rllib_llm import GRPOConfig
from rllib_llm.monitoring.alarms.alarm_actions import Guard
from rllib_llm.monitoring.alarms.snapshots import Snapshots


class Algorithm:
    """Algorithm that records the guard's calls."""

    def __init__(self, logdir="/nowhere"):
        self.logdir, self.iteration = logdir, 0
        self.calls = []
        self.scales = {}

    def lower_lr(self, module_id, factor, least):
        """Record the call."""
        self.calls.append(("lower", module_id, factor))

    def lr_scales(self):
        """Return the multipliers."""
        return self.scales

    def rollback_state(self):
        """Return a state with its iteration."""
        return {"iteration": self.iteration}

    def roll_back(self, state):
        """Record the call."""
        self.calls.append(("back", state["iteration"]))


def guard(**alarms):
    algorithm = Algorithm()
    return Guard(GRPOConfig().alarms(**alarms), algorithm), algorithm


def play(watch, values, key="approx_kl_k3", module="default_policy", first=1, **more):
    """Pass results with these values to a guard and return them."""
    results = []
    for index, value in enumerate(values):
        watch._algorithm.iteration = first + index - 1
        watch.before_iteration()
        watch._algorithm.iteration += 1
        result = {"training_iteration": first + index, "done": False, **more}
        result["learners"] = {module: {key: value}, "__all_modules__": {key: 99.0}}
        watch.after_iteration(result)
        results.append(result)
    return results


def messages(results):
    return [r["alarms"].get("messages", "") for r in results]


def test_warnings_come_once_per_onset():
    watch, algorithm = guard()
    results = play(watch, [0.5, 0.5, 0.01, 0.5])
    assert [r["alarms"]["kl"] for r in results] == [1, 1, 0, 1]
    assert [bool(m) for m in messages(results)] == [True, False, False, True]
    assert messages(results)[0] == (
        "alarm kl (default_policy) at iteration 1: approx_kl_k3 is 0.5, above 0.2. "
        "Lower lr or num_epochs, or raise minibatch_size."
    )
    assert not algorithm.calls


def test_actions_are_taken_again_after_their_cooldown():
    watch, algorithm = guard(kl={"action": "lower_lr", "cooldown": 3}, lr_factor=0.1)
    play(watch, [0.5] * 7)
    assert algorithm.calls == [("lower", "default_policy", 0.1)] * 3  # 1, 4, 7


def test_policies_are_checked_separately():
    watch, algorithm = guard(kl={"action": "lower_lr"})
    result = {"training_iteration": 1, "done": False}
    result["learners"] = {m: {"approx_kl_k3": v} for m, v in [("a", 0.01), ("b", 0.9)]}
    watch.after_iteration(result)
    assert result["alarms"]["kl"] == 1 and algorithm.calls == [("lower", "b", 0.5)]
    assert "(b)" in result["alarms"]["messages"]


def test_a_run_wide_alarm_lowers_every_rate():
    watch, algorithm = guard(truncation={"action": "lower_lr", "window": 1})
    stops = {"env_runners": {"stop": {"max_tokens_turn": 0.9}}}
    play(watch, [0.0], **stops)
    assert algorithm.calls == [("lower", None, 0.5)]


def test_solved_tasks_do_not_fire_entropy_collapse():
    flat = {"zero_variance_group_frac": 1.0}
    solved = {"env_runners": {"success_rate": 0.95}, **flat}
    assert not any(messages(play(guard()[0], [0.0] * 6, **solved)))
    failed = {"env_runners": {"success_rate": 0.0}, **flat}
    assert "alarm reward_variance" in messages(play(guard()[0], [0.0] * 6, **failed))[4]


def test_repeated_learner_results_are_ignored():
    """An iteration without an update repeats the results of the one before."""
    watch, _ = guard(kl={"cooldown": 1, "action": "stop"})
    (result,) = play(watch, [0.5], num_updates_skipped=1)
    assert not result["done"] and not result["alarms"]["kl"]


def test_rollback_drops_later_values():
    watch, algorithm = guard(
        kl={"action": "rollback"}, snapshot_interval=2, max_rollbacks=2
    )
    lengths = {"env_runners": {"tokens_per_turn_mean": 1.0}}
    play(watch, [0.01] * 5 + [0.5], **lengths)
    # Taken after 2 and 4; that of 2 proved good.
    assert algorithm.calls == [("back", 2), ("lower", None, 0.5)]
    left = watch._history.series("learners/<module>/approx_kl_k3", "default_policy")
    assert left == [0.01, 0.01]
    # What iteration 3 sampled, it sampled with the good weights.
    assert watch._history.series("env_runners/tokens_per_turn_mean") == [1.0] * 3
    results = play(watch, [0.01, 0.5, 0.01, 0.5], first=7)
    assert algorithm.calls[2:] == [("back", 2), ("lower", None, 0.5), ("back", 2)]
    assert [r["done"] for r in results] == [False, False, False, True]
    assert results[1]["alarms"]["num_rollbacks"] == 2
    assert results[3]["alarms"]["stopped_by"] == "kl"


def test_two_alarms_roll_back_once():
    watch, algorithm = guard(
        kl={"action": "rollback"}, nan={"action": "rollback"}, truncation=False
    )
    result = {"training_iteration": 1, "done": False}
    learner = {"approx_kl_k3": 5.0, "total_loss": float("nan")}
    result["learners"] = {"default_policy": learner}
    watch.before_iteration()
    watch.after_iteration(result)
    assert [t[0] for t in algorithm.calls] == ["back", "lower"]
    assert result["alarms"]["messages"].count("Rolled back to iteration 0") == 2


def test_inactive_alarms_are_reported_once():
    watch, _ = guard(kl={"above": 1.0}, train_inference_mismatch={})
    first, second = messages(play(watch, [0.01, 0.01]))
    assert first == (
        "alarm train_inference_mismatch is inactive: this run does not report "
        "learners/<module>/train_inference_mismatch_mean."
    )
    assert not second


def test_state_round_trip():
    watch, _ = guard(length={"above": 1.0})
    longer = [{"env_runners": {"tokens_per_turn_mean": v}} for v in [10.0] * 5 + [90.0]]
    for index, more in enumerate(longer):
        play(watch, [0.01], first=index + 1, **more)
    again, _ = guard(length={"above": 1.0})
    again.set_state(watch.get_state())
    results = [
        play(again, [0.01], first=7 + i, **longer[-1])[0]["alarms"] for i in range(2)
    ]
    assert [r["length"] for r in results] == [0, 1]


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_at_most_two_snapshots_are_kept(place, tmp_path):
    kept = Snapshots(interval=1, place=place, folder=tmp_path)
    kept.begin(0, "start")
    for iteration in (1, 2, 3):
        assert kept.is_due(quiet=True)
        kept.offer(iteration, f"state {iteration}")
    assert kept.good.load() == "state 2"
    assert len(list(tmp_path.iterdir())) == (2 if place == "disk" else 0)
    assert not kept.is_due(quiet=False)
    kept.reject()
    assert kept.good.load() == "state 2"
    kept.close()
    assert kept.good is None and not list(tmp_path.iterdir())
