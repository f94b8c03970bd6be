"""Sampling when EnvRunners die, hang or are missing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from rllib_llm import LLMPPO, LLMPPOConfig, compat
from rllib_llm.algorithms.driver import sampling
from rllib_llm.algorithms.driver.runner_calls import SampleResult
from rllib_llm.algorithms.driver.sampling import SamplingAlgorithm
from rllib_llm.data.episode_data import task_of
from rllib_llm.data.types import TurnResult
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.env_runner.task_groups import TaskSource
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError, EnvRunnerError


class Runner:
    """Answers each task with an episode of it."""

    has_all_weights = True

    def __init__(self, num_hung_envs=0, version=0):
        self.num_hung_envs, self.exited = num_hung_envs, False
        self._weights_seq_no, self.num_sampled = version, 0

    def sample(self, *, tasks, explore=None):
        self.num_sampled += len(tasks)
        return [episode_of(task) for task in tasks]

    def get_metrics(self):
        return {}


def episode_of(task):
    return types.SimpleNamespace(custom_data={"llm": types.SimpleNamespace(task=task)})


def seeds(episodes):
    return [task_of(episode).seed for episode in episodes]


class Group:
    """Remote EnvRunners; some are healthy, die when called, or do not answer.

    Attributes:
        dying: Calls in which each EnvRunner dies, by its id.
        silent: Calls that each EnvRunner does not answer, by its id.
        limits: Time limits of the calls.
    """

    env_runner_cls = LLMEnvRunner

    def __init__(self, runners, healthy=None, dying=(), silent=()):
        self.runners = dict(enumerate(runners, 1))
        self.healthy = list(self.runners) if healthy is None else healthy
        self.dying, self.silent = dict.fromkeys(dying, 1), dict.fromkeys(silent, 1)
        self.limits, self.restarted = [], []

    def healthy_env_runner_ids(self):
        return list(self.healthy)

    def num_remote_workers(self):
        return len(self.runners)

    def foreach_env_runner(
        self, calls, *, local_env_runner, remote_worker_ids, timeout_seconds
    ):
        assert not local_env_runner and remote_worker_ids
        self.limits.append(timeout_seconds)
        answers = []
        for index, call in zip(remote_worker_ids, calls, strict=True):
            if self.silent.get(index):
                self.silent[index] -= 1
                continue
            if self.dying.get(index):
                self.dying[index] -= 1
                self.healthy.remove(index)
                continue
            try:
                answers.append(call(self.runners[index]))
            except SystemExit:
                self.runners[index].exited = True
        return answers


class Metrics(dict):
    """Keeps what is logged."""

    def log_value(self, name, value, *, reduce):
        assert reduce == "sum"
        self[name] = value

    def aggregate(self, results, key):
        """Nothing to add up."""


class Components:
    """Components of the driver with a state that grows with each task."""

    num_assigned = 0

    def assign(self, tasks, iteration):
        self.num_assigned += len(tasks)
        return tasks

    def get_state(self):
        return self.num_assigned

    def set_state(self, state):
        self.num_assigned = state


class Algorithm(SamplingAlgorithm):
    """As much of an Algorithm as sampling needs."""

    iteration = 0

    def __init__(self, group, local=None, comes_back=None, **settings):
        self.config = LLMPPOConfig().environment("guess_number-v0")
        self.config.fault_tolerance(**settings)
        self.config.rollouts(max_retries=2)
        self.env_runner_group, self.env_runner = group, local
        self._task_source = TaskSource(seed=0, group_size=2)
        self._driver_components = Components()
        self.metrics, self.num_looks = Metrics(), 0
        self._comes_back = comes_back

    def restore_env_runners(self, group):
        self.num_looks += 1
        if self.num_looks == self._comes_back:
            group.healthy[:] = sorted({*group.healthy, 1})


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    """A clock that only sleeping moves."""
    now = [0.0]
    monkeypatch.setattr(
        compat,
        "restart_env_runner",
        lambda group, runner: (
            group.healthy.remove(runner) or group.restarted.append(runner)
        ),
    )
    monkeypatch.setattr(
        sampling,
        "time",
        types.SimpleNamespace(
            monotonic=lambda: now[0],
            sleep=lambda s: now.__setitem__(0, now[0] + s),
        ),
    )


def tasks_of(num_groups):
    """Return the seeds of the first tasks of the algorithms here, in their order."""
    return [
        task.seed for task in TaskSource(seed=0, group_size=2).next_groups(num_groups)
    ]


COUNTS = (
    "num_episodes_lost",
    "num_groups_retried",
    "num_episodes_sampled_locally",
    "num_hung_envs",
)


def test_groups_are_spread_and_every_count_is_a_number():
    group = Group([Runner(), Runner()])
    algo = Algorithm(group, local=Runner())
    assert seeds(algo.play_groups(4)) == tasks_of(4)
    assert [runner.num_sampled for runner in group.runners.values()] == [4, 4]
    assert algo.metrics == dict.fromkeys(COUNTS, 0)


def test_a_dead_runners_groups_are_sampled_again_in_the_same_iteration(caplog):
    group = Group([Runner(), Runner(), Runner()], dying=[2])
    algo = Algorithm(group)
    # The same seeds in the same order, none of them twice.
    assert seeds(algo.play_groups(6)) == tasks_of(6)
    assert algo.metrics["num_groups_retried"] == 2
    assert algo.metrics["num_episodes_lost"] == 0
    assert "EnvRunner 2 died in SampleTasks() with unknown weights" in caplog.text
    assert "2 groups are sampled again, 0 episodes are lost" in caplog.text
    assert sum(runner.num_sampled for runner in group.runners.values()) == 12
    assert len(algo.play_groups(4)) == 8
    assert algo.metrics["num_groups_retried"] == 0


def test_groups_that_end_every_runner_are_lost_and_counted(caplog):
    group = Group([Runner()])
    group.dying = {1: 3}
    algo = Algorithm(group)
    algo.restore_env_runners = lambda group: group.healthy.append(1)
    assert algo.play_groups(2) == []
    assert group.dying == {1: 0}  # max_retries=2: three attempts
    assert algo.metrics["num_episodes_lost"] == 4
    assert algo.metrics["num_groups_retried"] == 4
    assert "4 episodes are lost after rollouts.max_retries=2" in caplog.text
    assert seeds(algo.play_groups(2)) == tasks_of(4)[4:]


def test_a_silent_runner_is_restarted_and_its_groups_are_sampled_by_others(caplog):
    group = Group([Runner(version=7), Runner(version=7)], silent=[2])
    algo = Algorithm(group, batch_timeout_s=90.0)
    algo._weights_version = 7
    assert seeds(algo.play_groups(4)) == tasks_of(4)
    assert group.restarted == [2] and group.limits == [90.0, 90.0]
    assert algo.metrics["num_groups_retried"] == 2
    assert (
        "EnvRunner 2 did not answer within 90 s (fault_tolerance.batch_timeout_s) in "
        "SampleTasks() with weights version 7"
    ) in caplog.text


def test_a_runner_that_restarted_unseen_gets_weights_before_it_samples(caplog):
    group = Group([Runner(version=3), Runner(version=0)])
    algo = Algorithm(group)
    algo._weights_version = 3

    def update(runners):
        for runner in runners:
            assert not group.runners[runner].num_sampled
            group.runners[runner]._weights_seq_no = 3

    algo.update_restarted = update
    assert seeds(algo.play_groups(4)) == tasks_of(4)
    assert algo.metrics["num_groups_retried"] == 0
    # Nor does the right version do without all weights, e.g. of a LoRA base.
    group.runners[1].has_all_weights = False
    lacking = []

    def complete(runners):
        lacking.extend(runners)
        group.runners[1].has_all_weights = True

    algo.update_restarted = complete
    assert len(algo.play_groups(4)) == 8 and lacking == [1]


def test_an_iteration_waits_for_enough_runners(caplog):
    algo = Algorithm(
        Group([Runner(), Runner()], healthy=[2]),
        comes_back=3,
        min_healthy_env_runners=2,
        min_healthy_timeout_s=40.0,
    )
    assert seeds(algo.play_groups(2)) == tasks_of(2)
    assert algo.num_looks == 3
    assert (
        "1 of 2 EnvRunners are healthy, fewer than "
        "fault_tolerance.min_healthy_env_runners=2; waiting up to 40 s"
    ) in caplog.text


def test_with_too_few_runners_the_run_ends_and_keeps_its_tasks():
    group = Group([Runner(), Runner()], dying=[1])
    settings = {"min_healthy_env_runners": 2, "min_healthy_timeout_s": 40.0}
    algo = Algorithm(group, **settings)
    # In the middle of an iteration, in which EnvRunner 2 has sampled its part.
    with pytest.raises(
        EnvRunnerError, match=r"1 of 2 EnvRunners.*within 40 s"
    ) as error:
        algo.play_groups(2)
    assert "min_healthy_env_runners=2" in str(error.value) and algo.num_looks == 40
    assert algo._task_source.get_state() == {"cursor": 0}
    assert algo._driver_components.num_assigned == 0
    group.healthy = [1, 2]
    assert seeds(algo.play_groups(2)) == tasks_of(2)


def test_without_a_healthy_runner_the_run_waits_for_one(caplog):
    algo = Algorithm(Group([Runner()], healthy=[]), local=Runner(), comes_back=3)
    assert len(algo.play_groups(2)) == 4
    assert algo.num_looks == 3 and "waiting up to 90 s" in caplog.text
    assert algo.metrics["num_episodes_sampled_locally"] == 0


def test_without_any_runner_the_run_ends_with_a_sentence():
    for local in (Runner(), None):  # None: create_local_env_runner=False
        algo = Algorithm(Group([Runner()], healthy=[]), local=local)
        with pytest.raises(EnvRunnerError, match=r"0 of 1 EnvRunners.*within 90 s"):
            algo.play_groups(2)
        assert algo.num_looks == 90
    settings = {"restart_failed_env_runners": False}
    algo = Algorithm(Group([Runner()], healthy=[]), **settings)
    with pytest.raises(EnvRunnerError, match="within 0 s"):
        algo.play_extra_tasks(TaskSource(seed=0).next_groups(1), explore=False)


def test_the_local_runner_samples_alone_only_if_asked_to_and_is_counted(caplog):
    group = Group([Runner()], healthy=[])
    algo = Algorithm(group, local=Runner(), sample_locally_if_none=True)
    assert len(algo.play_groups(2)) == 4 and algo.num_looks == 0
    assert algo.metrics["num_episodes_sampled_locally"] == 4
    assert algo.metrics["num_episodes_lost"] == 0
    assert "the local one samples this iteration alone" in caplog.text
    alone = Algorithm(Group([]), local=Runner())  # num_env_runners=0: nothing to say
    assert len(alone.play_groups(2)) == 4
    assert alone.metrics["num_episodes_sampled_locally"] == 0


def test_runners_with_too_many_hung_environments_exit(caplog):
    runners = [Runner(num_hung_envs=4), Runner(num_hung_envs=3)]
    algo = Algorithm(Group(runners), max_hung_envs_per_env_runner=3)
    assert len(algo.play_groups(2)) == 4
    assert [r.exited for r in runners] == [True, False]
    assert algo.metrics["num_hung_envs"] == 7 and "are restarted" in caplog.text
    local = Runner(num_hung_envs=4)
    algo = Algorithm(Group([]), local=local, max_hung_envs_per_env_runner=3)
    algo.play_groups(1)
    assert not local.exited and "cannot be restarted" in caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        {"sample_locally_if_none": "yes"},
        {"max_hung_envs_per_env_runner": -1},
        {"min_healthy_env_runners": 0},
        {"min_healthy_timeout_s": 0},
        {"call_timeout_s": None},
        {"batch_timeout_s": 0},
    ],
)
def test_mistaken_settings_are_named(settings):
    config = LLMPPOConfig().environment("guess_number-v0")
    (name,) = settings
    with pytest.raises(ConfigError, match=f"fault_tolerance.{name}="):
        config.fault_tolerance(**settings).validate()


def test_sampling_locally_needs_a_local_runner():
    config = LLMPPOConfig().environment("guess_number-v0")
    config.env_runners(num_env_runners=1, create_local_env_runner=False)
    config.fault_tolerance(sample_locally_if_none=True)
    with pytest.raises(ConfigError, match="needs the local EnvRunner"):
        config.validate()


@pytest.mark.parametrize(
    ("runners", "settings", "message"),
    [
        (0, {"min_healthy_env_runners": 2}, "has no effect with num_env_runners=0"),
        (1, {"min_healthy_env_runners": 2}, "at most env_runners.num_env_runners=1"),
        (
            2,
            {"min_healthy_env_runners": 2, "sample_locally_if_none": True},
            "Leave one of the two out",
        ),
        (0, {"min_healthy_timeout_s": 9.0}, "no effect with env_runners.num_env_runn"),
        (
            1,
            {"min_healthy_timeout_s": 9.0, "restart_failed_env_runners": False},
            "no effect with restart_failed_env_runners=False",
        ),
        (
            1,
            {"min_healthy_timeout_s": 9.0, "sample_locally_if_none": True},
            "no effect with sample_locally_if_none=True",
        ),
        (0, {"call_timeout_s": 9.0}, "nothing is called in another process"),
        (0, {"batch_timeout_s": 9.0}, "nothing is called in another process"),
    ],
)
def test_settings_without_effect_are_refused(runners, settings, message):
    config = LLMPPOConfig().environment("guess_number-v0")
    config.env_runners(num_env_runners=runners).fault_tolerance(**settings)
    with pytest.raises(ConfigError, match=message):
        config.validate()


def test_limits_have_an_effect_where_something_is_remote():
    config = LLMPPOConfig().environment("guess_number-v0")
    config.learners(num_learners=1)
    config.fault_tolerance(call_timeout_s=9.0, batch_timeout_s=8.0).validate()


def test_an_answer_tells_how_many_environments_hang():
    tasks = TaskSource(seed=0).next_groups(1)
    answer = sampling.SampleTasks(tasks)(Runner(num_hung_envs=2))
    assert seeds(answer.episodes) == [tasks[0].seed]
    assert answer == SampleResult(answer.episodes, {}, 2, frozenset([0]))


def test_an_evaluation_that_loses_all_its_runners_ends():
    """RLlib compares the time limit with a time then, which None would not survive."""
    healthy = [1]
    group = types.SimpleNamespace(
        num_healthy_remote_workers=lambda: len(healthy),
        foreach_env_runner=lambda **call: healthy.clear() or [],
    )
    config = LLMPPOConfig().evaluation(evaluation_num_env_runners=1)
    algo = types.SimpleNamespace(
        config=config,
        evaluation_config=config,
        eval_env_runner_group=group,
        iteration=0,
        metrics=types.SimpleNamespace(
            aggregate=lambda *args, **kwargs: None,
            peek=lambda key, *, default, **kwargs: default,
        ),
    )
    assert LLMPPO._evaluate_with_fixed_duration(algo) == (None, 0, 0, [])
    config.evaluation_sample_timeout_s = None
    healthy.append(1)
    with pytest.raises(TypeError):
        LLMPPO._evaluate_with_fixed_duration(algo)


TINY = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}


def one_remote_runner(env):
    return (
        LLMPPOConfig()
        .environment(env)
        .language_model(tiny=TINY)
        .generation(max_new_tokens=3)
        .rollouts(episodes_per_iteration=8)
        .training(minibatch_size=4)
        .env_runners(num_env_runners=1, create_local_env_runner=False)
    )


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_killed_runner_comes_back_and_counts_return_to_0():
    import ray

    algo = one_remote_runner("copy_probe-v0").build_algo()
    assert algo.train()["num_episodes_lost"] == 0
    (actor,) = algo.env_runner_group._worker_manager.actors().values()
    ray.kill(actor, no_restart=False)
    found = [algo.train() for _ in range(3)]
    assert [r["num_episodes_lost"] for r in found] in ([8, 0, 0], [0, 0, 0])
    assert found[-1]["env_runners"]["num_episodes"] == 8
    algo.stop()


class Hanging(TextEnv):
    """Hangs in its only turn where a file is in its folder, until the file is gone."""

    max_turns = 1

    def start(self, rng, folder: str = ""):
        self.mark = os.path.join(folder, "hang")
        return "Go."

    def parse(self, completion):
        return completion

    def reply(self, action):
        while os.path.exists(self.mark):
            time.sleep(0.2)
        return TurnResult("Done.", reward=1.0, terminated=True)

    def random_action(self, rng):
        return "a"


def pid_and_hung(runner):
    return os.getpid(), runner.num_hung_envs


def has_ended(pid):
    """Return whether a process is gone, or is a zombie that nobody has waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def wait_for_end(pid, *, seconds):
    """Fail unless the process ends within a time."""
    deadline = time.monotonic() + seconds
    while not has_ended(pid):
        assert time.monotonic() < deadline, f"Process {pid} runs after {seconds} s."
        time.sleep(0.1)


