"""Calls to remote EnvRunners that end within a time limit."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayError

from rllib_llm import compat
from rllib_llm.errors import EnvRunnerError, summarize
from rllib_llm.remote_calls import TimeLimit, name_of

if TYPE_CHECKING:
    from ray.rllib.env.env_runner_group import EnvRunnerGroup

logger = logging.getLogger("rllib_llm")

Call = Callable[[Any], Any]


def call_runners(
    group: EnvRunnerGroup,
    call: Call | Mapping[int, Call],
    *,
    limit: TimeLimit,
    version: int | None,
    runners: Sequence[int] | None = None,
) -> dict[int, Any]:
    """Call remote EnvRunners, wait for them, and restart those that do not answer.

    Args:
        group: The EnvRunners.
        call: Called on each of them, or a call for each by its id.
        limit: The longest time to wait; later answers are discarded.
        version: Version of the weights, for messages; None: unknown.
        runners: Ids of the EnvRunners to call; None: all healthy ones.

    Returns:
        The answers by id. Those of EnvRunners that died or did not answer are missing.

    Raises:
        EnvRunnerError: If one died, and RLlib neither restarts nor ignores it.
    """
    called = list(group.healthy_env_runner_ids() if runners is None else runners)
    if not called:  # RLlib would take an empty list for all
        return {}
    each = call if isinstance(call, Mapping) else dict.fromkeys(called, call)
    try:
        answers = dict(
            group.foreach_env_runner(
                [_Labelled(runner, each[runner]) for runner in called],
                local_env_runner=False,
                remote_worker_ids=called,
                timeout_seconds=limit.seconds,
            )
        )
    except RayError as error:  # RLlib raises it unless failures are ignored
        dead = sorted(set(called) - set(group.healthy_env_runner_ids()))
        raise EnvRunnerError(
            f"EnvRunners {dead} of {called} died "
            f"{_in_call(name_of(each[called[0]]), version)}: {summarize(error)}. Read "
            "their logs for the cause. fault_tolerance.restart_failed_env_runners=True "
            "restarts EnvRunners."
        ) from error
    healthy = set(group.healthy_env_runner_ids())
    for runner in called:
        if runner in answers:
            continue
        name = name_of(each[runner])
        if runner in healthy:
            restart_silent(group, runner, name, limit=limit, version=version)
        else:
            logger.warning("EnvRunner %s died %s.", runner, _in_call(name, version))
    return answers


def restart_silent(
    group: EnvRunnerGroup, runner: int, name: str, *, limit: TimeLimit, version: object
) -> None:
    """Restart an EnvRunner that has not answered a call.

    Args:
        group: The EnvRunners.
        runner: Its id.
        name: Name of the call.
        limit: The time limit of the call.
        version: Version of the weights, for the message.
    """
    logger.warning(
        "EnvRunner %s did not answer within %s %s. Its process is ended; Ray restarts "
        "it unless fault_tolerance.restart_failed_env_runners is False. Raise the "
        "setting if the call needs longer.",
        runner,
        limit,
        _in_call(name, version),
    )
    compat.restart_env_runner(group, runner)


def _in_call(name: str, version: object) -> str:
    weights = "unknown weights" if version is None else f"weights version {version}"
    return f"in {name}() with {weights}"


@dataclasses.dataclass(frozen=True)
class _Labelled:
    """A call that returns the EnvRunner's id as well, which RLlib's results lack."""

    runner: int
    call: Call

    def __call__(self, env_runner: Any) -> tuple[int, Any]:
        return self.runner, self.call(env_runner)
