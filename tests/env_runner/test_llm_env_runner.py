"""LLMEnvRunner: exact episode counts, groups, limits, failures, determinism."""

import re
import time

import numpy as np
import pytest
from runner_helpers import (
    Aborting,
    Broken,
    Countdown,
    Endless,
    Exiting,
    Flaky,
    Hanging,
    Huge,
    NaNReward,
    Odd,
    Slow,
    Stuck,
    make_runner,
)

from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import StopPolicy, StopReason, Task
from rllib_llm.env_runner.task_groups import TaskSource
from rllib_llm.errors import ConfigError, EnvContractError, MissingExtraError


def tasks(count, group_size=1):
    return TaskSource(seed=1, group_size=group_size).next_groups(count)


def sampled(episodes):
    return [
        [t.action_ids.tolist() for t in e.get_extra_model_outputs(columns.TURN)]
        for e in episodes
    ]


def reasons(episodes):
    return [episode_data(e).stop_reason for e in episodes]


@pytest.fixture(scope="module")
def runner():
    return make_runner(Countdown)


def test_sample_returns_exactly_the_requested_tasks_in_order(runner):
    requested = tasks(40)
    episodes = runner.sample(tasks=requested)
    assert [episode_data(e).task for e in episodes] == requested
    # A sampler that returns the first to finish would drop the long ones.
    lengths = [len(e) for e in episodes]
    truth = []
    for task in requested:
        env = Countdown()
        env.reset(seed=task.seed)
        truth.append(env.left)
    assert lengths == truth
    assert set(reasons(episodes)) == {StopReason.TERMINATED}


def test_counts_are_exact_for_num_episodes(runner):
    for count in (1, 3, 13):
        assert len(runner.sample(num_episodes=count)) == count
    episodes = runner.sample(num_timesteps=30)
    assert sum(map(len, episodes)) >= 30


def test_groups_share_seed_and_options_and_differ_in_samples(runner):
    episodes = runner.sample(tasks=tasks(3, group_size=4))
    groups: dict[int, list] = {}
    for episode in episodes:
        groups.setdefault(episode_data(episode).task.group_id, []).append(episode)
    assert sorted(map(len, groups.values())) == [4, 4, 4]
    for members in groups.values():
        assert len({e.get_observations(0) for e in members}) == 1
        assert len({str(s) for s in sampled(members)}) == 4


def test_episodes_do_not_depend_on_concurrent_episodes(runner):
    requested = tasks(12)
    together = sampled(runner.sample(tasks=requested))
    again = sampled(runner.sample(tasks=requested))
    alone = [sampled(runner.sample(tasks=[task]))[0] for task in requested[:4]]
    assert together == again
    assert together[:4] == alone


def test_greedy_differs_from_sampled_and_repeats(runner):
    requested = tasks(4)
    greedy = sampled(runner.sample(tasks=requested, explore=False))
    assert greedy == sampled(runner.sample(tasks=requested, explore=False))
    assert greedy != sampled(runner.sample(tasks=requested, explore=True))


def test_conversation_ids_are_the_concatenated_turns(runner):
    (episode,) = runner.sample(tasks=[Task(0, 0, 7, {"length": 3, "split": "train"})])
    turns = episode.get_extra_model_outputs(columns.TURN)
    ids = np.concatenate([np.r_[t.prompt_ids, t.action_ids] for t in turns])
    assert episode_data(episode).ids == ids.tolist()
    assert [m["role"] for m in episode_data(episode).messages] == (
        ["user", "assistant"] * 3
    )
    assert all(len(t.action_ids) == len(t.action_logps) for t in turns)


def test_max_turns_truncates_and_keeps_the_final_observation():
    runner = make_runner(Endless, max_turns=3)
    (episode,) = runner.sample(num_episodes=1)
    assert len(episode) == 3 and episode.is_truncated and not episode.is_terminated
    data = episode_data(episode)
    assert data.stop_reason in (StopReason.MAX_TURNS, StopReason.MAX_TOKENS_TURN)
    assert data.prompt is not None and len(data.prompt.ids) > 0


def test_max_tokens_per_episode():
    runner = make_runner(Endless, max_tokens_per_episode=10)
    for episode in runner.sample(num_episodes=4):
        data = episode_data(episode)
        assert data.stop_reason is StopReason.MAX_TOKENS_EPISODE
        assert data.num_sampled <= 10


def test_context_overflow_is_a_stop_reason():
    runner = make_runner(
        Endless, generation={"max_new_tokens": 4, "max_context_tokens": 120}
    )
    for episode in runner.sample(num_episodes=3):
        data = episode_data(episode)
        assert data.stop_reason is StopReason.CONTEXT_OVERFLOW
        assert episode.is_truncated and len(data.ids) <= 120


