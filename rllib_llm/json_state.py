"""JSON encoding of the state of components, leagues and alarms, without pickle."""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from rllib_llm.errors import ConfigError

_TAG = "__type__"
_LISTS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}


def dumps(value: object, where: str) -> str:
    """Return ``value`` as JSON that :func:`loads` decodes to an equal value.

    Args:
        value: Built from None, booleans, numbers, texts, bytes, lists, tuples, sets,
            deques, dicts and numpy arrays and numbers.
        where: Owner of the state, for the message.

    Raises:
        ConfigError: For any other type, which would need pickled code.
    """
    return json.dumps(_encode(value, where))


def loads(text: str) -> Any:
    """Return the value that :func:`dumps` encoded."""
    return _decode(json.loads(text))


def _encode(value: object, where: str) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        array = np.asarray(value)
        data = base64.b64encode(array.tobytes()).decode("ascii")
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        parts = {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}
        return {_TAG: kind, **parts}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {_TAG: "bytes", "data": base64.b64encode(value).decode("ascii")}
    if isinstance(value, list):
        return [_encode(each, f"{where}[{i}]") for i, each in enumerate(value)]
    if isinstance(value, deque):
        return {_TAG: "deque", "of": _encode(list(value), where), "most": value.maxlen}
    if isinstance(value, dict):
        return _encode_dict(value, where)
    kind = type(value).__name__
    if _LISTS.get(kind) is type(value):
        return {_TAG: kind, "of": _encode(list(value), where)}
    raise ConfigError(
        f"{where} is a {type(value).__module__}.{kind}, which checkpoints cannot "
        "store: state is JSON. Return numbers, texts, lists, dicts and numpy arrays "
        "from get_state, and rebuild the object in set_state."
    )


def _encode_dict(value: dict[Any, Any], where: str) -> Any:
    if all(type(key) is str for key in value) and _TAG not in value:
        return {key: _encode(each, f"{where}[{key!r}]") for key, each in value.items()}
    items = [
        [_encode(key, where), _encode(each, f"{where}[{key!r}]")]
        for key, each in value.items()
    ]
    return {_TAG: "dict", "of": items}


def _decode(value: object) -> Any:
    if isinstance(value, list):
        return [_decode(each) for each in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_TAG)
    if kind is None:
        return {key: _decode(each) for key, each in value.items()}
    if kind in ("array", "scalar"):
        data = base64.b64decode(value["data"])
        array = np.frombuffer(data, np.dtype(value["dtype"])).reshape(value["shape"])
        return array.copy() if kind == "array" else array[()]
    if kind == "bytes":
        return base64.b64decode(value["data"])
    of = [_decode(each) for each in value["of"]]
    if kind == "deque":
        return deque(of, value["most"])
    return dict(of) if kind == "dict" else _LISTS[kind](of)
