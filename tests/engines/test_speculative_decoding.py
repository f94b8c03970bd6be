"""Drafts from earlier turns: the same tokens in fewer forward passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_reference import (
    FAMILIES,
    VOCAB,
    Letters,
    build_model,
    check_turn,
    make_engine,
    random_prompts,
    run_until_idle,
    turn_params,
)

from rllib_llm.data.types import FinishReason
from rllib_llm.engines import drafts, generate
from rllib_llm.engines.drafts import DraftedStep, Drafter
from rllib_llm.engines.requests import Request, Session
from rllib_llm.engines.slot_cache import SlotCache
from rllib_llm.errors import ModelError

SETTINGS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"top_k": 10},
    {"temperature": 1.3, "top_p": 0.8},
]


def play(engine, prompts, params, turns=2):
    """Return the results of conversations of some turns, by turn and prompt."""
    results = []
    for number in range(turns):
        for session, (prompt, param) in enumerate(zip(prompts, params, strict=True)):
            if number == 0:
                engine.open(session)
            engine.submit(session, prompt, param)
        by_session = run_until_idle(engine)
        results.append([by_session[session] for session in range(len(prompts))])
    for session in range(len(prompts)):
        engine.close(session)
    return results


@pytest.mark.parametrize("forward", ["auto", "plain"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_full_forwards(family, forward):
    model = build_model(family)
    engine = make_engine(model, num_speculative_tokens=6, forward=forward)
    prompts = random_prompts(5)
    params = [turn_params(i, 12, **s) for i, s in enumerate(SETTINGS)]
    for repeat in range(12):
        engine.reset_stats()
        if repeat == 11:  # other tokens than the drafts
            params = [turn_params(50 + i, 12, **s) for i, s in enumerate(SETTINGS)]
        results = play(engine, prompts, params)
        if repeat < 10:
            continue
        for i, prompt in enumerate(prompts):
            history = check_turn(model, prompt, params[i], results[0][i])
            check_turn(model, history + prompt, params[i], results[1][i])
        stats = engine.stats()
        assert stats["decoded_tokens"] == 2 * 5 * 12
        if repeat == 10:
            assert stats["draft_tokens"] > 50
            # Turns may differ after the same two tokens, which makes a draft wrong.
            assert stats["accepted_tokens"] >= 0.95 * stats["draft_tokens"]
            # Without drafts a turn takes one pass for the prompt and 11 for the rest.
            assert stats["forwards"] <= 15
        else:
            assert stats["draft_tokens"] > stats["accepted_tokens"]


@pytest.mark.parametrize("forward", ["auto", "plain"])
@pytest.mark.parametrize("family", FAMILIES)
def test_turns_begin_beside_those_that_decode(family, forward):
    model = build_model(family)
    engine = make_engine(model, num_speculative_tokens=6, forward=forward)
    histories = dict(enumerate(random_prompts(6)))
    fed = sum(map(len, histories.values()))
    params = [turn_params(i, 3 + 2 * i) for i in range(6)]
    for session, prompt in histories.items():
        engine.open(session)
        engine.submit(session, prompt, params[session])
    # Too many new tokens for a pass beside others: 33, with the last sampled one.
    more = [[7, 8, 9], [5], list(range(32)), list(range(20))]
    turns, had_gaps = dict.fromkeys(histories, 0), False
    while engine.num_unfinished:
        for result in engine.step():
            name = result.session_id
            history = check_turn(model, histories[name], params[name], result)
            if turns[name] < len(more):
                new = more[turns[name]]
                turns[name] += 1
                engine.submit(name, new, params[name])
                histories[name] = [*history, *new]
                fed += 1 + len(new)
        had_gaps |= engine._running.has_gaps
    assert set(turns.values()) == {len(more)} and had_gaps
    assert engine.stats()["prefill_tokens"] == fed


def engine_and_moves(model, monkeypatch, counts):
    """Return an engine with a session per count of tokens, and the moves of rows."""
    moves = []
    monkeypatch.setattr(SlotCache, "move", lambda *_: moves.append(_))
    engine = make_engine(model, num_speculative_tokens=3)
    for session, count in enumerate(counts):
        engine.open(session)
        engine.submit(session, [1, 2, 3], turn_params(session, count))
    return engine, moves


def test_a_short_turn_takes_no_pass_of_its_own_and_moves_no_row(model, monkeypatch):
    engine, moves = engine_and_moves(model, monkeypatch, counts=(2, 2, 2, 2, 20))

    def step():
        before = engine.stats()["forwards"]
        results = engine.step()
        return engine.stats()["forwards"] - before, results

    while not (results := step()[1]):
        rows = {n: s.row for n, s in engine._sessions.items()}
    assert len(results) == 4
    moves.clear()
    for session in range(4):
        engine.submit(session, [4] * (31 if session else 1), turn_params(1, 2))
    assert step()[0] == 1 and len(engine._running) == 5 and not moves
    assert rows == {n: s.row for n, s in engine._sessions.items()}
    assert step()[0] == 1 and len(engine._running) == 1
    # Rows are moved only when a pass would have too many idle ones.
    assert step()[0] == 1 and engine._running.num_rows == 1 and len(moves) == 1
    engine.submit(1, [4] * 32, turn_params(1, 2))
    assert step()[0] == 1 and len(engine._running) == 2


def test_a_pass_may_have_few_idle_rows(model, monkeypatch):
    engine, moves = engine_and_moves(model, monkeypatch, counts=(20, 2, 3, 20, 20))
    while engine.num_unfinished == 5:
        engine.step()
    moves.clear()
    assert engine._running.num_rows == 5 and engine._running.has_gaps
    engine.step()  # one row of five is idle
    assert not moves
    while engine.num_unfinished == 4:
        engine.step()
    engine.step()  # two of five
    assert moves and engine._running.num_rows == 3


def test_adapters_have_their_own_drafts(model):
    drafter = Drafter(4)
    for adapter, tokens in enumerate(([5, 6, 7, 8, 9], [5, 6, 7, 8, 1])):
        for _ in range(4):
            drafter.observe(_request(tokens, 4, adapter=adapter))
    requests = [_request([5, 6, 7, 8], 4, adapter=n) for n in (0, 1, 2)]
    assert drafter.draft(requests, VOCAB) == [[9], [1], []]


def _request(history, prompt_length, *, adapter=0, limit=20, row=-1, **settings):
    session = Session("one", adapter, list(history[:prompt_length]), row=row)
    request = Request(0, session, turn_params(0, limit, **settings), 1000)
    session.history += history[prompt_length:]
    request.logps += [0.0] * (len(history) - prompt_length)
    session.cached = len(session.history) - 1
    return request


def _taught(turns, length=8, repeats=30):
    drafter = Drafter(length)
    for _ in range(repeats):
        for history, start in turns:
            drafter.observe(_request(history, start))
    return drafter


def test_a_shorter_context_is_used_where_the_longer_one_is_unknown():
    drafter = _taught([([1, 2, 3, 4, 5, 6, 7], 4)])
    assert drafter.draft([_request([1, 2, 3, 4], 4)], VOCAB) == [[5, 6, 7]]
    assert drafter.draft([_request([9, 9, 3, 4], 4)], VOCAB) == [[5, 6, 7]]
    assert drafter.draft([_request([9, 9, 9, 4], 4)], VOCAB) == [[]]
    # What the prompt has is not drafted: the policy did not sample it.
    assert drafter.draft([_request([0, 0, 1, 2], 4)], VOCAB) == [[]]


def test_drafts_follow_what_is_sampled_lately():
    drafter = _taught([([1, 2, 3, 4, 5], 4)])
    request = _request([1, 2, 3, 4], 4)
    found = []
    for _ in range(16):
        drafter.observe(_request([1, 2, 3, 4, 6], 4))
        found.append(drafter.draft([request], VOCAB)[0])
    changes = [
        one for one, before in zip(found, [None, *found], strict=False) if one != before
    ]
    assert changes == [[5], [], [6]]


def test_drafts_end_before_the_turn_and_before_they_are_unlikely(monkeypatch):
    drafter = _taught([(list(range(20)), 4)], length=12)
    place = [0, 1, 2, 3, 4]
    (draft,) = drafter.draft([_request(place, 4)], VOCAB)
    assert draft == list(range(5, 17))
    # One token is sampled after the draft.
    (draft,) = drafter.draft([_request(place, 4, limit=6)], VOCAB)
    assert draft == [5, 6, 7, 8]
    assert drafter.draft([_request(place, 4, limit=2)], VOCAB) == [[]]
    for _ in range(3):  # 7 is no longer likely
        drafter.observe(_request([3, 4, 5, 6, 1], 4))
    (draft,) = drafter.draft([_request(place, 4)], VOCAB)
    assert draft == [5, 6]
    monkeypatch.setattr(drafts, "_MAX_LOGITS", 2 * VOCAB)
    assert drafter.draft([_request(place, 4)], VOCAB) == [[5]]
    assert drafter.draft([_request(place, 4)] * 2, VOCAB) == [[], []]


def test_a_draft_ends_where_all_its_tokens_together_are_unlikely():
    # After n turns each token has the share 1 - 0.3 * 0.8 ** (n - 1).
    for repeats, length in ((1, 1), (4, 3), (8, 7)):
        share = 1.0 - 0.3 * 0.8 ** (repeats - 1)
        assert share**length >= 0.6 > share ** (length + 1)
        drafter = _taught([(list(range(20)), 4)], length=12, repeats=repeats)
        (draft,) = drafter.draft([_request([0, 1, 2, 3, 4], 4)], VOCAB)
        assert draft == list(range(5, 5 + length))


def test_one_observation_is_not_enough_while_drafts_are_often_wrong():
    drafter, request = Drafter(4), _request([1, 2, 3, 4], 4)
    drafter.count(100, 79)
    drafter.observe(_request([1, 2, 3, 4, 5], 4))
    assert drafter.draft([request], VOCAB) == [[]]
    drafter.observe(_request([1, 2, 3, 4, 5], 4))
    assert drafter.draft([request], VOCAB) == [[5]]
    for _ in range(10):
        drafter.count(1000, 900)
    drafter.observe(_request([6, 7, 8, 9, 10], 4))
    assert drafter.draft([_request([6, 7, 8, 9], 4)], VOCAB) == [[10]]


def test_after_many_turns_one_in_four_is_learned(monkeypatch):
    monkeypatch.setattr(drafts, "_ALL_TURNS", 2)
    drafter = Drafter(4)
    learned = []
    for number in range(1, 11):
        history = [100 + number, 1, 2, 3, number]
        drafter.observe(_request(history, 4))
        drafter.observe(_request(history, 4)) if number < 2 else None
        learned.append(
            any((100 + number, 1, 2, 3) in t for t in drafter._tables.values())
        )
    assert learned == [
        True,
        False,
        True,
        False,
        False,
        False,
        True,
        False,
        False,
        False,
    ]


def test_the_table_is_bounded(monkeypatch):
    monkeypatch.setattr(drafts, "_MAX_ENTRIES", 30)
    drafter = Drafter(4)
    for number in range(60):
        drafter.observe(_request([number, 1, 2, 3, 4], 4))
    assert len(drafter._tables[0]) <= 32


def test_rejected_drafts_leave_no_trace():
    # The second has two tokens of a prompt to compute; the row between is idle.
    requests = [_request([1, 2, 3], 2, row=0), _request([4, 5, 6, 7], 4, row=2)]
    requests[1].session.cached = 2
    step = DraftedStep(requests, [[8, 9], [3]])
    assert step.token_ids.tolist() == [[3, 8, 9], [0, 0, 0], [6, 7, 3]]
    assert step.counts.tolist() == [3, 0, 3] and step.starts.tolist() == [2, 0, 2]
    assert step.wanted.tolist() == [3, 0, 2]
    for request, uniforms in zip(requests, np.split(step.uniforms, [3]), strict=True):
        first = request.num_sampled
        expected = request.uniforms[first : first + len(uniforms)]
        np.testing.assert_array_equal(uniforms, expected)
    logps = np.array([-1.0, -2.0, -3.0, -4.0, -5.0], np.float32)
    assert step.accept(np.array([8, 1, 2, 3, 0]), logps, None) == {}
    first, second = (r.session for r in requests)
    # 8 was right, 1 replaces 9, and what followed 9 is dropped.
    assert first.history == [1, 2, 3, 8, 1] and second.history == [4, 5, 6, 7, 3, 0]
    assert requests[0].logps == [0.0, -1.0, -2.0] and requests[1].logps == [-4.0, -5.0]
    assert (first.cached, second.cached) == (4, 5)


def test_a_stop_token_within_a_draft_ends_the_turn():
    request = _request([1, 2, 3], 2, stop_token_ids=(9,), row=0)
    step = DraftedStep([request], [[8, 9, 5]])
    ended = step.accept(np.array([8, 9, 5, 6]), np.zeros(4, np.float32), None)
    assert ended == {request: FinishReason.STOP}
    assert request.session.history == [1, 2, 3, 8, 9]
    assert request.session.cached == 4


def test_stop_tokens_and_strings_and_limits_with_drafts(model):
    engine = make_engine(model, tokenizer=Letters(), num_speculative_tokens=6)
    (free,) = generate(engine, [[1, 2, 3]], [turn_params(0, 20)])
    stop = int(free.token_ids[6])
    text = Letters().decode(free.token_ids, skip_special_tokens=False)
    for settings in (
        {"stop_token_ids": (stop,)},
        {"stop_strings": ("~", text[9:13])},
        {},
    ):
        params = turn_params(0, 20, **settings)
        (expected,) = generate(
            make_engine(model, tokenizer=Letters()), [[1, 2, 3]], [params]
        )
        for _ in range(4):
            results = generate(engine, [[1, 2, 3]] * 4, [params] * 4)
        assert engine.stats()["accepted_tokens"] > 0
        for result in results:
            assert result.finish is expected.finish
            np.testing.assert_array_equal(result.token_ids, expected.token_ids)
            np.testing.assert_allclose(result.logps, expected.logps, atol=1e-5)


def test_aborted_turns_and_new_weights_within_drafts(model):
    engine = make_engine(model, num_speculative_tokens=3)
    params = turn_params(0, 12)
    for _ in range(8):
        generate(engine, [[1, 2, 3]] * 4, [params] * 4)
    for session in range(3):
        engine.open(session)
        number = engine.submit(session, [1, 2, 3], params)
    for _ in range(2):
        engine.step()
    assert len(engine.sampled_so_far(number)) == 5  # 1 after the prompt, 3 + 1
    engine.abort(number)
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(1.01)
    engine.set_weights_version(1)
    again = engine.submit(2, [], params)
    results = run_until_idle(engine)
    assert results[2].request_id == again
    check_turn(model, [1, 2, 3], params, results[2])
    for session in (0, 1):
        done = results[session]
        assert done.token_versions.tolist() == [0] * 5 + [1] * 7
        with torch.no_grad():
            ids = torch.tensor([[1, 2, 3, *done.token_ids.tolist()]])
            logps = model(input_ids=ids).logits[0].log_softmax(-1)
        rest = logps[7:-1].gather(1, ids[0, 8:, None])[:, 0]
        np.testing.assert_allclose(done.logps[5:], rest, atol=1e-4)


def test_diverged_weights_are_reported_within_drafts(model):
    engine = make_engine(model, num_speculative_tokens=3)
    params = turn_params(0, 12)
    for _ in range(8):
        generate(engine, [[1, 2, 3]] * 4, [params] * 4)
    engine.open(0)
    number = engine.submit(0, [1, 2, 3], params)
    engine.step()
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    engine._runner.refresh()
    with pytest.raises(ModelError, match="diverged"):
        engine.step()
    assert len(engine.sampled_so_far(number)) == 1