def test_a_huge_observation_is_truncated_before_encoding(caplog):
    generation = {"max_new_tokens": 4, "max_context_tokens": 120}
    runner = make_runner(Huge, generation=generation)
    (episode,) = runner.sample(num_episodes=1)
    data = episode_data(episode)
    assert data.stop_reason is StopReason.CONTEXT_OVERFLOW
    vocabulary = runner.config.chat_renderer().tokenizer.get_vocab()
    assert len(data.messages[-1]["content"]) == 121 * max(map(len, vocabulary))
    assert "an observation of 5000000 characters" in caplog.text


def test_a_final_observation_longer_than_the_context_is_dropped():
    generation = {"max_new_tokens": 4, "max_context_tokens": 120}
    runner = make_runner(Huge, generation=generation, max_turns=1)
    (episode,) = runner.sample(num_episodes=1)
    data = episode_data(episode)
    assert data.stop_reason in (StopReason.MAX_TURNS, StopReason.MAX_TOKENS_TURN)
    assert data.prompt is None and len(data.ids) <= 120


def test_failed_episodes_are_retried():
    Flaky.failures.clear()
    runner = make_runner(Flaky)
    requested = tasks(9)
    episodes = runner.sample(tasks=requested)
    assert len(episodes) == 9 and Flaky.failures
    assert runner.get_metrics()["num_episodes_failed"].peek() == 0


def test_an_environment_that_always_fails_raises_with_the_reason():
    runner = make_runner(Broken)
    with pytest.raises(EnvContractError, match=r"out of order"):
        runner.sample(num_episodes=3)


def test_failures_below_the_limit_are_counted_and_left_out():
    runner = make_runner(Broken, max_failed_fraction=1.0, max_retries=0)
    assert runner.sample(num_episodes=3) == []
    assert runner.get_metrics()["num_episodes_failed"].peek() == 3


def test_a_hanging_step_times_out_and_is_dropped():
    runner = make_runner(
        Hanging, step_timeout_s=0.3, max_failed_fraction=1.0, max_retries=0
    )
    started = time.perf_counter()
    assert runner.sample(num_episodes=2) == []
    assert time.perf_counter() - started < 20


def test_num_hung_envs_counts_hung_environments_until_they_return():
    Stuck.released.clear()
    runner = make_runner(
        Stuck, step_timeout_s=0.3, max_failed_fraction=1.0, max_retries=0
    )
    assert runner.num_hung_envs == 0
    runner.sample(num_episodes=2)
    assert runner.num_hung_envs == 2
    runner.make_env()  # as a change of opponents does
    runner.sample(num_episodes=1)
    assert runner.num_hung_envs == 3
    Stuck.released.set()
    deadline = time.perf_counter() + 20
    while runner.num_hung_envs and time.perf_counter() < deadline:
        time.sleep(0.01)
    assert runner.num_hung_envs == 0


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_an_environment_that_exits_fails_at_once(error, monkeypatch):
    monkeypatch.setattr(Exiting, "error", error)
    runner = make_runner(Exiting, max_retries=0)
    started = time.perf_counter()
    with pytest.raises(EnvContractError, match=f"env_error: {type(error).__name__}"):
        runner.sample(num_episodes=2)
    assert time.perf_counter() - started < 20  # step_timeout_s is 60


@pytest.mark.parametrize("method", ["start", "reply"])
@pytest.mark.parametrize("kind", [ConfigError, MissingExtraError])
def test_settings_that_an_environment_refuses_are_not_retried(
    kind, method, monkeypatch
):
    calls = []

    def refuse(self, given):
        calls.append(given)
        raise kind("levels=9 must be below 5")

    runner = make_runner(Slow, slots=1, max_retries=3)
    monkeypatch.setattr(Slow, method, refuse)
    with pytest.raises(kind, match="levels=9 must be below 5"):
        runner.sample(num_episodes=1)
    assert len(calls) == 1


def test_a_timeout_may_be_kept_and_masked():
    runner = make_runner(
        Slow,
        env_config={"length": 40},
        episode_timeout_s=0.3,
        stop_policies={"timeout": "mask"},
    )
    for episode in runner.sample(num_episodes=2):
        data = episode_data(episode)
        assert data.stop_reason is StopReason.TIMEOUT
        assert data.stop_policy is StopPolicy.MASK and episode.is_truncated


