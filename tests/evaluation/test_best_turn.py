"""The best of several replies at each turn."""

import numpy as np
import pytest
from search_toys import Lock, LockWithoutSnapshots, Unreliable
from team_helpers import Run, single_config
from test_tree_search import Algo

from rllib_llm.data.episode_data import episode_data
from rllib_llm.evaluation.best_turn import last_logps, select_turns
from rllib_llm.evaluation.outcomes import held_out_tasks
from rllib_llm.evaluation.search_summary import evaluate_search

WIDTH = 6


def run_of(env):
    return Run(single_config(env=env), learner=False)


@pytest.fixture(scope="module")
def lock():
    return run_of(Lock)


def wanted_bit(run):
    """Return a score that knows the lock: 1 for the right bit."""
    env = run.config.make_text_env()

    def score(replies):
        values = []
        for reply in replies:
            task = episode_data(reply).task
            env.reset(seed=task.seed, options=dict(task.options))
            bit = env.unwrapped.parse(reply.get_actions()[-1])
            values.append(float(bit == env.unwrapped.wanted[reply.turn]))
        return values

    return score


@pytest.mark.parametrize("env", [Lock, LockWithoutSnapshots])
def test_a_score_that_knows_opens_every_lock(env):
    run = run_of(env)
    tasks = held_out_tasks(run.config, 4)
    # Of ten random bits one is right, nearly surely.
    selections = select_turns(run.runner, tasks, 10, wanted_bit(run))
    outcomes = [selection.outcome() for selection in selections]
    assert [o.success for o in outcomes] == [True] * 4
    assert [o.turns for o in outcomes] == [3] * 4
    assert [o.stop_reason for o in outcomes] == ["terminated"] * 4


def test_scored_are_different_replies_at_one_place(lock):
    tasks = held_out_tasks(lock.config, 2)
    seen = []

    def score(replies):
        seen.append(replies)
        return [1.0] * len(replies)

    selections = select_turns(lock.runner, tasks, WIDTH, score)
    assert [len(replies) for replies in seen] == [WIDTH] * 6
    tokens = 0
    for turn, replies in enumerate(seen[::2]):  # of the first task
        assert {len(reply) for reply in replies} == {turn + 1}
        assert len({tuple(reply.get_actions()[:turn]) for reply in replies}) == 1
        assert len({reply.get_actions()[turn] for reply in replies}) > 1
        # The environment has said nothing to the reply.
        assert {reply.get_observations()[-1] for reply in replies} == {""}
        tokens += sum(
            len(r.get_extra_model_outputs("turn")[-1].action_ids) for r in replies
        )
    assert selections[0].outcome().tokens == tokens
    # Chosen is the first of the best.
    chosen = [replies[0].get_actions()[-1] for replies in seen[::2]]
    assert list(selections[0].last.episode.get_actions()) == chosen


def test_the_last_turn_alone_counts_for_its_log_probability(lock):
    (task,) = held_out_tasks(lock.config, 1)
    kept = []

    def score(replies):
        kept.append((replies, last_logps(replies)))
        return kept[-1][1]

    (selection,) = select_turns(lock.runner, [task], WIDTH, score)
    for replies, values in kept:
        for reply, value in zip(replies, values, strict=True):
            logps = reply.get_extra_model_outputs("turn")[-1].action_logps
            assert value == pytest.approx(sum(map(float, logps)) / len(logps), abs=1e-6)
    replies, values = kept[-1]
    best = replies[int(np.argmax(values))]
    assert selection.last.episode.get_actions()[2] == best.get_actions()[-1]


def test_rows_beside_plain_sampling_at_equal_tokens(lock):
    result = evaluate_search(Algo(lock), 4, best_turn=WIDTH)
    rows = {row.name: row for row in result.rows}
    assert list(rows) == [
        "plain", "best_of, logp", "best_of, oracle", "best_turn, logp",
    ]  # fmt: skip
    longest = max(o.tokens for o in result.outcomes["plain"])
    tokens = rows["best_turn, logp"].tokens
    assert tokens <= rows["best_of, logp"].tokens < tokens + longest
    assert rows["best_turn, logp"].episodes == 1.0


def test_tasks_that_the_environment_fails_are_left_out():
    run = run_of(Unreliable)
    tasks = held_out_tasks(run.config, 3)
    Unreliable.failing = {tasks[1].seed}
    result = evaluate_search(Algo(run), 3, best_turn=2)
    Unreliable.failing = set()
    assert result.failures == 1
    assert all(row.success.tasks == 2 for row in result.rows)
