"""Search spaces in YAML: ``{grid: [..]}``, ``{loguniform: [a, b]}`` and so on."""

from __future__ import annotations

from typing import Any

from rllib_llm.errors import ConfigError

SPACES = ("grid", "choice", "uniform", "loguniform", "randint")
_RANGES = ("uniform", "loguniform", "randint")


def is_space(value: Any) -> bool:
    """Whether ``value`` is a search space, e.g. ``{"grid": [1, 2]}``."""
    return isinstance(value, dict) and len(value) == 1 and next(iter(value)) in SPACES


def has_space(value: Any) -> bool:
    """Whether a search space stands anywhere in ``value``."""
    if is_space(value):
        return True
    if isinstance(value, dict):
        return any(map(has_space, value.values()))
    return isinstance(value, list) and any(map(has_space, value))


def to_tune(value: Any) -> Any:
    """Return ``value`` with every search space as Tune's own object."""
    if is_space(value):
        from ray import tune

        kind, arguments = _checked(value)
        if kind == "grid":
            return tune.grid_search(arguments)
        return tune.choice(arguments) if kind == "choice" else _range(kind, arguments)
    return _mapped(value, to_tune)


def first_of(value: Any) -> Any:
    """Return ``value`` with every search space replaced by its first value."""
    if is_space(value):
        return _checked(value)[1][0]
    return _mapped(value, first_of)


def last_of(value: Any) -> Any:
    """Return ``value`` with every search space replaced by its last value."""
    if is_space(value):
        kind, arguments = _checked(value)
        return arguments[-1] - 1 if kind == "randint" else arguments[-1]
    return _mapped(value, last_of)


def _range(kind: str, arguments: list[Any]) -> Any:
    from ray import tune

    makers = {
        "uniform": tune.uniform,
        "loguniform": tune.loguniform,
        "randint": tune.randint,
    }
    return makers[kind](*arguments)


def _mapped(value: Any, function: Any) -> Any:
    if isinstance(value, dict):
        return {k: function(v) for k, v in value.items()}
    if isinstance(value, list):
        return [function(v) for v in value]
    return value


def _checked(space: dict[str, Any]) -> tuple[str, list[Any]]:
    kind, arguments = next(iter(space.items()))
    if not isinstance(arguments, list) or not arguments:
        raise ConfigError(
            f"{{{kind}: {arguments!r}}} needs a list, e.g. {{{kind}: [1, 2]}}."
        )
    if kind in _RANGES:
        _check_range(kind, arguments)
    return kind, arguments


def _check_range(kind: str, bounds: list[Any]) -> None:
    types = int if kind == "randint" else (int, float)
    numbers = all(isinstance(b, types) and not isinstance(b, bool) for b in bounds)
    if len(bounds) != 2 or not numbers or bounds[0] >= bounds[1]:
        what = "two whole numbers" if kind == "randint" else "two numbers"
        raise ConfigError(
            f"{{{kind}: {bounds!r}}} needs {what}, the lower bound first, e.g. "
            f"{{{kind}: [1, 10]}}."
        )
    if kind == "loguniform" and bounds[0] <= 0:
        raise ConfigError(f"{{loguniform: {bounds!r}}} needs bounds above 0.")
