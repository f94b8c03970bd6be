"""TorchEngine: sessions, memory, errors, the shared model."""

from __future__ import annotations

import pytest
import torch
from engine_reference import (
    VOCAB,
    build_model,
    check_turn,
    make_engine,
    random_prompts,
    reference_turn,
    run_until_idle,
    turn_params,
)

from rllib_llm.engines import SessionError, generate
from rllib_llm.errors import ConfigError, ModelError


def test_abort_and_close(model):
    engine = make_engine(model)
    for name in "ab":
        engine.open(name)
    first = engine.submit("a", [1, 2, 3], turn_params(0))
    engine.submit("b", [4, 5], turn_params(1))
    for _ in range(3):
        engine.step()
    engine.abort(first)
    engine.abort(first)
    assert engine.num_unfinished == 1
    engine.submit("a", [], turn_params(0))
    results = run_until_idle(engine)
    check_turn(model, [1, 2, 3], turn_params(0), results["a"])
    check_turn(model, [4, 5], turn_params(1), results["b"])
    waiting = engine.submit("a", [7], turn_params(2))
    engine.abort(waiting)
    engine.submit("b", [7], turn_params(2))
    engine.close("b")
    assert engine.num_unfinished == 0
    assert engine.step() == []
    with pytest.raises(SessionError, match="not open"):
        engine.submit("b", [1], turn_params(0))


def test_invalid_session_calls_are_refused(model):
    engine = make_engine(model)
    engine.open("s")
    with pytest.raises(SessionError, match="already open"):
        engine.open("s")
    with pytest.raises(SessionError, match="no tokens"):
        engine.submit("s", [], turn_params(0))
    engine.submit("s", [1], turn_params(0))
    with pytest.raises(SessionError, match="busy"):
        engine.submit("s", [1], turn_params(0))
    with pytest.raises(SessionError, match="not open"):
        engine.close("t")


def test_long_prompts_are_prefilled_in_chunks(model, monkeypatch):
    monkeypatch.setattr("rllib_llm.engines.scheduling.PREFILL_CHUNK", 16)
    monkeypatch.setattr("rllib_llm.engines.torch_engine.PREFILL_CHUNK", 16)
    engine = make_engine(model)
    prompts = [[i + 1] * n for i, n in enumerate((100, 3, 17, 16, 1))]
    params = [turn_params(i) for i in range(5)]
    results = generate(engine, prompts, params)
    for prompt, param, result in zip(prompts, params, results, strict=True):
        check_turn(model, prompt, param, result)
    assert engine.stats()["prefill_tokens"] == sum(map(len, prompts))


def test_the_cache_grows_on_demand_within_its_budget(model):
    engine = make_engine(model, max_slots=1000)
    assert engine.cache_bytes == 0
    generate(engine, [[1, 2]] * 2, [turn_params(i) for i in range(2)])
    small = engine.cache_bytes
    generate(engine, [[1] * 150] * 8, [turn_params(i) for i in range(8)])
    per_token = 2 * 2 * 2 * 16 * 4  # keys and values, layers, heads, head_dim, bytes
    assert small == per_token * 2 * 32
    assert small < engine.cache_bytes <= per_token * 8 * 224
    budget = make_engine(model, max_slots=1000, kv_budget_bytes=per_token * 200 * 5 + 1)
    assert budget.max_slots == 5
    with pytest.raises(ConfigError, match="kv_budget_bytes"):
        make_engine(model, kv_budget_bytes=1000)


def test_many_sessions_share_a_small_budget(model):
    per_token = 2 * 2 * 2 * 16 * 4
    budget = 4 * 104 * per_token
    small = make_engine(
        model, max_slots=64, max_context_tokens=100, kv_budget_bytes=budget
    )
    roomy = make_engine(model, max_slots=64, max_context_tokens=100)
    assert small.max_slots == 4
    played = {small: [], roomy: []}
    for engine, results in played.items():
        for turn in range(3):
            for i, prompt in enumerate(random_prompts(40, seed=turn, longest=12)):
                if turn == 0:
                    engine.open(i)
                engine.submit(i, prompt, turn_params(40 * turn + i, 2 + i % 9))
            while engine.num_unfinished:
                done = engine.step()
                results += [(turn, d.session_id, d.token_ids.tolist()) for d in done]
                assert engine is roomy or engine.cache_bytes <= budget
    assert sorted(played[small]) == sorted(played[roomy])
    assert len(played[small]) == 3 * 40
    assert small.stats()["reprefills"] > 40
    assert roomy.stats()["reprefills"] == 0


def test_a_large_cache_is_freed_with_the_last_session(model, monkeypatch):
    engine = make_engine(model)
    prompts, params = [[1] * 30] * 3, [turn_params(i) for i in range(3)]
    expected = generate(engine, prompts, params)
    assert engine.cache_bytes > 0
    monkeypatch.setattr("rllib_llm.engines.torch_engine._KEPT_BYTES", 0)
    generate(engine, prompts, params)
    assert engine.cache_bytes == 0
    again = generate(engine, prompts, params)
    assert [r.token_ids.tolist() for r in again] == [
        r.token_ids.tolist() for r in expected
    ]


def test_serving_restores_the_model(model):
    model.config.attention_dropout = 0.5
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    expected = reference_turn(model, [1, 2, 3], turn_params(0))[0]
    model.train()
    model.model.norm.eval()
    flags = [m.training for m in model.modules()]
    engine = make_engine(model)
    (result,) = generate(engine, [[1, 2, 3]], [turn_params(0)])
    assert result.token_ids.tolist() == expected
    assert [m.training for m in model.modules()] == flags
    assert model.config._attn_implementation == "sdpa"
    loss = model(input_ids=torch.tensor([[1, 2, 3]])).logits.sum()
    loss.backward()
    assert model.lm_head.weight.grad is not None


def test_diverged_weights_are_reported_and_clear_the_cache(model):
    engine = make_engine(model)
    good = model.lm_head.weight.detach().clone()
    norm = model.model.norm.weight.detach().clone()
    engine.open("s")
    engine.submit("s", [1, 2, 3], turn_params(0))
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.weight.fill_(float("nan"))
    with pytest.raises(ModelError, match="not finite"):
        engine.step()
    assert engine.num_unfinished == 1
    healthy = build_model("qwen3")
    engine.update_weights(healthy.state_dict().items(), 1)
    assert torch.equal(model.lm_head.weight, good)
    assert torch.equal(model.model.norm.weight, norm)
    check_turn(model, [1, 2, 3], turn_params(0), run_until_idle(engine)["s"])


def test_tokens_cover_the_vocabulary(model):
    results = generate(
        make_engine(model),
        [[1]] * 16,
        [turn_params(i, 40, temperature=3.0) for i in range(16)],
    )
    seen = {t for r in results for t in r.token_ids.tolist()}
    assert len(seen) > VOCAB // 2
    assert max(seen) < VOCAB
