"""Search spaces in YAML: ``{grid: [..]}``, ``{loguniform: [a, b]}`` and so on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rllib_llm.errors import ConfigError
from rllib_llm.schema import is_number, show

SPACES = ("grid", "choice", "uniform", "loguniform", "randint")
_CONTAINERS = (dict, list, tuple)
_RANGES = ("uniform", "loguniform", "randint")


def is_space(value: object) -> bool:
    """Return True if ``value`` is a search space, e.g. ``{"grid": [1, 2]}``."""
    return isinstance(value, dict) and len(value) == 1 and next(iter(value)) in SPACES


def has_space(value: object) -> bool:
    """Return True if ``value`` is or contains a search space."""
    if is_space(value):
        return True
    if isinstance(value, dict):
        return any(map(has_space, value.values()))
    return isinstance(value, list) and any(map(has_space, value))


def paths_of_spaces(value: object, prefix: str = "") -> list[str]:
    """Return the dotted paths of the search spaces in ``value``."""
    if is_space(value):
        return [prefix]
    items: Any = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = enumerate(value)
    return [
        path
        for key, inner in items
        for path in paths_of_spaces(inner, _joined(prefix, key))
    ]


def _joined(prefix: str, key: object) -> str:
    return f"{prefix}.{key}" if prefix else str(key)


def at_path(data: dict[str, Any], path: str) -> Any:
    """Return the value at a dotted path of nested mappings."""
    for key in path.split("."):
        data = data[key]
    return data


def grid_sizes(value: Any) -> list[int]:
    """Return the number of values of each grid in ``value``."""
    if is_space(value):
        kind, arguments = _checked(value)
        return [len(arguments)] if kind == "grid" else []
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list):
        return []
    return [size for each in inner for size in grid_sizes(each)]


def arguments_of(space: dict[str, Any]) -> list[Any]:
    """Return the values of a search space, or the bounds of a range."""
    return _checked(space)[1]


def is_range(space: dict[str, Any]) -> bool:
    """Return True if a search space is a range given by bounds."""
    return next(iter(space)) in _RANGES


def to_tune(value: Any) -> Any:
    """Return ``value`` with every search space replaced by Tune's object."""
    if is_space(value):
        from ray import tune

        kind, arguments = _checked(value)
        if kind == "grid":
            return tune.grid_search(arguments)
        return tune.choice(arguments) if kind == "choice" else _range(kind, arguments)
    return _mapped(value, to_tune)


def count_in_config(value: Any) -> int:
    """Return the number of search spaces that Tune finds in a config's dictionary."""
    from ray.tune.search.sample import Domain

    if isinstance(value, Domain) or (
        isinstance(value, dict) and "grid_search" in value
    ):
        return 1
    inner = value.values() if isinstance(value, dict) else value
    return sum(map(count_in_config, inner)) if isinstance(value, _CONTAINERS) else 0


def first_of(value: object) -> Any:
    """Return ``value`` with every search space replaced by its first value."""
    return nth_of(0)(value)


def last_of(value: object) -> Any:
    """Return ``value`` with every search space replaced by its last value."""
    return nth_of(-1)(value)


def nth_of(n: int) -> Callable[[Any], Any]:
    """Return a function that replaces search spaces by their value ``n``, or the last.

    Args:
        n: From 0; -1: the last of each. Ranges have two values, their bounds.
    """

    def replace(value: Any) -> Any:
        if not is_space(value):
            return _mapped(value, replace)
        values = _values(value)
        return values[n if n < len(values) else -1]

    return replace


def most_values(value: Any) -> int:
    """Return the size of the largest search space in ``value``, 0 without any."""
    if is_space(value):
        return len(_values(value))
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list):
        return 0
    return max(map(most_values, inner), default=0)


def _values(space: dict[str, Any]) -> list[Any]:
    kind, arguments = _checked(space)
    if kind == "randint":
        return [arguments[0], arguments[1] - 1]  # Tune's upper bound is exclusive
    return arguments


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
            f"{{{kind}: {show(arguments)}}} must have a list, e.g. {{{kind}: [1, 2]}}."
        )
    if kind in _RANGES:
        _check_range(kind, arguments)
    return kind, arguments


def _check_range(kind: str, bounds: list[Any]) -> None:
    numbers = all(is_number(b, int if kind == "randint" else float) for b in bounds)
    if len(bounds) != 2 or not numbers or bounds[0] >= bounds[1]:
        pair = "two whole numbers" if kind == "randint" else "two numbers"
        raise ConfigError(
            f"{{{kind}: {show(bounds)}}} must have {pair}, the lower bound first, e.g. "
            f"{{{kind}: [1, 10]}}."
        )
    if kind == "loguniform" and bounds[0] <= 0:
        raise ConfigError(f"{{loguniform: {bounds!r}}} must have bounds above 0.")