def test_a_process_has_ended_once_it_exits_even_if_nobody_has_waited_for_it():
    child = subprocess.Popen(["sleep", "60"])
    assert not has_ended(child.pid)
    child.kill()
    wait_for_end(child.pid, seconds=10)  # a zombie
    child.wait()
    assert has_ended(child.pid)
    with pytest.raises(AssertionError, match="runs after 0 s"):
        wait_for_end(os.getpid(), seconds=0)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_runner_with_hung_environments_exits_and_another_process_goes_on(tmp_path):
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    config = one_remote_runner(Hanging)
    config.environment(env_config={"folder": str(tmp_path)})
    config.rollouts(step_timeout_s=1.0, max_retries=0, max_failed_fraction=1.0)
    config.fault_tolerance(max_hung_envs_per_env_runner=3)
    algo = config.build_algo()

    def look():
        return algo.env_runner_group.foreach_env_runner(
            pid_and_hung, local_env_runner=False
        )

    assert algo.train()["num_hung_envs"] == 0
    ((before, hung),) = look()
    assert hung == 0
    (tmp_path / "hang").touch()
    assert len(algo.play_groups(2)) == 0  # two episodes: as many as are tolerated
    assert look() == [(before, 2)]
    assert len(algo.play_groups(2)) == 0
    wait_for_end(before, seconds=60)  # 4 > 3
    os.remove(tmp_path / "hang")
    found = [algo.train() for _ in range(3)]
    assert found[-1]["env_runners"]["num_episodes"] == 8
    assert found[-1]["num_hung_envs"] == 0 == found[-1]["num_episodes_lost"]
    ((after, hung),) = look()
    assert after != before and hung == 0
    algo.stop()
