"""JSON state: exact round trips and refused types."""

from __future__ import annotations

import json
from collections import deque

import numpy as np
import pytest

from rllib_llm import json_state
from rllib_llm.errors import ConfigError

VALUES = [
    None,
    True,
    3,
    -0.1,
    float("inf"),
    "text \ud800",
    b"\x00\xff",
    [1, [2.5, None]],
    (1, ("a", 2)),
    {"a": {"b": (1,)}},
    {(1, "x"): [1], 2: "two", None: 0},
    {"__type__": "tuple", "of": [1]},
    {3, 4},
    frozenset({"a"}),
    deque([1, (2,)], maxlen=3),
    deque([1]),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_come_back_equal_and_of_their_type(value):
    text = json_state.dumps(value, "state")
    json.loads(text)
    again = json_state.loads(text)
    assert again == value and type(again) is type(value)
    if isinstance(value, deque):
        assert again.maxlen == value.maxlen


@pytest.mark.parametrize("dtype", ["<f8", "<f4", ">i4", "?", "u1", "<c16"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_arrays_come_back_bit_by_bit(dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    again = json_state.loads(json_state.dumps({"x": array}, "state"))["x"]
    assert again.dtype == array.dtype and again.shape == array.shape
    assert again.tobytes() == array.tobytes() and again.flags.writeable
    number = np.float32(0.1)
    again = json_state.loads(json_state.dumps(number, "state"))
    assert type(again) is np.float32 and again == number


@pytest.mark.parametrize(
    ("value", "described"),
    [
        ({"rng": [np.random.default_rng(0)]}, r"state\['rng'\]\[0\] is a numpy"),
        (np.array([object()]), "numpy.ndarray"),
        ({"f": len}, "builtins.builtin_function_or_method"),
    ],
)
def test_objects_that_need_code_are_refused(value, described):
    with pytest.raises(
        ConfigError, match=f"{described}.*rebuild the object in set_state"
    ):
        json_state.dumps(value, "state")
