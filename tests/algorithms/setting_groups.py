"""Effects of RLlib's settings on groups of EnvRunners, evaluation and recovery."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.utils.actor_manager import (
    FaultTolerantActorManager,
    RemoteCallResults,
    ResultOrError,
)
from ray.rllib.utils.framework import get_device
from ray.rllib.utils.metrics.stats import MeanStats
from setting_looks import config_of, runner_of
from setting_places import Failing
from setting_runs import Marker, Unmeasured, configured_run, connect
from team_helpers import Alone

from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

# Connectors ---------------------------------------------------------------------------


def asked_in_sampling(algo: str, env: Any = None, **sections: Any) -> bool:
    """Return whether an own connector of the EnvRunner is called."""
    Marker.num_calls = 0
    runner = runner_of(algo, env, **sections)
    runner.sample(num_episodes=2)
    return Marker.num_calls > 0


class Counted(ConnectorV2):
    """A connector with a state: a number, which EnvRunners add up."""

    def __init__(self, *args: Any, count: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.count = count

    def __call__(self, *, batch, **kwargs):
        return batch

    def get_state(self, *args, **kwargs):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]

    def merge_states(self, states):
        return {"count": sum(state["count"] for state in states)}


def synchronised(algo: str, env: Any = None, **sections: Any) -> list[int]:
    """Return the connectors' states of the local and two remote EnvRunners."""
    given = {
        "env_to_module_connector": lambda *args: Counted(),
        **sections.pop("env_runners", {}),
    }
    config = config_of(algo, env, env_runners=given, **sections)
    group = group_of(config)
    remote = [LLMEnvRunner(config=config, worker_index=i) for i in (1, 2)]
    runners = [group.local_env_runner, *remote]
    for count, runner in zip((1, 20, 300), runners, strict=True):
        runner._env_to_module.connectors[0].count = count
    group.num_healthy_remote_workers = lambda: 2
    group.foreach_env_runner = lambda call, **kwargs: [call(r) for r in remote]
    group.foreach_env_runner_async_fetch_ready = lambda func, kwargs, **more: [
        getattr(runner, func)(**kwargs) for runner in remote
    ]
    group.sync_env_runner_states(config=config)
    return [runner._env_to_module.connectors[0].count for runner in runners]


# Groups of EnvRunners -----------------------------------------------------------------


class OwnRunner(LLMEnvRunner):
    """An EnvRunner that somebody wrote."""


def group_of(config: Any) -> EnvRunnerGroup:
    """Return a group with a local EnvRunner alone."""
    connect()
    return EnvRunnerGroup(config=config, num_env_runners=0)


def in_group(see: Callable[[EnvRunnerGroup], Any]) -> Callable[..., Any]:
    """Return a look at a group with a local EnvRunner alone."""
    return lambda algo, env=None, **sections: see(
        group_of(config_of(algo, env, **sections))
    )


def validated(algo: str, env: Any = None, **sections: Any) -> list[str]:
    """Return what new EnvRunners are asked."""
    asked: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            FaultTolerantActorManager,
            "foreach_actor",
            lambda self, call: asked.append(call.__code__.co_names) or [],
        )
        group_of(config_of(algo, env, **sections))
    return asked


class Busy:
    """An actor that never answers."""

    def __init__(self) -> None:
        self.num_requests = 0
        self.apply = SimpleNamespace(remote=self._take)

    def _take(self, *args: Any, **kwargs: Any) -> object:
        self.num_requests += 1
        return object()


def requests_in_flight(group: EnvRunnerGroup) -> int:
    """Return how many requests an EnvRunner holds that answers none."""
    actor = Busy()
    group._worker_manager.add_actors([actor])
    for _ in range(5):
        group.foreach_env_runner_async("get_metrics", tag="metrics")
    return actor.num_requests


