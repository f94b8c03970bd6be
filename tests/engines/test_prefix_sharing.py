"""Prefix sharing: computed once, with unchanged tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_reference import (
    VOCAB,
    build_model,
    check_turn,
    make_engine,
    run_until_idle,
    turn_params,
)

from rllib_llm.engines import generate
from rllib_llm.engines.prefix_sharing import MIN_SHARED
from rllib_llm.engines.requests import common_prefix
from rllib_llm.engines.slot_cache import SlotCache


def _tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


@pytest.mark.parametrize("forward", ["auto", "plain"])
def test_a_group_computes_its_prompt_once(forward):
    model = build_model("qwen3")
    engine = make_engine(model, max_slots=12, forward=forward)
    rules = _tokens(MIN_SHARED - 4, 0)
    tasks = [[*rules, *_tokens(30, seed)] for seed in (1, 2, 3)]
    prompts = [task for task in tasks for _ in range(4)]
    params = [turn_params(i) for i in range(12)]
    results = generate(engine, prompts, params)
    for prompt, param, result in zip(prompts, params, results, strict=True):
        check_turn(model, prompt, param, result)
    stats = engine.stats()
    length = len(tasks[0])
    assert stats["shared_tokens"] == 3 * 3 * (length - 1)
    assert stats["prefill_tokens"] == 3 * length + 9
    assert stats["cached_tokens"] == stats["reprefills"] == 0


def test_instructions_are_computed_once_and_each_task_once():
    model = build_model("qwen3")
    engine = make_engine(model, max_slots=12)
    rules = _tokens(20, 0)
    prompts = [[*rules, *_tokens(30, seed)] for seed in (1, 2, 3) for _ in range(4)]
    params = [turn_params(i) for i in range(12)]
    results = generate(engine, prompts, params)
    for prompt, param, result in zip(prompts, params, results, strict=True):
        check_turn(model, prompt, param, result)
    assert engine.stats()["prefill_tokens"] == 20 + 3 * 30 + 9
    assert engine.stats()["shared_tokens"] == 12 * 50 - (20 + 3 * 30 + 9)


def test_the_longest_common_prefix_is_copied():
    model = build_model("qwen3")
    engine = make_engine(model)
    base = _tokens(40, 5)
    shared = (40, 25, 39, 2 * MIN_SHARED)
    prompts = [base] + [[*base[:n], *_tokens(7, n)] for n in shared]
    prompts.append(base[:-1])  # one is a prefix of another
    params = [turn_params(i) for i in range(len(prompts))]
    results = generate(engine, prompts, params)
    for prompt, param, result in zip(prompts, params, results, strict=True):
        check_turn(model, prompt, param, result)
    stats = engine.stats()
    assert stats["shared_tokens"] >= len(shared) * min(shared)
    assert stats["shared_tokens"] + stats["prefill_tokens"] == sum(map(len, prompts))


def test_late_sessions_share_with_running_and_idle_ones():
    model = build_model("qwen3")
    engine = make_engine(model, max_slots=3)
    prompt = _tokens(30, 6)
    engine.open("first")
    engine.submit("first", prompt, turn_params(0, 20))
    for _ in range(3):
        engine.step()
    engine.open("second")
    engine.submit("second", prompt, turn_params(1))
    results = run_until_idle(engine)
    # Sampled tokens of the first session can be shared like a prompt.
    longer = [*prompt, *results["first"].token_ids.tolist(), 3, 4]
    engine.open("third")
    engine.submit("third", longer, turn_params(2))
    results |= run_until_idle(engine)
    check_turn(model, prompt, turn_params(0, 20), results["first"])
    check_turn(model, prompt, turn_params(1), results["second"])
    check_turn(model, longer, turn_params(2), results["third"])
    assert engine.stats()["shared_tokens"] >= 29 + 30


def test_stale_prefixes_are_not_shared_after_new_weights():
    model = build_model("qwen3")
    engine = make_engine(model)
    prompt = _tokens(30, 7)
    engine.open("old")
    engine.submit("old", prompt, turn_params(0))
    run_until_idle(engine)
    other = build_model("qwen3", seed=8)
    engine.update_weights(other.state_dict().items(), 1)
    engine.open("new")
    engine.submit("new", prompt, turn_params(1))
    check_turn(other, prompt, turn_params(1), run_until_idle(engine)["new"])
    assert engine.stats()["shared_tokens"] == 0


def test_sharing_works_with_eviction_and_chunks(monkeypatch):
    monkeypatch.setattr("rllib_llm.engines.scheduling.PREFILL_CHUNK", 16)
    monkeypatch.setattr("rllib_llm.engines.torch_engine.PREFILL_CHUNK", 16)
    model = build_model("qwen3")
    engine = make_engine(model, max_slots=3)
    base = _tokens(50, 9)
    prompts = [[*base[: 20 + 3 * i], i] for i in range(10)]
    params = [turn_params(i, 5 + i) for i in range(10)]
    results = generate(engine, prompts, params)
    for prompt, param, result in zip(prompts, params, results, strict=True):
        check_turn(model, prompt, param, result)
    assert engine.stats()["shared_tokens"] > 0


def test_common_prefix():
    rng = np.random.default_rng(0)
    for _ in range(300):
        first = rng.integers(0, 2, rng.integers(0, 12)).tolist()
        second = rng.integers(0, 2, rng.integers(0, 12)).tolist()
        same = 0
        while same < min(len(first), len(second)) and first[same] == second[same]:
            same += 1
        assert common_prefix(first, second) == same


def test_a_prefix_that_fills_whole_rows_is_copied():
    cache = SlotCache(3, 8, torch.device("cpu"))
    cache.prepare(0, np.array([0]), np.array([8]))
    new = torch.arange(8.0).view(8, 1, 1).expand(8, 2, 4)
    cache.write(torch.stack((new, -new), 1), layer=0)
    cache.copy_prefix(0, [1, 2], 8)
    cache.prepare(0, np.array([7, 7, 7]), np.array([1, 1, 1]))
    keys, values = cache.read(0)
    assert torch.equal(keys[1], keys[0])
    assert torch.equal(values[2], values[0])
    assert keys[0, 0, :, 0].tolist() == list(range(8))
