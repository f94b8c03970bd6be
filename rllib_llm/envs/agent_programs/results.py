"""Results of programs as rewards."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rllib_llm.envs.env_options import is_finite
from rllib_llm.errors import EnvContractError

_FORMS = (
    "It must be a number, or {'reward': a number or a number per model, 'success': "
    "bool, 'metrics': {name: number}}; only 'reward' is required."
)


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of a program.

    Attributes:
        rewards: Reward by model.
        success: Whether the task was solved; None if undefined.
        metrics: Values to average over episodes.
    """

    rewards: dict[str, float]
    success: bool | None
    metrics: dict[str, float]


def read_result(value: Any, models: Sequence[str], origin: str) -> Result:
    """Return the result that a program or a reward function returned.

    A reward that is one number belongs to every model. Without ``success``, a reward of
    1 or more for each model means success.

    Args:
        value: The returned value.
        models: The models that replied in the episode.
        origin: Subject of the message, e.g. ``"The program"``.

    Raises:
        EnvContractError: If it has another form.
    """
    given: Mapping[str, Any] = (
        value if isinstance(value, Mapping) else {"reward": value}
    )
    extra = sorted(map(str, given.keys() - {"reward", "success", "metrics"}))
    reward = given.get("reward")
    rewards: dict[str, Any] = (
        dict(reward) if isinstance(reward, Mapping) else dict.fromkeys(models, reward)
    )
    numbers = {**rewards, **(given.get("metrics") or {})}
    if extra or not all(_is_number(number) for number in numbers.values()):
        raise EnvContractError(f"{origin} returned {_short(value)}. {_FORMS}")
    unknown = sorted(set(rewards) - set(models))
    if unknown:
        raise EnvContractError(
            f"{origin} rewarded {', '.join(map(repr, unknown))}, but the models that "
            f"replied in this episode are {', '.join(models)}. Reward one of these."
        )
    success = given.get("success")
    if success is None and rewards:
        success = all(float(number) >= 1.0 for number in rewards.values())
    return Result(
        {model: float(number) for model, number in rewards.items()},
        None if success is None else bool(success),
        {str(k): float(v) for k, v in (given.get("metrics") or {}).items()},
    )


def _is_number(value: Any) -> bool:
    return not isinstance(value, str) and is_finite(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