def after_an_error(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the results of a call that fails on the only remote EnvRunner."""
    given = {"restart_failed_env_runners": False, **sections.pop("fault_tolerance", {})}
    group = group_of(config_of(algo, env, fault_tolerance=given, **sections))
    results = RemoteCallResults()
    results.add_result(1, ResultOrError(error=OSError("lost")), "call")
    group._worker_manager.actor_ids = lambda: [1]
    group._worker_manager.foreach_actor = lambda *args, **kwargs: results
    try:
        return group.foreach_env_runner(lambda runner: 1, local_env_runner=False)
    except OSError as error:
        return str(error)


class AskedForError(Exception):
    """Ends the construction of an Algorithm as it makes its EnvRunners."""


def asked_for(see: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """Return a look at the EnvRunnerGroup that an Algorithm asks for."""

    def look(algo: str, env: Any = None, **sections: Any) -> Any:
        def stop(**kwargs: Any) -> None:
            raise AskedForError(kwargs)

        connect()
        config = config_of(algo, env, **sections)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ray.rllib.algorithms.algorithm.EnvRunnerGroup", stop)
            with pytest.raises(AskedForError) as caught:
                config.build_algo()
        return see(caught.value.args[0])

    return look


def log_level(asked: dict[str, Any]) -> int:
    """Return the level of RLlib's logger."""
    return logging.getLogger("ray.rllib").level


class OwnStats(MeanStats):
    """A reduction that somebody wrote."""

    stats_cls_identifier = "own"


def own_statistics(algo: str, env: Any = None, **sections: Any) -> str:
    """Return what an EnvRunner makes of a metric with a reduction of that name."""
    metrics = runner_of(algo, env, **sections).metrics
    try:
        metrics.log_value("length", 1.0, reduce="own")
    except Exception as error:  # RLlib's error for unknown names is a KeyError today
        return type(error).__name__
    return type(metrics.stats["length"]).__name__


def device_of_learner(algo: str, env: Any = None, **sections: Any) -> str:
    """Return the device that a local Learner takes on a machine with four GPUs."""
    connect()
    config = config_of(algo, env, **sections)
    with pytest.MonkeyPatch.context() as patch:
        torch = SimpleNamespace(
            cuda=SimpleNamespace(device_count=lambda: 4), device="cuda:{}".format
        )
        patch.setattr(
            "ray.rllib.utils.framework.try_import_torch", lambda: (torch, None)
        )
        patch.setattr("ray.air._internal.torch_utils.get_devices", lambda: ["cuda:0"])
        return get_device(config, 1)


# RLlib's own EnvRunner ----------------------------------------------------------------


def stock_runner(algo: str, env: Any = None, **sections: Any) -> SingleAgentEnvRunner:
    """Return RLlib's EnvRunner with the connectors and modules of the package."""
    given = {"env_runner_cls": SingleAgentEnvRunner, **sections.pop("env_runners", {})}
    config = config_of(algo, env or Alone, env_runners=given, **sections)
    return SingleAgentEnvRunner(config=config, worker_index=0)


def with_stock(see: Callable[[SingleAgentEnvRunner], Any]) -> Callable[..., Any]:
    """Return a look at RLlib's EnvRunner."""
    return lambda algo, env=None, **sections: see(stock_runner(algo, env, **sections))


def mean_return(runner: SingleAgentEnvRunner) -> float:
    """Return the mean return that follows from four episodes, the last one good."""
    for episode_return in (0.0, 0.0, 0.0, 1.0):
        runner._log_episode_metrics(3, episode_return, 0.1)
    return float(runner.metrics.peek("episode_return_mean"))


def survives_failing_env(runner: SingleAgentEnvRunner) -> Any:
    """Return how many episodes come of an environment that fails at first."""
    Failing.attempts.clear()
    try:
        return len(runner.sample(num_episodes=1))
    except RuntimeError as error:
        return type(error).__name__


# Evaluation and recovery of a real Algorithm ------------------------------------------


class Evaluators:
    """A group of one remote evaluation EnvRunner.

    Args:
        healthy_after: How often it must be probed before it is healthy; None: never.
    """

    num_in_flight = 0

    def __init__(self, healthy_after: int | None = 0) -> None:
        self.healthy_after, self.num_probes = healthy_after, 0
        self.calls: list[dict[str, Any]] = []

    def num_remote_env_runners(self) -> int:
        return 1

    def num_healthy_remote_workers(self) -> int:
        wanted = self.healthy_after
        return int(wanted is not None and self.num_probes >= wanted)

    def probe_unhealthy_env_runners(self, **kwargs: Any) -> None:
        self.num_probes += 1

    def foreach_env_runner(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Take a call and fail in it."""
        self.calls.append(kwargs)
        self.healthy_after = None
        return []

    foreach_env_runner_async_fetch_ready = foreach_env_runner

    def sync_weights(self, *args: Any, **kwargs: Any) -> None:
        """Take them."""

    sync_env_runner_states = sync_weights


def with_evaluators(
    look: Callable[[Any, Evaluators], Any], healthy_after: int | None = 0
) -> Callable[..., Any]:
    """Return a look at an Algorithm with one remote evaluation EnvRunner."""

    def seen(algo: str, env: Any = None, **sections: Any) -> Any:
        given = {"evaluation_num_env_runners": 1, **sections.pop("evaluation", {})}
        evaluators = Evaluators(healthy_after)
        with (
            pytest.MonkeyPatch.context() as patch,
            configured_run({"evaluation": given, **sections}) as run,
        ):
            patch.setattr(run, "eval_env_runner_group", evaluators)
            return look(run, evaluators)

    return seen


def fixed_call(run: Any, evaluators: Evaluators) -> dict[str, Any]:
    """Return the time limit and the forced reset of an evaluation."""
    run._evaluate_with_fixed_duration()
    (call,) = evaluators.calls
    return {"limit": call["timeout_seconds"], "reset": call["kwargs"]["_force_reset"]}


def counts_asked_for(run: Any, evaluators: Evaluators) -> list[int | None]:
    """Return the steps and episodes that an evaluation asks an EnvRunner for."""
    run._evaluate_with_fixed_duration()
    (call,) = evaluators.calls
    asked: dict[str, Any] = {}
    runner = SimpleNamespace(
        worker_index=1,
        sample=lambda **given: asked.update(given) or [],
        get_metrics=dict,
    )
    call["func"](runner, **call["kwargs"])
    return [asked["num_timesteps"], asked["num_episodes"]]


def steps_asked_for(run: Any, evaluators: Evaluators) -> int:
    """Return the steps asked of an EnvRunner while training goes on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "metrics", Unmeasured())
        run._evaluate_with_auto_duration(SimpleNamespace(done=lambda: True))
    return evaluators.calls[0]["kwargs"]["num"]


def waited_for(run: Any, evaluators: Evaluators) -> bool:
    """Return whether an evaluation waits for an EnvRunner that comes back."""
    run._maybe_wait_for_eval_env_runner_recovery()
    return evaluators.num_healthy_remote_workers() > 0


def without_evaluators(run: Any, evaluators: Evaluators) -> list[str]:
    """Return what two evaluations without any EnvRunner raise."""
    run._counters["num_consecutive_eval_no_workers_iterations"] = 0
    raised = []
    for _ in range(2):
        try:
            run.evaluate()
            raised.append("nothing")
        except RuntimeError as error:
            raised.append(type(error).__name__)
    return raised


def own_evaluation(algorithm: Any, evaluators: Any) -> tuple[dict[str, Any], int, int]:
    """Evaluate one episode; RLlib reports what is aggregated, not what is returned."""
    runner = evaluators.local_env_runner
    (episode,) = runner.sample(num_episodes=1)
    key = ("evaluation", "env_runners")
    algorithm.metrics.aggregate([runner.get_metrics()], key=key)
    return {"dropped": 1.0}, len(episode), len(episode)


def in_parallel(algo: str, env: Any = None, **sections: Any) -> bool:
    """Return whether an iteration is evaluated while it trains."""
    seen = []

    def both(run: Any) -> Any:
        seen.append(run)
        results, context = run._run_one_training_iteration()
        return results, {}, context

    name = "_run_one_training_iteration_and_evaluation_in_parallel"
    with pytest.MonkeyPatch.context() as patch, configured_run(sections) as run:
        patch.setattr(LLMAlgorithm, name, both)
        run.train()
    return bool(seen)


def restore_limit(algo: str, env: Any = None, **sections: Any) -> float:
    """Return how long a restarted EnvRunner may take to load its state."""
    limits: list[float] = []
    with configured_run(sections) as run:
        group = SimpleNamespace(
            probe_unhealthy_env_runners=lambda: [1],
            local_env_runner=run.env_runner,
            foreach_env_runner=lambda **call: limits.append(call["timeout_seconds"]),
        )
        assert run.restore_env_runners(group) == [1]
    return limits[0]
