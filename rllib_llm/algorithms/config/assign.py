"""Storage of the settings given to fluent methods."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ray.rllib.algorithms.algorithm_config import NotProvided

if TYPE_CHECKING:
    from rllib_llm.rllib_bases import RLlibConfig

_Method = TypeVar("_Method", bound=Callable[..., Any])


def assign(config: RLlibConfig, **settings: Any) -> None:
    """Set attributes of ``config``; ``NotProvided`` leaves them unchanged."""
    for name, value in settings.items():
        if value is not NotProvided:
            setattr(config, name, value)


def stores_settings(
    prefix: str = "", **attributes: str
) -> Callable[[_Method], _Method]:
    """Let a fluent method store its own keywords as attributes of the config.

    The method's body runs first, so that it can pass ``**kwargs`` on to RLlib's method;
    what RLlib's stores under the same name is replaced.

    Args:
        prefix: Prefix of the attributes' names.
        attributes: Attribute of a keyword whose attribute is not ``prefix + keyword``.
    """

    def decorate(method: _Method) -> _Method:
        parameters = inspect.signature(method).parameters.values()
        names = {
            p.name: attributes.get(p.name, prefix + p.name)
            for p in parameters
            if p.kind is p.KEYWORD_ONLY
        }

        @functools.wraps(method)
        def call(config: Any, **settings: Any) -> Any:
            result = method(config, **settings)
            stored = {names[k]: v for k, v in settings.items() if k in names}
            assign(config, **stored)
            return result

        return call  # type: ignore[return-value]  # same signature

    return decorate
