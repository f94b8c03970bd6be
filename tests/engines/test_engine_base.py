"""SamplingParams and generate(): validation and errors."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from rllib_llm.engines import (
    ContextOverflowError,
    SamplingParams,
    SessionError,
    TorchEngine,
    generate,
)
from rllib_llm.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", 2.5),
        ("seed", -1),
        ("seed", None),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("stop_token_ids", (-1,)),
        ("stop_strings", "end"),
        ("stop_strings", ("",)),
    ],
)
def test_invalid_sampling_params_are_refused(field, value):
    settings = {"max_new_tokens": 4, "seed": 0, field: value}
    with pytest.raises(ConfigError, match=field):
        SamplingParams(**settings)


def test_sampling_params_accept_numpy_and_lists():
    params = SamplingParams(
        max_new_tokens=np.int64(3), seed=np.uint32(7), stop_token_ids=[np.int32(5)]
    )
    assert params.stop_token_ids == (5,)
    assert hash(params) == hash(pickle.loads(pickle.dumps(params)))


def test_generate_refuses_unequal_lengths_and_busy_engines(model):
    engine = TorchEngine(model, max_slots=2, max_context_tokens=32)
    params = SamplingParams(max_new_tokens=2, seed=0)
    with pytest.raises(ConfigError, match="1 prompts"):
        generate(engine, [[1]], [])
    engine.open("a")
    engine.submit("a", [1, 2], params)
    with pytest.raises(SessionError, match="idle engine"):
        generate(engine, [[1]], [params])


def test_generate_closes_its_sessions_after_an_error(model):
    engine = TorchEngine(model, max_slots=2, max_context_tokens=16)
    params = SamplingParams(max_new_tokens=2, seed=0)
    with pytest.raises(ContextOverflowError, match="max_context_tokens"):
        generate(engine, [[1], [1] * 16], [params] * 2)
    assert engine.num_unfinished == 0
    assert len(generate(engine, [[1]], [params])) == 1
