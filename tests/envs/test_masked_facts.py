"""Texts with masked values in search_facts-v0."""

import numpy as np
import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.text_env import in_split
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import ConfigError


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_text_masks_values_of_different_entities_of_the_split(count, split):
    env = make_env("search_facts-v0", {"masks": count})
    for seed in range(30):
        text = env.reset(seed=seed, options={"split": split})[0]
        assert text.startswith("Fill in: The ")
        assert [f"[{n}]" in text for n in range(1, 5)] == [
            n <= count for n in range(1, 5)
        ]
        entities = [fact.entity for fact in env.chain]
        assert len(set(entities)) == count
        assert all(in_split(entity, split) and entity in text for entity in entities)
        assert not any(f"is {fact.value}" in text for fact in env.chain)


def test_the_answer_names_all_values_in_order():
    env = make_env("search_facts-v0", {"masks": 2})
    env.reset(seed=1)
    first, second = (fact.value for fact in env.chain)
    assert env.gold_answers() == [f"{first}, {second}"]
    for answer, reward in (
        (f"{first}, {second}", 1.0),
        (f"{first.lower()}, {second}.", 1.0),
        (f"{second}, {first}", 0.0),
        (first, 0.0),
    ):
        env.reset(seed=1)
        *_, info = result = env.step(f"<answer>{answer}</answer>")
        assert result[1] == reward and info["success"] is bool(reward)
        assert info["gold_answers"] == [f"{first}, {second}"]
        assert len(info["gold_documents"]) == 2


def test_the_expert_searches_for_each_value():
    env = make_env("search_facts-v0", {"masks": 3, "results": 1})
    for seed in range(20):
        done = play(env, seed, expert_policy)
        assert done.success and len(done.actions) == 4


def test_questions_are_as_without_the_option():
    plain, zero = make_env("search_facts-v0"), make_env("search_facts-v0", {"masks": 0})
    assert plain.reset(seed=4)[0] == zero.reset(seed=4)[0]
    rngs = [np.random.default_rng(0) for _ in range(2)]
    texts = [e.random_action(r) for e, r in zip((plain, zero), rngs, strict=True)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"masks": 4}, "masks=4 must be"),
        ({"masks": -1}, "masks=-1 must be"),
        ({"masks": 1, "hops": 2}, "hops=2 has no effect"),
    ],
)
def test_masks_are_few_and_of_single_facts(options, message):
    with pytest.raises(ConfigError, match=message):
        make_env("search_facts-v0", options).reset(seed=0)