def test_slow_environments_overlap():
    runner = make_runner(Slow, env_config={"length": 3}, slots=16)
    runner.sample(num_episodes=16)  # threads and caches warm
    started = time.perf_counter()
    runner.sample(num_episodes=16)
    # One after the other the steps alone would take 16 * 3 * 20 ms = 0.96 s.
    assert time.perf_counter() - started < 0.8


def test_nan_reward_names_the_seed():
    runner = make_runner(NaNReward)
    with pytest.raises(EnvContractError, match=r"reward nan at turn 1 of seed"):
        runner.sample(num_episodes=1)


@pytest.mark.parametrize("success", ["yes", float("nan"), 2, [True]])
def test_an_invalid_success_is_refused_with_value_and_seed(success, monkeypatch):
    monkeypatch.setattr(Odd, "success", success)
    reported = re.escape(f"success={success!r}") + r" for seed \d+; success must be"
    with pytest.raises(EnvContractError, match=f"reported {reported} True, False"):
        make_runner(Odd).sample(num_episodes=1)


def test_an_observation_with_lone_surrogates_is_encoded(monkeypatch):
    monkeypatch.setattr(Odd, "observation", "left \ud83d right \udfff.")
    (episode,) = make_runner(Odd).sample(num_episodes=1)
    (turn,) = episode.get_extra_model_outputs(columns.TURN)
    renderer = make_runner(Odd).config.chat_renderer()
    assert "left \ufffd right \ufffd." in renderer.decode(turn.prompt_ids.tolist())
    assert episode.get_observations(0) == "left \ud83d right \udfff."


def test_the_stall_clock_starts_after_the_engines(monkeypatch):
    """vLLM takes minutes to start, which must not count as a stall."""
    runner = make_runner(Countdown)
    calls = []
    engine, watching = type(runner.engine), runner._monitor.watching
    monkeypatch.setattr(engine, "start", lambda self: calls.append("start"))
    monkeypatch.setattr(
        runner._monitor, "watching", lambda r: calls.append("watch") or watching(r)
    )
    runner.sample(num_episodes=1)
    assert calls == ["start", "watch"]


def test_aborted_episodes_are_retried_unless_masked():
    Aborting.attempts.clear()
    requested = tasks(5)
    episodes = make_runner(Aborting).sample(tasks=requested)
    assert [episode_data(e).task for e in episodes] == requested
    assert set(reasons(episodes)) == {StopReason.TERMINATED}
    Aborting.attempts.clear()
    runner = make_runner(Aborting, stop_policies={"aborted": "mask"})
    (episode,) = runner.sample(tasks=requested[:1])
    assert episode_data(episode).stop_reason is StopReason.ABORTED
    assert episode_data(episode).stop_policy is StopPolicy.MASK


def test_an_unknown_stop_reason_is_refused(monkeypatch):
    Aborting.attempts.clear()
    monkeypatch.setattr(Aborting, "reason", "bored")
    with pytest.raises(EnvContractError, match=r"'bored'; info\['stop_reason'\] must"):
        make_runner(Aborting).sample(num_episodes=1)


def test_a_runner_can_be_used_again_after_an_error(monkeypatch):
    runner, requested = make_runner(Countdown), tasks(10)
    expected = sampled(runner.sample(tasks=requested))
    steps, step = [], runner.engine.step

    def fail_later():
        steps.append(1)
        if len(steps) == 6:
            raise RuntimeError("out of memory")
        return step()

    monkeypatch.setattr(runner.engine, "step", fail_later)
    with pytest.raises(RuntimeError, match="out of memory"):
        runner.sample(tasks=tasks(20))
    assert runner.engine.num_unfinished == 0
    assert sampled(runner.sample(tasks=requested)) == expected


def test_more_episodes_than_slots():
    runner = make_runner(Countdown, slots=2)
    assert len(runner.sample(num_episodes=9)) == 9


def test_evaluation_tasks_are_held_out_and_the_same_every_time():
    train, evaluation = TaskSource(seed=5), TaskSource(seed=0, split="test")
    fixed = evaluation.fixed(20)
    assert fixed == evaluation.fixed(20)
    assert {t.seed for t in fixed}.isdisjoint(t.seed for t in train.next_groups(500))
    assert all(t.options["split"] == "test" for t in fixed)


def test_task_cursor_is_restored():
    source = TaskSource(seed=3, group_size=2)
    source.next_groups(5)
    other = TaskSource(seed=3, group_size=2)
    other.set_state(source.get_state())
    assert source.next_groups(2) == other.next_groups(2)


def test_state_round_trip(runner):
    other = make_runner(Countdown)
    other.set_state(runner.get_state())
    requested = tasks(3)
    assert sampled(other.sample(tasks=requested)) == sampled(
        runner.sample(tasks=requested)
    )
