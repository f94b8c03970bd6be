"""long_document: needed facts lie where the options say, and the memory suffices."""

import re

import numpy as np
import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.text_env import in_split
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import ConfigError

LEVELS = [
    {},
    {"hops": 2},
    {"hops": 3, "parts": 8, "sentences": 6, "distance": 3},
    {"hops": 4, "parts": 11, "order": "any", "distance": 2},
    {"parts": 1, "sentences": 1},
    {"parts": 11, "sentences": 64, "hops": 2, "distance": 9},
]


def sentences_of(part):
    fact, city = r"The \w+ of \w+ is \w+\.", r"\S.*? is a city in .*? people\."
    found = re.findall(f"{fact}|{city}", part)
    assert " ".join(found) == part
    return found


def reset(config, seed, split="train"):
    env = make_env("long_document-v0", config)
    return env, env.reset(seed=seed, options={"split": split})[0]


@pytest.mark.parametrize("config", LEVELS, ids=str)
def test_the_expert_always_answers_rightly(config):
    env = make_env("long_document-v0", config)
    for seed in range(200 if config.get("sentences", 4) < 64 else 20):
        options = {"split": ("train", "test")[seed % 2]}
        played = play(env, seed, expert_policy, options=options)
        assert played.success, str(played)
        assert sum(played.rewards) == 1.0
        assert len(played.actions) == config.get("parts", 3) + 1
        assert played.infos[-1]["metrics"] == {"kept": 1.0}


@pytest.mark.parametrize("config", LEVELS, ids=str)
def test_facts_keep_the_minimum_distance(config):
    gaps, forward = set(), set()
    for seed in range(60):
        env, _ = reset(config, seed)
        sentences = [sentences_of(part) for part in env.parts]
        assert len(sentences) == config.get("parts", 3)
        assert {len(s) for s in sentences} == {config.get("sentences", 4)}
        (places,) = zip(
            *([i for i, p in enumerate(env.parts) if f.text in p] for f in env.chain)
        )  # each once
        assert in_split(env.chain[0].entity, "train")
        steps = np.diff(sorted(places))
        assert (steps >= config.get("distance", 1)).all()
        gaps.update(steps.tolist())
        forward.add(list(places) == sorted(places))
    assert forward == ({True, False} if config.get("order") == "any" else {True})
    if config.get("hops", 1) > 1 and config.get("distance", 1) < 9:
        assert len(gaps) > 1


def test_no_sentence_comes_twice_and_none_contradicts():
    for config in ({"parts": 8, "sentences": 40}, {"parts": 11, "sentences": 64}):
        env, _ = reset(config, 3)
        every = [s for part in env.parts for s in sentences_of(part)]
        assert len(set(every)) == len(every) == config["parts"] * config["sentences"]
        known = [s.split(" is ")[0] for s in every if s.startswith("The ")]
        assert len(set(known)) == len(known)


def test_the_memory_is_what_the_model_wrote_and_is_cut():
    env, _ = reset({"memory_words": 3}, 0)
    text = env.step("thinking <memory>one  two\nthree four</memory>")[0]
    assert "\nMemory: one two three\nPart 2 of 3:" in text
    text = env.step("<memory>five</memory>")[0]  # nothing of the old one stays
    assert "\nMemory: five\n" in text
    text = env.step("<memory>six</memory>")[0]
    assert text.endswith("\nMemory: six\nThat was all. Answer.")


def test_messages_may_show_the_part_alone():
    env, first = reset({"repeat": False}, 0)
    assert first.startswith("What is the ")
    text = env.step("<memory>something</memory>")[0]
    assert text.startswith("Part 2 of 3: ")
    env.step("<memory>something</memory>")
    assert env.step("<memory>something</memory>")[0] == "That was all. Answer."


def test_only_summaries_count_before_the_last_part():
    env, _ = reset({}, 0)
    right = f"<answer>{env.chain[-1].value}</answer>"
    for completion in (right, "<memory> </memory>", "Part 2", "<memory>unclosed"):
        observed = env.step(completion)
        assert observed[4]["invalid_action"], completion
        assert observed[1] == 0.0
        assert env.read == 0
    for _ in range(3):
        assert not env.step(f"{right} <memory>x</memory>")[4]["invalid_action"]
    assert env.step("<memory>x</memory>")[4]["invalid_action"]
    assert env.step(right.upper().replace("ANSWER", "answer"))[1] == 1.0


def test_wrong_answers_end_without_reward():
    env, _ = reset({"parts": 1}, 0)
    env.step("<memory>x</memory>")
    _, reward, terminated, _, info = env.step("<answer>Nobody</answer>")
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert info["metrics"] == {"kept": 0.0}


def test_info_holds_the_needed_facts_in_memory():
    env, _ = reset({"hops": 2}, 1)
    first, second = env.chain
    info = env.step(f"<memory>{first.entity}: {first.value}.</memory>")[4]
    assert info["gold_documents"] == [first.text, second.text]
    assert info["gold_answers"] == [second.value]
    assert info["documents"] == [first.text]
    info = env.step(f"<memory>{first.text} {second.text}</memory>")[4]
    assert info["documents"] == [first.text, second.text]
    info = env.step(f"<memory>{second.value}</memory>")[4]
    assert info["documents"] == []


def test_turns_must_suffice():
    with pytest.raises(ConfigError, match="Raise max_turns"):
        reset({"parts": 20}, 0)
    env, _ = reset({"parts": 20, "max_turns": 21}, 0)
    assert len(env.parts) == 20
    with pytest.raises(ConfigError, match="Set parts to 7 or more"):
        reset({"parts": 6, "hops": 3, "distance": 3}, 0)
