"""Calls of RLlib's callbacks during sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger


class SampleCallbacks:
    """The callbacks of a config: objects of its classes, and its single functions.

    Args:
        config: The run's config.
        metrics: Logger that every callback receives.
    """

    def __init__(self, config: AlgorithmConfig, metrics: MetricsLogger) -> None:
        self._config, self._metrics = config, metrics
        self._objects = [c() for c in _as_list(config.callbacks_class) if c is not None]
        self._handlers: dict[str, list[Callable[..., None]]] = {}

    def call(self, name: str, **kwargs: Any) -> None:
        """Call all callbacks of an event, e.g. ``on_episode_end``."""
        if name not in self._handlers:
            methods = [
                getattr(callback, name)
                for callback in self._objects
                # Skip methods that are not overridden: some events fire at every turn.
                if getattr(type(callback), name) is not getattr(RLlibCallback, name)
            ]
            functions = _as_list(getattr(self._config, f"callbacks_{name}", None))
            self._handlers[name] = methods + [f for f in functions if f is not None]
        for handler in self._handlers[name]:
            handler(metrics_logger=self._metrics, **kwargs)


def _as_list(value: object) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
