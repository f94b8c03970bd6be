"""TorchEngine against a sampler without a cache, with different schedules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_reference import (
    FAMILIES,
    Letters,
    build_model,
    check_turn,
    make_engine,
    random_prompts,
    run_until_idle,
    turn_params,
)

from rllib_llm.data.types import FinishReason
from rllib_llm.engines import ContextOverflowError, generate
from rllib_llm.errors import ConfigError, ModelError


@pytest.mark.parametrize("family", FAMILIES)
def test_two_turns_equal_full_forwards(family):
    model = build_model(family)
    engine = make_engine(model)
    prompts = random_prompts(5)
    settings = [
        {"temperature": 0.0},
        {},
        {"temperature": 0.7},
        {"top_k": 10},
        {"temperature": 1.3, "top_p": 0.8},
    ]
    histories: dict[int, list[int]] = {}
    for turn in range(2):
        params = [turn_params(10 * turn + i, **s) for i, s in enumerate(settings)]
        news = random_prompts(5, seed=turn)
        for i, new in enumerate(news):
            if turn == 0:
                engine.open(i)
            engine.submit(i, new, params[i])
        for i, result in run_until_idle(engine).items():
            history = histories.get(i, []) + news[i]
            histories[i] = check_turn(model, history, params[i], result)
    stats = engine.stats()
    first = sum(map(len, prompts))
    # The last sampled token of a turn is computed with the next turn.
    second = sum(map(len, random_prompts(5, seed=1))) + 5
    assert stats["prefill_tokens"] == first + second
    assert stats["cached_tokens"] == first + 5 * 11
    assert stats["decoded_tokens"] == 2 * 5 * 12
    assert stats["reprefills"] == 0
    engine.reset_stats()
    assert set(engine.stats().values()) == {0}


def test_eager_attention_is_served_too(model):
    eager = build_model("qwen3", attn_implementation="eager")
    prompts, params = random_prompts(3), [turn_params(i) for i in range(3)]
    expected = generate(make_engine(model), prompts, params)
    got = generate(make_engine(eager), prompts, params)
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)


def test_logps_are_those_after_top_k_and_top_p(model):
    engine = make_engine(model)
    (result,) = generate(engine, [[1, 2, 3]], [turn_params(0, top_k=1)])
    np.testing.assert_allclose(result.logps, 0.0, atol=1e-6)
    greedy, plain = generate(
        engine, [[1, 2, 3]] * 2, [turn_params(0, temperature=0.0), turn_params(0)]
    )
    np.testing.assert_array_equal(greedy.token_ids, result.token_ids)
    assert (greedy.logps < -1e-3).any()
    assert plain.token_ids.tolist() != greedy.token_ids.tolist()


def test_arrivals_and_departures_do_not_change_results(model):
    engine = make_engine(model, max_slots=4)
    rng = np.random.default_rng(3)
    prompts = random_prompts(14, seed=4)
    params = [turn_params(i, int(rng.integers(1, 25))) for i in range(14)]
    results, submitted = {}, 0
    while submitted < 14 or engine.num_unfinished:
        if submitted < 14 and rng.random() < 0.5:
            engine.open(submitted)
            engine.submit(submitted, prompts[submitted], params[submitted])
            submitted += 1
        for done in engine.step():
            results[done.session_id] = done
            engine.close(done.session_id)
    assert len(results) == 14
    for i, result in results.items():
        check_turn(model, prompts[i], params[i], result)
        assert result.finish is FinishReason.LENGTH
        assert result.seconds > 0.0


@pytest.mark.parametrize("keep_going", [True, False])
def test_fewer_slots_than_sessions(model, keep_going):
    sessions = 7
    engine = make_engine(model, max_slots=3)
    turns = [random_prompts(sessions, seed=t, longest=12) for t in range(3)]
    histories: dict[int, list[int]] = {i: [] for i in range(sessions)}
    turn_of = dict.fromkeys(range(sessions), 0)

    def submit(i: int) -> None:
        histories[i] += turns[turn_of[i]][i]
        engine.submit(i, turns[turn_of[i]][i], turn_params(i + 100 * turn_of[i], 5 + i))

    for i in range(sessions):
        engine.open(i)
        submit(i)
    while engine.num_unfinished:
        results = engine.step()
        if not keep_going:
            results += run_until_idle(engine).values()
        for done in results:
            i = done.session_id
            params = turn_params(i + 100 * turn_of[i], 5 + i)
            histories[i] = check_turn(model, histories[i], params, done)
            turn_of[i] += 1
            if turn_of[i] < 3:
                submit(i)
    assert set(turn_of.values()) == {3}
    # Sessions whose next turn is submitted at once keep their row: no evictions.
    assert (engine.stats()["reprefills"] == 0) == keep_going


def test_least_recently_used_session_is_evicted(model):
    engine = make_engine(model, max_slots=2)
    for name in "abc":
        engine.open(name)
    for name in ("a", "b", "a", "c", "a"):
        engine.submit(name, [1, 2], turn_params(0, 2))
        run_until_idle(engine)
    assert engine.stats()["reprefills"] == 0
    engine.submit("b", [3], turn_params(0, 2))
    run_until_idle(engine)
    assert engine.stats()["reprefills"] == 1


def test_a_replaced_history_keeps_the_common_prefix_cached(model):
    engine = make_engine(model)
    engine.open("s")
    old = random_prompts(1, longest=30)[0] + [5, 6, 7]
    engine.submit("s", old, turn_params(0))
    run_until_idle(engine)
    engine.reset_stats()
    new = [*old[:-2], 9, 9, 9]
    engine.submit("s", new, turn_params(1), extends=False)
    check_turn(model, new, turn_params(1), run_until_idle(engine)["s"])
    stats = engine.stats()
    assert stats["cached_tokens"] == len(old) - 2
    assert stats["prefill_tokens"] == 3
    assert stats["reprefills"] == 1
    engine.submit("s", new[:4], turn_params(2), extends=False)
    check_turn(model, new[:4], turn_params(2), run_until_idle(engine)["s"])


def test_continuing_without_new_tokens(model):
    engine = make_engine(model)
    engine.open("s")
    engine.submit("s", [1, 2, 3], turn_params(0, 4))
    first = run_until_idle(engine)["s"].token_ids.tolist()
    engine.submit("s", [], turn_params(1, 4))
    check_turn(model, [1, 2, 3, *first], turn_params(1, 4), run_until_idle(engine)["s"])


def _perturb(model) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))


def test_new_weights_take_effect_on_old_histories(model):
    engine = make_engine(model)
    history = [1, 2, 3, 4, 5]
    engine.open("s")
    engine.submit("s", history, turn_params(0))
    done = run_until_idle(engine)["s"]
    assert done.weights_version == 0
    history = [*check_turn(model, history, turn_params(0), done), 8]
    _perturb(model)
    engine.set_weights_version(3)
    assert engine.weights_version == 3
    engine.submit("s", [8], turn_params(1))
    done = run_until_idle(engine)["s"]
    assert done.weights_version == 3
    check_turn(model, history, turn_params(1), done)
    assert engine.stats()["reprefills"] == 1


def test_new_weights_in_the_middle_of_a_turn(model):
    engine = make_engine(model)
    for i in range(3):
        engine.open(i)
        engine.submit(i, [i + 1, 2, 3], turn_params(i, 10))
    for _ in range(4):
        engine.step()
    _perturb(model)
    engine.set_weights_version(1)
    results = run_until_idle(engine)
    for i, done in results.items():
        assert done.weights_version == 0
        assert done.token_versions.tolist() == [0] * 4 + [1] * 6
        assert len(done.token_ids) == 10
        prefix = [i + 1, 2, 3, *done.token_ids[:4].tolist()]
        with torch.no_grad():
            ids = torch.tensor([prefix + done.token_ids[4:].tolist()])
            logps = model(input_ids=ids).logits[0].log_softmax(-1)
        rest = logps[len(prefix) - 1 : -1].gather(1, ids[0, len(prefix) :, None])[:, 0]
        np.testing.assert_allclose(done.logps[4:], rest, atol=1e-4)


def test_update_weights_copies_by_name(model):
    other = build_model("qwen3", seed=5)
    engine = make_engine(model)
    engine.update_weights(other.state_dict().items(), 2)
    (result,) = generate(engine, [[1, 2]], [turn_params(0)])
    check_turn(other, [1, 2], turn_params(0), result)
    assert result.weights_version == 2
    with pytest.raises(ModelError, match=r"lm_head\.weight"):
        engine.update_weights([("lm_head.weigth", torch.zeros(1))], 3)
    with pytest.raises(ModelError, match="shape"):
        engine.update_weights([("lm_head.weight", torch.zeros(1))], 3)


def test_stop_tokens_end_the_turn_and_stay(model):
    engine = make_engine(model)
    (free,) = generate(engine, [[1, 2, 3]], [turn_params(0, 20)])
    stop = int(free.token_ids[6])
    first = free.token_ids.tolist().index(stop)
    (result,) = generate(
        engine, [[1, 2, 3]], [turn_params(0, 20, stop_token_ids=(stop,))]
    )
    assert result.finish is FinishReason.STOP
    np.testing.assert_array_equal(result.token_ids, free.token_ids[: first + 1])
    assert len(result.logps) == first + 1


def test_stop_strings_end_the_turn(model):
    engine = make_engine(model, tokenizer=Letters())
    (free,) = generate(engine, [[1, 2, 3]], [turn_params(0, 20)])
    text = Letters().decode(free.token_ids, skip_special_tokens=False)
    stop = text[9:13]
    length = (text.index(stop) + len(stop) + 1) // 2
    params = turn_params(0, 20, stop_strings=("~", stop))
    (result,) = generate(engine, [[1, 2, 3]], [params])
    assert result.finish is FinishReason.STOP
    np.testing.assert_array_equal(result.token_ids, free.token_ids[:length])
    with pytest.raises(ConfigError, match="tokenizer"):
        generate(make_engine(model), [[1]], [params])


def test_context_overflow(model):
    engine = make_engine(model, max_context_tokens=20)
    engine.open("s")
    with pytest.raises(ContextOverflowError, match="leaves room for 19"):
        engine.submit("s", [1] * 20, turn_params(0))
    engine.submit("s", [1] * 16, turn_params(0))
    done = run_until_idle(engine)["s"]
    assert done.finish is FinishReason.LENGTH
    assert len(done.token_ids) == 4
    with pytest.raises(ValueError, match="max_context_tokens"):
        engine.submit("s", [], turn_params(0))
    engine.submit("s", [1] * 19, turn_params(0), extends=False)
    assert len(run_until_idle(engine)["s"].token_ids) == 1


def test_two_engines_agree_bitwise(model):
    prompts, params = random_prompts(6), [turn_params(i) for i in range(6)]
    one = generate(make_engine(model), prompts, params)
    two = generate(make_engine(model), prompts, params)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a.token_ids, b.token_ids)
        np.testing.assert_array_equal(a.logps, b.logps)


def test_results_do_not_depend_on_global_seeds(model):
    torch.manual_seed(1)
    (one,) = generate(make_engine(model), [[1, 2]], [turn_params(0)])
    torch.manual_seed(2)
    np.random.seed(2)
    state = torch.get_rng_state()
    (two,) = generate(make_engine(model), [[1, 2]], [turn_params(0)])
    np.testing.assert_array_equal(one.token_ids, two.token_ids)
    assert torch.equal(state, torch.get_rng_state())
