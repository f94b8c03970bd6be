"""Check of values against type annotations."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import numbers
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from annotated_types import MinLen

from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.schema.annotations import Hint, InfinityAllowed, OneOf, Rule, SubclassOf
from rllib_llm.schema.describing import (
    choices_of,
    describe,
    limits,
    members,
    show,
    split,
)
from rllib_llm.schema.search_space_values import alternatives

if TYPE_CHECKING:
    from collections.abc import Callable

# Larger integers do not fit into tensors.
_MAX_INT = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Problem:
    """A violated rule.

    Attributes:
        where: Its dotted path, e.g. ``"language_model.lora.rank"``.
        subject: Path and value, e.g. ``"language_model.lora.rank=0"``.
        rule: The rule, e.g. ``"must be a whole number >= 1"``.
        hint: A remedy, or "".
    """

    where: str
    subject: str
    rule: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.subject} {self.rule}. {self.hint}".rstrip()


def require(where: str, value: object, kind: object, hint: str = "") -> None:
    """Raise ConfigError if ``value`` is not of ``kind``.

    Args:
        where: Dotted path of the value, for the message.
        value: The value; if it is a search space, each of its values is checked.
        kind: A type, with ranges and choices as ``Annotated`` metadata.
        hint: A remedy, used unless the type provides one.

    Raises:
        ConfigError: The value is not of ``kind``.
    """
    refuse(find_problem(where, value, kind), hint)


def refuse(problem: Problem | None, hint: str = "") -> None:
    """Raise ConfigError if there is a problem."""
    if problem is None:
        return
    if hint and not problem.hint:
        problem = dataclasses.replace(problem, hint=hint)
    raise ConfigError(str(problem))


def find_problem(where: str, value: object, kind: object) -> Problem | None:
    """Return the first problem with ``value``, None if it is of ``kind``.

    Types that would require an import (forward references) accept anything.

    Args:
        where: Dotted path of the value.
        value: The value; if it is a search space, each of its values is checked.
        kind: As for :func:`require`.
    """
    drawn = alternatives(value)
    if drawn is not None:
        checked = (find_problem(where, each, kind) for each in drawn)
        return next((problem for problem in checked if problem is not None), None)
    parts = members(kind)
    problems = [_problem_with(where, value, part) for part in parts]
    if None in problems:
        return None
    # A problem inside of a mapping or list is more specific than "must be a mapping".
    inside = [p for p in problems if p is not None and p.where != where]
    return inside[0] if inside else _wrong(where, value, kind)


@functools.cache
def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function's parameters, or of a class's __init__.

    The result is empty if a name cannot be resolved, e.g. one under TYPE_CHECKING.
    """
    if inspect.isclass(function):
        function = function.__init__
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        return {}


def is_number(value: object, kind: type = float) -> bool:
    """Return True if ``value`` is a finite number; for ``int``, an integer of 64 bits.

    Booleans do not count as numbers.
    """
    if isinstance(value, bool):
        return False
    if kind is int:
        return isinstance(value, numbers.Integral) and abs(int(value)) <= _MAX_INT
    return isinstance(value, numbers.Real) and _is_finite(value)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int too large for float
        return False


def _problem_with(where: str, value: object, kind: object) -> Problem | None:
    """Return the problem of a value with one member of a union."""
    base, metadata = split(kind)
    if is_typeddict(base):
        problem = _in_typed_dict(where, value, base)
    elif (get_origin(base) or base) in (dict, Mapping):
        problem = _in_mapping(where, value, base)
    elif _is_sequence(base):
        problem = _in_sequence(where, value, base)
    else:
        fits = _fits(value, base, metadata)
        problem = None if fits else _wrong(where, value, kind)
    if problem is None and not all(_holds(value, item) for item in metadata):
        return _wrong(where, value, kind)
    return problem


def _wrong(where: str, value: object, kind: object) -> Problem:
    subject = f"{where}={show(value)}"
    return Problem(where, subject, f"must be {describe(kind)}", _remedy(value, kind))


