"""VLLMEngine against the torch engine: tokens, log-probabilities, weights, sessions."""

from __future__ import annotations

import copy
import functools
import uuid

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

from rllib_llm.data.types import FinishReason
from rllib_llm.engines import (
    ActorEngine,
    ContextOverflowError,
    SessionError,
    VLLMEngine,
    generate,
)
from rllib_llm.errors import ConfigError, ModelError
from rllib_llm.modules.lora import add_lora, is_adapter

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow

CONTEXT = 200
LORA = {"rank": 4, "alpha": 16}


def build(seed: int = 0, **changes) -> torch.nn.Module:
    """Return a model folder; vLLM's attention on CPUs needs heads of size 32."""
    return build_model("qwen3", seed, head_dim=32, **changes)


@pytest.fixture
def model():
    return build()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    build(9).save_pretrained(path)
    return str(path)


def make_vllm(folder, model=None, **settings) -> VLLMEngine:
    kwargs = {"kv_cache_memory_bytes": 2**26, **settings.pop("engine_kwargs", {})}
    engine = VLLMEngine(
        folder,
        max_slots=8,
        max_context_tokens=CONTEXT,
        engine_kwargs=kwargs,
        **settings,
    )
    if model is not None:
        engine.update_weights(model.named_parameters(), 0)
    return engine


@torch.no_grad()
def scores(model, history, result, params):
    """Return log-probabilities of the sampled tokens from one full forward. [T]"""
    tokens = result.token_ids.tolist()
    logits = model(input_ids=torch.tensor([history + tokens])).logits[0]
    logps = torch.log_softmax(logits / (params.temperature or 1.0), -1)
    rows = range(len(history) - 1, len(history) + len(tokens) - 1)
    return logps[list(rows), tokens].numpy()


def check(model, history, params, result) -> list[int]:
    expected = scores(model, history, result, params)
    np.testing.assert_allclose(result.logps, expected, atol=1e-4)
    assert result.token_ids.dtype == np.int32
    assert result.logps.dtype == np.float32
    return history + result.token_ids.tolist()


def test_greedy_turns_equal_the_torch_engine_before_and_after_an_update(folder, model):
    vllm = make_vllm(folder, model)
    other = build(2)
    prompts = random_prompts(6)
    greedy = [turn_params(i, 24, temperature=0.0) for i in range(6)]
    for version, current in enumerate((model, other)):
        vllm.update_weights(current.named_parameters(), version)
        ours = generate(vllm, prompts, greedy)
        theirs = generate(make_engine(current), prompts, greedy)
        for one, two in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one.token_ids, two.token_ids)
            np.testing.assert_allclose(one.logps, two.logps, atol=1e-4)
            assert one.weights_version == version


FAMILIES = {
    "qwen2": {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1},
    "llama": {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2},
    "qwen3": {"head_dim": 32},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_tied_embeddings_are_updated_as_a_whole(family, tmp_path):
    settings = {**FAMILIES[family], "tie_word_embeddings": True}
    model = build_model(family, 0, **settings)
    model.save_pretrained(tmp_path)
    vllm = make_vllm(str(tmp_path))
    for version in range(3):
        prompts, params = random_prompts(4), [turn_params(i) for i in range(4)]
        for prompt, param, result in zip(
            prompts, params, generate(vllm, prompts, params), strict=True
        ):
            check(model, prompt, param, result)
        model = build_model(family, version + 1, **settings)
        vllm.update_weights(model.named_parameters(), version + 1)


def test_turns_with_a_prefix_cache_and_an_update_between(folder, model):
    vllm = make_vllm(folder, model)
    vllm.reset_stats()
    histories = {i: [] for i in range(4)}
    settings = [{}, {"temperature": 0.7}, {"temperature": 1.4}, {"temperature": 0.0}]
    current = model
    for turn in range(4):
        if turn == 2:
            current = build(3)
            vllm.update_weights(current.named_parameters(), 1)
        for i, new in enumerate(random_prompts(4, seed=turn, longest=12)):
            new = new + [i] * 20
            if turn == 0:
                vllm.open(i)
            vllm.submit(i, new, turn_params(10 * turn + i, **settings[i]))
            histories[i] = histories[i] + new
        for i, result in run_until_idle(vllm).items():
            params = turn_params(10 * turn + i, **settings[i])
            histories[i] = check(current, histories[i], params, result)
        if turn == 1:
            assert vllm.stats()["cached_tokens"] >= 4 * 32
            assert vllm.stats()["reprefills"] == 0
    stats = vllm.stats()
    assert stats["decoded_tokens"] == 4 * 4 * 12
    assert stats["reprefills"] == 4  # the update made every history stale
    assert stats["forwards"] >= 4 * 12
    vllm.reset_stats()
    assert set(vllm.stats().values()) == {0}


def test_an_update_during_running_requests(folder, model):
    vllm = make_vllm(folder, model)
    other = build(3)
    vllm.open("s")
    vllm.submit("s", [1, 2, 3], turn_params(0, 20))
    for _ in range(6):
        vllm.step()
    vllm.update_weights(other.named_parameters(), 5)
    result = run_until_idle(vllm)["s"]
    np.testing.assert_allclose(
        result.logps[:6],
        scores(model, [1, 2, 3], result, turn_params(0))[:6],
        atol=1e-4,
    )
    np.testing.assert_allclose(
        result.logps[6:],
        scores(other, [1, 2, 3], result, turn_params(0))[6:],
        atol=1e-4,
    )
    assert (result.weights_version, vllm.weights_version) == (0, 5)


def test_samples_depend_on_the_seeds_alone(folder, model):
    vllm = make_vllm(folder, model)
    prompts = random_prompts(12, seed=5)
    params = [turn_params(i) for i in range(12)]
    together = generate(vllm, prompts, params)
    alone = [generate(vllm, [p], [q])[0] for p, q in zip(prompts, params, strict=True)]
    for one, two in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.token_ids, two.token_ids)
    (other,) = generate(vllm, prompts[:1], [turn_params(99)])
    assert other.token_ids.tolist() != together[0].token_ids.tolist()


