"""Time limits of calls to other processes."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError

from rllib_llm.errors import CallTimeoutError

if TYPE_CHECKING:
    from ray import ObjectRef


@dataclasses.dataclass(frozen=True)
class TimeLimit:
    """The longest time that a call may take.

    Attributes:
        seconds: The limit.
        setting: The setting that it comes from, for messages.
    """

    seconds: float
    setting: str

    def __str__(self) -> str:
        return f"{self.seconds:g} s ({self.setting})"


def result_of(ref: ObjectRef, description: str, limit: TimeLimit) -> Any:
    """Return the value of a reference.

    Args:
        ref: Result of a remote call, or an object in Ray's store.
        description: The actor, the call and the version of the weights, for messages.
        limit: The longest time to wait.

    Raises:
        CallTimeoutError: If the value does not arrive within the limit.
    """
    try:
        return ray.get(ref, timeout=limit.seconds)
    except GetTimeoutError as error:
        raise CallTimeoutError(
            f"{description} did not answer within {limit}. If the call needs longer, "
            "raise the setting; otherwise read the log of the process for the cause."
        ) from error


def name_of(call: Any) -> str:
    """Return the name of a function, of a method or of a callable object's class."""
    if isinstance(call, str):
        return call
    while isinstance(call, functools.partial):
        call = call.func
    return getattr(call, "__name__", type(call).__name__)