def _fits(value: object, base: object, metadata: Sequence[Any]) -> bool:
    """Return True if a scalar, class or function is of a type, without metadata."""
    if base is Any or isinstance(base, str) or type(base).__name__ == "ForwardRef":
        return True
    if base is None or base is type(None):
        return value is None
    origin = get_origin(base) or base
    if origin is Literal:
        return any(
            value == each and type(value) is type(each) for each in get_args(base)
        )
    if base in (int, float):
        return is_number(value, base) or _may_be_infinite(value, metadata)
    if origin is Callable:
        return callable(value)
    if origin is type:
        return inspect.isclass(value)
    return not inspect.isclass(origin) or isinstance(value, origin)


def _may_be_infinite(value: object, metadata: Sequence[Any]) -> bool:
    allowed = any(isinstance(item, InfinityAllowed) for item in metadata)
    return allowed and isinstance(value, float) and math.isinf(value)


def _holds(value: Any, item: Any) -> bool:
    """Return True if a value of the right type fulfils one item of metadata."""
    if isinstance(item, OneOf):
        return any(value == name for name in item.names)
    if isinstance(item, Rule):
        return item.holds(value)
    if isinstance(item, SubclassOf):
        return issubclass(value, item.base())
    if isinstance(item, MinLen):
        return len(value) >= item.min_length
    low, high, includes_low, includes_high = limits((item,))
    above = low is None or (value >= low if includes_low else value > low)
    below = high is None or (value <= high if includes_high else value < high)
    return above and below


def _in_typed_dict(where: str, value: object, kind: object) -> Problem | None:
    if not isinstance(value, Mapping):
        return _wrong(where, value, kind)
    fields = get_type_hints(kind, include_extras=True)
    for key, each in value.items():
        if key not in fields:
            hint = did_you_mean(str(key)[:60], fields)
            return Problem(f"{where}.", where, f"has no setting {show(key, 60)}", hint)
        problem = find_problem(f"{where}.{key}", each, fields[key])
        if problem is not None:
            return problem
    return None


def _in_mapping(where: str, value: object, kind: object) -> Problem | None:
    if not isinstance(value, Mapping):
        return _wrong(where, value, kind)
    of_keys, of_values = get_args(kind) or (Any, Any)
    for key, each in value.items():
        path = f"{where}.{key if isinstance(key, str) else show(key, 60)}"
        problem = find_problem(path, key, of_keys)
        if problem is not None:
            subject = f"{where}: the key {show(key, 60)}"
            return dataclasses.replace(problem, subject=subject)
        problem = find_problem(path, each, of_values)
        if problem is not None:
            return problem
    return None


def _is_sequence(base: object) -> bool:
    return (get_origin(base) or base) in (list, tuple, Sequence, Collection)


def _in_sequence(where: str, value: Any, kind: Any) -> Problem | None:
    listed = isinstance(value, list | tuple)
    if (get_origin(kind) or kind) is Collection:
        listed = isinstance(value, Iterable) and not isinstance(value, str | bytes)
    if not listed:
        return _wrong(where, value, kind)
    inner = [each for each in get_args(kind) if each is not Ellipsis]
    for index, each in enumerate(value) if inner else ():
        problem = find_problem(f"{where}[{index}]", each, inner[0])
        if problem is not None:
            return problem
    return None


def _remedy(value: object, kind: object) -> str:
    for member in members(kind):
        for item in split(member)[1]:
            if isinstance(item, Hint):
                return item.text
    bases = {split(member)[0] for member in members(kind)}
    if isinstance(value, str):
        choices = [name for name in choices_of(kind) if isinstance(name, str)]
        if choices:
            hint = did_you_mean(value[:80], choices)
            return hint if hint.startswith("Did you mean") else ""
        if bases & {int, float} and _reads_as_number(value):
            return "Write it without quotes."
    if isinstance(value, float) and int in bases and value.is_integer():
        return f"Write {int(value)}."
    if is_number(value) is False and isinstance(value, float):
        return "It must be finite."
    return ""


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
