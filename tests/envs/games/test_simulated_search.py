"""Simulated search: what the engine reads, who has turns, and the real index."""

import numpy as np
import pytest

from rllib_llm.envs import MultiAgentAdapter, make_env


def game(seed=3, **options):
    env = MultiAgentAdapter(make_env("simulated_search-v0", options))
    step = env.reset(seed=seed)
    return env, env.unwrapped, step


def test_the_engine_reads_question_answer_query_and_the_kind_of_document():
    env, inner, step = game()
    assert step.observations == {"searcher_0": f"{inner_question(inner)}"}
    step = env.step({"searcher_0": "<search>who</search>"})
    fact = inner.fact
    assert step.observations == {
        "engine_0": f"{inner_question(inner)} {fact.value}\nQuery: who\n"
        "Write a useful document."
    }
    step = env.step({"engine_0": " Some text. "})
    assert step.observations == {"searcher_0": "Some text."}
    step = env.step({"searcher_0": f"<answer>{fact.value.upper()}.</answer>"})
    assert step.is_over and step.success is True
    assert dict(step.rewards) == {"searcher_0": 1.0}
    assert step.metrics == {"searches": 1.0, "answer_shown": 0.0}


def inner_question(inner):
    return f"What is the {inner.fact.relation} of {inner.fact.entity}?"


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0])
def test_the_share_of_useless_documents_is_the_noise(noise):
    env, inner, _ = game(noise=noise)
    drawn = []
    for seed in range(200):
        env.reset(seed=seed)
        drawn += inner.useless
    assert np.mean(drawn) == pytest.approx(noise, abs=0.05)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_the_scripted_engine_obeys(noise):
    env, inner, _ = game(noise=noise)
    env.step({"searcher_0": f"<search>{inner.fact.query}</search>"})
    document = inner.expert_action("engine_0", np.random.default_rng(0))
    assert (document == inner.fact.text) == (noise == 0.0)
    assert (inner.fact.value in document) == (noise == 0.0)


def test_a_query_for_something_else_gets_no_answer_from_the_scripted_engine():
    env, inner, _ = game()
    env.step({"searcher_0": "<search>the mayor of nowhere</search>"})
    document = inner.expert_action("engine_0", np.random.default_rng(0))
    assert inner.fact.value not in document


def test_with_the_index_the_engine_has_no_turn():
    env, inner, _ = game(engine="index")
    step = env.step({"searcher_0": f"<search>{inner.fact.query}</search>"})
    assert step.observations == {"searcher_0": inner.fact.text}
