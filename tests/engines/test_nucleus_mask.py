"""Sampling within the nucleus of a mask policy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_reference import (
    VOCAB,
    build_model,
    make_engine,
    random_prompts,
    run_until_idle,
    turn_params,
)

from rllib_llm.engines.token_sampling import draw_uniforms, nucleus
from rllib_llm.errors import ConfigError
from rllib_llm.modules.nucleus_mask import forbid, pack_bits, unpack_bits

TOP_P = 0.6


def slow_nucleus(logits: torch.Tensor, top_p: float) -> np.ndarray:
    """Add the most likely tokens one by one, in float64. [V] -> bool [V]"""
    probs = torch.softmax(logits.double(), dim=-1).numpy()
    allowed, mass = np.zeros(len(probs), bool), 0.0
    for token in np.argsort(-probs, kind="stable"):
        if mass >= top_p:
            break
        allowed[token], mass = True, mass + probs[token]
    return allowed


@torch.no_grad()
def slow_turn(model, mask_policy, history, params):
    """Sample a turn with full passes of both models; return tokens, logps and sets."""
    tokens, logps, sets = [], [], []
    for uniform in draw_uniforms(params.seed, params.max_new_tokens):
        ids = torch.tensor([[*history, *tokens]])
        allowed = slow_nucleus(mask_policy(input_ids=ids).logits[0, -1], TOP_P)
        scores = model(input_ids=ids).logits[0, -1].double().numpy()
        probs = np.where(allowed, np.exp(scores - scores.max()), 0.0)
        probs /= probs.sum()
        token = int(probs.argmax())
        if params.temperature > 0.0:
            token = int((probs.cumsum() <= uniform).sum())
        tokens.append(token)
        logps.append(float(np.log(probs[token])))
        sets.append(allowed)
    return tokens, logps, np.array(sets)


def check(model, mask_policy, history, params, result):
    tokens, logps, sets = slow_turn(model, mask_policy, history, params)
    assert result.token_ids.tolist() == tokens
    np.testing.assert_allclose(result.logps, logps, atol=1e-4)
    bits = unpack_bits(torch.as_tensor(result.allowed), VOCAB)
    np.testing.assert_array_equal(bits.numpy(), sets)
    assert 1 < sets.sum(-1).mean() < VOCAB / 2  # neither one token nor all
    return [*history, *tokens]


@pytest.mark.parametrize("forward", ["auto", "plain"])
def test_turns_are_those_of_full_passes_over_many_turns_and_rows(model, forward):
    mask_policy = build_model(seed=1)
    engine = make_engine(
        model,
        mask_policy=mask_policy,
        mask_top_p=TOP_P,
        max_slots=4,
        forward=forward,
    )
    assert engine.is_fused == (forward == "auto")
    # More sessions than rows, a common prefix, and turns of unequal length: rows are
    # swapped, copied and evicted.
    common = random_prompts(1, seed=5)[0] + list(range(20))
    histories = {i: common + p for i, p in enumerate(random_prompts(6, seed=3))}
    for session in histories:
        engine.open(session)
    new = dict(histories)
    for turn in range(2):
        settings = {s: turn_params(10 * turn + s, 3 + s) for s in histories}
        for session in histories:
            engine.submit(session, new[session], settings[session])
        results = run_until_idle(engine)
        for session, history in histories.items():
            histories[session] = check(
                model, mask_policy, history, settings[session], results[session]
            )
            new[session] = [session + 1, 7]
            histories[session] = histories[session] + new[session]
    assert engine.stats()["shared_tokens"] > 0
    assert engine.cache_bytes > engine._table.cache.mirror.num_bytes > 0


def test_a_renewed_mask_policy_is_used_from_the_next_version_on(model):
    mask_policy = build_model(seed=1)
    engine = make_engine(model, mask_policy=mask_policy, mask_top_p=TOP_P)
    engine.open("a")
    engine.submit("a", [1, 2, 3], turn_params(0))
    first = run_until_idle(engine)["a"]
    history = check(model, mask_policy, [1, 2, 3], turn_params(0), first)
    before = pack_bits(torch.as_tensor(np.ones((1, VOCAB), bool)))
    assert before.shape == first.allowed[:1].shape
    mask_policy.load_state_dict(model.state_dict())
    engine.set_weights_version(1)
    engine.submit("a", [4], turn_params(1))
    check(model, model, [*history, 4], turn_params(1), run_until_idle(engine)["a"])


def test_greedy_turns_stay_inside_the_nucleus(model):
    mask_policy = build_model(seed=1)
    engine = make_engine(model, mask_policy=mask_policy, mask_top_p=TOP_P)
    engine.open("a")
    params = turn_params(0, temperature=0.0)
    engine.submit("a", [1, 2, 3], params)
    check(model, mask_policy, [1, 2, 3], params, run_until_idle(engine)["a"])


def test_an_engine_without_a_mask_policy_records_no_sets(model):
    engine = make_engine(model)
    engine.open("a")
    engine.submit("a", [1, 2, 3], turn_params(0))
    assert run_until_idle(engine)["a"].allowed is None


def test_several_models_have_no_mask(model):
    with pytest.raises(ConfigError, match="does not go with others"):
        make_engine(model, mask_policy=build_model(seed=1), others=[model])


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
def test_the_nucleus_is_the_smallest_set(top_p):
    logits = 3 * torch.randn(50, 300, generator=torch.Generator().manual_seed(0))
    expected = np.stack([slow_nucleus(row, top_p) for row in logits])
    np.testing.assert_array_equal(nucleus(logits, top_p).numpy(), expected)


@pytest.mark.parametrize("vocabulary", [8, 9, 300])
def test_bits_hold_sets_of_any_size(vocabulary):
    allowed = (
        torch.rand(7, vocabulary, generator=torch.Generator().manual_seed(1)) < 0.5
    )
    bits = torch.as_tensor(pack_bits(allowed))
    assert bits.shape == (7, -(-vocabulary // 8))
    assert torch.equal(unpack_bits(bits, vocabulary), allowed)
    logits = torch.zeros(7, vocabulary)
    assert torch.equal(forbid(logits, bits) == 0, allowed)
