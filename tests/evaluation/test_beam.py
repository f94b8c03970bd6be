"""Beam search over turns."""

import numpy as np
import pytest
from search_toys import (
    Lock,
    LockWithoutSnapshots,
    ScriptedRunner,
    Unreliable,
    scripted_reply,
)
from test_best_turn import run_of, wanted_bit
from test_tree_search import Algo

from rllib_llm.data.types import Task
from rllib_llm.evaluation import best_of
from rllib_llm.evaluation.beam import BeamSettings, search_beams
from rllib_llm.evaluation.outcomes import held_out_tasks
from rllib_llm.evaluation.search_summary import evaluate_search

LENGTH = 4


@pytest.fixture(scope="module")
def lock():
    return run_of(Lock)


def tasks_of(count):
    return [Task(group_id=n, rollout=0, seed=n) for n in range(count)]


def slow_score(seed, texts, numbers):
    """Return the mean log-probability of all tokens of a walk."""
    logps = []
    for turn, number in enumerate(numbers):
        text, of_turn = scripted_reply(seed, texts[:turn], number)
        assert text == texts[turn]
        logps += of_turn.tolist()
    return sum(logps) / len(logps)


def slow_beam(seed, width, expand):
    """Return texts and score of the best walk, and the number of sampled tokens."""
    beam, ended, tokens = [((), ())], [], 0
    while beam:
        going_on = []
        for texts, numbers in beam:
            different = {}
            for number in range(expand):
                text, logps = scripted_reply(seed, texts, number)
                tokens += len(logps)
                walk = (*texts, text), (*numbers, number)
                score = slow_score(seed, *walk)
                # The environment does not tell "a" from "A".
                if score > different.get(text.lower(), (-np.inf,))[0]:
                    different[text.lower()] = (score, *walk)
            for action, each in different.items():
                is_over = action == "c" or len(each[1]) == LENGTH
                (ended if is_over else going_on).append(each)
        going_on.sort(reverse=True)
        beam = [walk for _, *walk in going_on[:width]]
    score, texts, _ = max(ended)
    return texts, score, tokens


@pytest.mark.parametrize("width, expand", [(1, 1), (1, 5), (2, 3), (4, 4), (30, 8)])
def test_the_search_is_that_of_a_slow_loop(width, expand):
    settings = BeamSettings(width=width, expand=expand)
    searches = search_beams(
        ScriptedRunner(), tasks_of(12), settings, best_of.mean_logps
    )
    lengths = set()
    for seed, search in enumerate(searches):
        texts, score, tokens = slow_beam(seed, width, expand)
        outcome = search.outcome()
        assert tuple(search.last.episode.get_actions()) == texts
        best = max(prefix.score for prefix in search.ended)
        assert best == pytest.approx(score, abs=1e-6)
        assert search.tokens == outcome.tokens == tokens
        assert (outcome.turns, outcome.seed) == (len(texts), seed)
        walked = "".join(texts).lower()
        assert outcome.success == (walked == "abab")
        assert outcome.stop_reason == "terminated"
        lengths.add(len(texts))
    assert len(lengths) > 1 or expand == 1  # walks that end early win, and others


def test_equal_turns_are_one_and_the_best_of_them_stays():
    settings = BeamSettings(width=8, expand=12)
    runner = ScriptedRunner()
    seen = []

    def score(replies):
        # Later samples have better scores.
        seen.append([reply.get_actions()[-1] for reply in replies])
        return list(range(len(replies)))

    (search,) = search_beams(runner, tasks_of(1), settings, score)
    assert {text.lower() for text in seen[0]} == {"a", "b", "c"}
    last = {text.lower(): text for text in seen[0]}  # the last sample of each
    first = runner.episodes[: settings.expand]
    kept = {e.get_actions()[0] for e in runner.episodes[len(first) :]}
    assert kept == {last["a"], last["b"]}  # twelve samples are three turns
    assert search.ended[0].last.episode.get_actions()[0] == last["c"]


def test_an_ended_episode_is_not_dropped_and_takes_no_place():
    settings = BeamSettings(width=1, expand=12)
    runner = ScriptedRunner()

    def score(replies):
        # The walk that ends in the first turn is the best of all, then the longest.
        values = {"a": 1.0, "b": 2.0, "c": 0.0}
        return [
            3.0
            if reply.get_actions()[0].lower() == "c"
            else values[reply.get_actions()[-1].lower()]
            for reply in replies
        ]

    (search,) = search_beams(runner, tasks_of(1), settings, score)
    assert search.outcome().turns == 1
    assert len(search.ended) > 1
    assert max(len(p.last.episode) for p in search.ended) == LENGTH
    # The beam of one went on with the best walk that had not ended.
    assert {e.get_actions()[0].lower() for e in runner.episodes[12:]} == {"b"}


def test_scored_is_the_whole_conversation_up_to_the_reply(lock):
    (task,) = held_out_tasks(lock.config, 1)
    kept = []

    def score(replies):
        kept.append(([len(r) for r in replies], best_of.mean_logps(replies)))
        for reply, value in zip(replies, kept[-1][1], strict=True):
            turns = reply.get_extra_model_outputs("turn")
            logps = [float(p) for turn in turns for p in turn.action_logps]
            assert value == pytest.approx(sum(logps) / len(logps), abs=1e-6)
            assert reply.get_observations()[-1] == ""
        return kept[-1][1]

    settings = BeamSettings(width=2, expand=3)
    (search,) = search_beams(lock.runner, [task], settings, score)
    assert [set(lengths) for lengths, _ in kept] == [{1}, {2}, {3}]
    assert [len(lengths) for lengths, _ in kept] == [3, 6, 6]
    # All ends of this lock are in the third turn: there the best score counts.
    best = max(search.ended, key=lambda prefix: prefix.score)
    assert best.score == max(kept[-1][1]) and search.last is best.last


@pytest.mark.parametrize("env", [Lock, LockWithoutSnapshots])
def test_a_score_that_knows_opens_every_lock(env):
    run = run_of(env)
    tasks = held_out_tasks(run.config, 4)
    settings = BeamSettings(width=2, expand=8)
    bit = wanted_bit(run)
    searches = search_beams(run.runner, tasks, settings, bit)
    outcomes = [search.outcome() for search in searches]
    assert [o.success for o in outcomes] == [True] * 4
    states = {
        sample.place.state is None
        for search in searches
        if (sample := search.last.before) is not None
    }
    assert states == {env is LockWithoutSnapshots}


def test_rows_beside_plain_sampling_at_equal_tokens(lock):
    settings = BeamSettings(width=2, expand=3)
    result = evaluate_search(Algo(lock), 4, beam=settings)
    rows = {row.name: row for row in result.rows}
    assert list(rows) == ["plain", "best_of, logp", "best_of, oracle", "beam, logp"]
    longest = max(o.tokens for o in result.outcomes["plain"])
    tokens = rows["beam, logp"].tokens
    assert tokens <= rows["best_of, logp"].tokens < tokens + longest
    assert rows["beam, logp"].episodes == 1.0


def test_tasks_that_the_environment_fails_are_left_out():
    run = run_of(Unreliable)
    tasks = held_out_tasks(run.config, 3)
    Unreliable.failing = {tasks[1].seed}
    result = evaluate_search(Algo(run), 3, beam=BeamSettings(width=1, expand=2))
    Unreliable.failing = set()
    assert result.failures == 1
    assert all(row.success.tasks == 2 for row in result.rows)
