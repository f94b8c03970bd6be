"""Memory QA: operations on the memory, what each agent reads, rewards."""

import numpy as np
import pytest

from rllib_llm.envs import MultiAgentAdapter, make_env
from rllib_llm.errors import ConfigError

MANAGER, ANSWERER = "manager_0", "answerer_0"


def game(seed=0, **options):
    env = MultiAgentAdapter(make_env("memory_qa-v0", options))
    return env, env.reset(seed=seed)


def hear(env, *replies):
    for reply in replies:
        step = env.step({MANAGER: reply})
    return step


def test_operations_change_the_memory_that_is_read():
    env, step = game(facts=3, changes=0, chatter=0)
    assert "Memory:\nempty\nNew: " in step.observations[MANAGER]
    step = hear(env, "ADD: ann likes tea.")
    assert "Memory:\n1. ann likes tea.\nNew: " in step.observations[MANAGER]
    step = hear(env, "UPDATE 1: ann likes figs.\nADD: bob likes corn.")
    assert "1. ann likes figs.\n2. bob likes corn." in step.observations[MANAGER]
    step = hear(env, "DELETE 1")
    assert list(step.observations) == [ANSWERER]
    assert step.observations[ANSWERER].startswith("Memory:\n1. bob likes corn.\nWhat")


def test_a_full_memory_takes_no_more_texts():
    env, _ = game(facts=3, changes=0, chatter=0, size=1)
    step = hear(env, "ADD: a", "ADD: b", "UPDATE 1: c\nADD: d")
    assert "Memory:\n1. c\nWhat" in step.observations[ANSWERER]


@pytest.mark.parametrize("right", [True, False])
def test_both_get_the_reward_of_the_answer(right):
    env, _ = game(facts=1, changes=1, chatter=0)
    unwrapped = env.unwrapped
    hear(env, "NOOP", "NOOP")
    answer = unwrapped.likes[unwrapped.person]
    step = env.step({ANSWERER: f"It is {answer if right else 'soap, or tea soup'}"})
    assert step.is_over and step.success is right
    assert dict(step.rewards) == ({MANAGER: 1.0, ANSWERER: 1.0} if right else {})
    assert step.metrics["texts"] == 0


def test_a_changed_fact_is_the_one_that_counts():
    for seed in range(30):
        env, step = game(seed, facts=2, changes=2, chatter=0)
        unwrapped, sentences = env.unwrapped, []
        while MANAGER in step.observations:
            sentences.append(unwrapped.sentences[0])
            step = hear(env, "NOOP")
        last = dict(sentences)
        assert len(sentences) == 4 and unwrapped.likes == last
        assert last[unwrapped.person] == unwrapped.likes[unwrapped.person]
        assert all(last[p] != t for p, t in sentences[:2])


def test_words_that_are_no_operation_are_invalid():
    env, _ = game()
    step = hear(env, "I see.")
    assert MANAGER in step.observations  # asked again
    assert env.unwrapped.counts == {"add": 0, "update": 0, "delete": 0}
    assert np.isclose(sum(reward for _, reward in step.rewards), 0.0)


def drawn(seed, split, **options):
    env = make_env("memory_qa-v0", options)
    env.reset(seed=seed, options={"split": split})
    return (*env.sentences, env.person)


def test_splits_are_alike_unless_some_instances_are_held_out():
    seeds = range(60)
    alike = [[drawn(s, split) for s in seeds] for split in ("train", "test")]
    apart = [
        [drawn(s, split, held_out=True) for s in seeds] for split in ("train", "test")
    ]
    assert alike[0] == alike[1]
    # Those whose hash is of the split stay as they are.
    assert 0.7 < np.mean([a == b for a, b in zip(alike[0], apart[0], strict=True)]) < 1
    assert not set(apart[0]) & set(apart[1])
    # The smallest instances are 40; both splits have some.
    few = {"facts": 1, "changes": 0, "chatter": 0, "held_out": True}
    small = [
        {drawn(s, split, **few) for s in range(300)} for split in ("train", "test")
    ]
    assert not small[0] & small[1] and sum(map(len, small)) == 40 and all(small)


@pytest.mark.parametrize(
    "options",
    [
        {"facts": 6},
        {"facts": 1, "changes": 2},
        {"size": 0},
        {"chatter": 4},
        {"held_out": 1},
    ],
)
def test_bad_options_are_refused(options):
    with pytest.raises(ConfigError, match=list(options)[-1]):
        game(**options)