def test_long_prompts_with_seeds_and_little_room_per_forward(folder, model):
    vllm = make_vllm(folder, model, engine_kwargs={"max_num_batched_tokens": CONTEXT})
    prompts = [[i] * 150 for i in range(1, 9)]
    params = [turn_params(i) for i in range(8)]
    for prompt, param, result in zip(
        prompts, params, generate(vllm, prompts, params), strict=True
    ):
        check(model, prompt, param, result)


class Letters:
    """Decodes token ids to letters, two tokens to a letter pair."""

    def decode(self, ids, skip_special_tokens):
        assert not skip_special_tokens
        return "".join(chr(ord("a") + i % 26) for i in ids)


def test_stop_strings_limits_and_top_k(folder, model):
    vllm = make_vllm(folder, model, tokenizer=Letters())
    (free,) = generate(vllm, [[1, 2]], [turn_params(0, 30)])
    tokens = free.token_ids.tolist()
    stop_id = tokens[9]
    (stopped,) = generate(
        vllm, [[1, 2]], [turn_params(0, 30, stop_token_ids=(stop_id,))]
    )
    assert stopped.token_ids.tolist() == tokens[: tokens.index(stop_id) + 1]
    assert stopped.finish is FinishReason.STOP
    text = Letters().decode(tokens, skip_special_tokens=False)
    end = text.index(text[7:9]) + 2
    (cut,) = generate(vllm, [[1, 2]], [turn_params(0, 30, stop_strings=(text[7:9],))])
    assert cut.token_ids.tolist() == tokens[:end]
    assert cut.finish is FinishReason.STOP
    assert vllm.num_unfinished == 0 and vllm.step() == []
    (full,) = generate(vllm, [[1] * (CONTEXT - 3)], [turn_params(0, 30)])
    assert (len(full.token_ids), full.finish) == (3, FinishReason.LENGTH)
    assert free.finish is FinishReason.LENGTH
    (top,) = generate(vllm, [[1, 2]], [turn_params(0, top_k=1)])
    np.testing.assert_allclose(top.logps, 0.0, atol=1e-5)


def test_abort_close_and_invalid_calls(folder, model):
    vllm = make_vllm(folder, model)
    for name in "ab":
        vllm.open(name)
    first = vllm.submit("a", [1, 2, 3], turn_params(0))
    vllm.submit("b", [4, 5], turn_params(1))
    for _ in range(3):
        vllm.step()
    with pytest.raises(SessionError, match="unfinished"):
        vllm.sleep()
    vllm.abort(first)
    vllm.submit("a", [], turn_params(0))
    results = run_until_idle(vllm)
    check(model, [1, 2, 3], turn_params(0), results["a"])
    check(model, [4, 5], turn_params(1), results["b"])
    with pytest.raises(ContextOverflowError):
        vllm.submit("a", [1] * CONTEXT, turn_params(0))
    vllm.submit("a", [1], turn_params(0))
    vllm.close("a")
    assert vllm.num_unfinished == 0
    with pytest.raises(ModelError, match="vLLM did not accept the weights"):
        vllm.update_weights([("model.nonsense", torch.zeros(3))], 1)
    with pytest.raises(ModelError, match="did not accept"):  # no partly loaded weights
        vllm.submit("b", [1], turn_params(0))
    vllm.update_weights(model.named_parameters(), 2)
    (result,) = generate(vllm, [[1, 2]], [turn_params(0)])
    check(model, [1, 2], turn_params(0), result)


def test_engines_of_one_process_take_turns(folder, model):
    other = build(4)
    first, second = make_vllm(folder, model), make_vllm(folder, other)
    for engine, weights in ((first, model), (second, other), (first, model)):
        (result,) = generate(engine, [[1, 2]], [turn_params(0)])
        check(weights, [1, 2], turn_params(0), result)
    first.open("s")
    first.submit("s", [1], turn_params(0))
    with pytest.raises(SessionError, match="one engine per process"):
        generate(second, [[1, 2]], [turn_params(0)])
    del first, engine  # deleted engines do not block the others
    (result,) = generate(second, [[1, 2]], [turn_params(0)])
    check(other, [1, 2], turn_params(0), result)
    with pytest.raises(ModelError, match="weights of another engine"):
        generate(make_vllm(folder), [[1, 2]], [turn_params(0)])


def test_sleep_and_wake_up_keep_the_results(folder, model):
    vllm = make_vllm(folder, model, sleeps=True)
    generate(vllm, [[1, 2]], [turn_params(0)])
    vllm.sleep()
    vllm.wake_up()
    vllm.sleep()  # the next request wakes it
    (result,) = generate(vllm, [[1, 2]], [turn_params(0)])
    check(model, [1, 2], turn_params(0), result)


def test_lora_updates_keep_the_base_model(tmp_path):
    base = build(0)
    base.save_pretrained(tmp_path)
    adapted = copy.deepcopy(base)
    add_lora(adapted, LORA)
    vllm = make_vllm(str(tmp_path), lora=LORA)
    for version in range(3):
        adapter = [(n, p) for n, p in adapted.named_parameters() if is_adapter(n)]
        vllm.update_weights(adapter, version)
        prompts, params = random_prompts(4), [turn_params(i) for i in range(4)]
        for prompt, param, result in zip(
            prompts, params, generate(vllm, prompts, params), strict=True
        ):
            check(adapted if version else base, prompt, param, result)
            assert result.weights_version == version
        with torch.no_grad():
            for _, tensor in adapter:
                tensor += 0.05 * torch.randn_like(tensor)


def test_bfloat16_is_close_to_its_full_forward(tmp_path):
    model = build(0, initializer_range=0.1).bfloat16()
    model.save_pretrained(tmp_path)
    vllm = make_vllm(str(tmp_path), model, dtype="bfloat16")
    for i, result in enumerate(
        generate(vllm, [[1, 2]] * 4, [turn_params(i) for i in range(4)])
    ):
        expected = scores(model.float(), [1, 2], result, turn_params(i))
        assert np.abs(result.logps - expected).mean() < 0.05
        model.bfloat16()


def test_a_folder_without_weights_needs_an_update(tmp_path, model):
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(tmp_path)
    vllm = make_vllm(str(tmp_path), model)
    (result,) = generate(vllm, [[1, 2]], [turn_params(0)])
    check(model, [1, 2], turn_params(0), result)
    assert max(result.token_ids) < VOCAB


def test_split_prompts_are_refused_on_a_cpu(folder, model):
    for arguments in ({"enable_chunked_prefill": True}, {"max_num_batched_tokens": 64}):
        vllm = make_vllm(folder, model, engine_kwargs=arguments)
        with pytest.raises(ConfigError, match=next(iter(arguments))):
            generate(vllm, [[1]], [turn_params(0)])


@pytest.mark.ray
def test_vllm_in_an_actor_is_restarted_after_a_kill(ray_session, folder, model):
    import ray

    name = f"vllm-{uuid.uuid4().hex}"
    factory = functools.partial(
        VLLMEngine,
        folder,
        max_slots=8,
        max_context_tokens=CONTEXT,
        engine_kwargs={"kv_cache_memory_bytes": 2**26},
    )
    clients = [
        ActorEngine(factory, name=name, max_context_tokens=CONTEXT) for _ in range(2)
    ]
    for client in clients:
        client.update_weights(model.named_parameters(), 3)
    (first,) = generate(clients[0], [[1, 2, 3]], [turn_params(0, 100)])
    check(model, [1, 2, 3], turn_params(0), first)
    for client in clients:
        client.open("s")
        client.submit("s", [1, 2, 3], turn_params(0, 100))
        client.step()
    ray.kill(ray.get_actor(name))
    for client in clients:
        again = run_until_idle(client)["s"]
        np.testing.assert_array_equal(again.token_ids, first.token_ids)
        assert again.weights_version == 3
    assert sum(c.stats()["engine_restarts"] for c in clients) == 1
