"""Presets that change texts, their last stage shortened, on a model of random play."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest

from rllib_llm.data.episode_data import agent_episodes, episode_data, task_of
from rllib_llm.recipes import load_recipe, search_spaces
from rllib_llm.sandbox import shared_sandbox
from rllib_llm.sandbox.functions import failed_example

CASES = {
    "text_memory": {},
    "reflexion": {},
    "shared_reflections": {},
    "training_free_grpo": {},
    "agent_optimizer": {},
    "iagents": {},
    "inspo": {"drop_zero_variance_groups": False, "minibatch_size": 8},
    "memory_r1": {"drop_zero_variance_groups": False, "minibatch_size": 8},
}


def last_stage(name):
    """Return the config of a preset's last stage, made small."""
    config = load_recipe(name).stages[-1].build_config(search_spaces.first_of)
    config.language_model(tiny={"hidden_size": 32, "intermediate_size": 64})
    config.sft(demonstrations=150, mistake_rate=1.0, lr=1e-2)
    config.rollouts(episodes_per_iteration=max(32, 8 * config.group_size))
    config.evaluation(evaluation_interval=None)
    config.initial_checkpoint = None
    if CASES[name]:
        config.training(**CASES[name])
    return config


def check_memory(texts, episodes):
    """Episodes read a text that solved the same ground before."""
    bank = {e.number: e for e in texts.bank.entries}
    assert bank and all(e.text for e in bank.values())
    read = [e for e in episodes if episode_data(e).added_texts]
    for episode in read:
        (added,) = episode_data(episode).added_texts
        observation = str(episode.get_observations(0))
        assert added.number not in bank or bank[added.number].key == observation
    assert read


def check_reflections(texts, episodes):
    """A task that failed comes again, with a text about it that is new."""
    again = [e for e in episodes if episode_data(e).added_texts]
    assert again
    for episode in again:
        scope = str(task_of(episode).seed)
        written = [e.text for e in texts.bank.entries if e.scope == scope]
        assert episode_data(episode).added_texts[0].text in written
        assert len(set(written)) == len(written)


def check_shared_reflections(texts, episodes):
    """Episodes of other tasks read a hypothesis; what was read in vain is not back."""
    kept = {(e.key, e.text) for e in texts.bank.entries}
    assert any(e.uses for e in texts.bank.entries)
    for entry in texts.bank.entries:
        assert entry.count == entry.uses  # its writer, who failed, is not counted
    dropped = {(key, text) for _, key, text in texts.bank._dropped}
    assert dropped and not dropped & kept
    assert any(episode_data(episode).added_texts for episode in episodes)


def check_library(texts, episodes):
    """The library has a text with the move of the solved rollouts."""
    (gold,) = episodes[0].get_infos(-1)["gold_answers"]
    (text,) = texts.texts
    # A model of random play may name another ground.
    assert text.split()[-1] == gold.split()[-1]


def check_functions(texts, episodes):
    """Programs run with the set that is tried, whose functions passed their checks."""
    tried = [texts.tried[name].source for name in sorted(texts.tried)]
    assert tried and texts.value is not None
    sandbox = shared_sandbox()
    for episode in episodes:
        assert task_of(episode).options["functions"] == tried
        first = str(episode.get_observations(0))
        for function in texts.tried.values():
            assert f"{function.summary}\n" in first
            assert failed_example(function, sandbox) is None


def check_asker(texts, episodes):
    """The asker alone reads an earlier answer about the thing that it looks for."""
    bank = {e.number: e for e in texts.bank.entries}
    parts = [part for episode in episodes for part in agent_episodes(episode)]
    readers = [part for part in parts if episode_data(part).added_texts]
    assert {part.agent_id for part in readers} == {"asker_0"}
    assert {part.agent_id for part in parts} > {"asker_0"}
    num_answers = 0
    for part in readers:
        (added,) = episode_data(part).added_texts
        first = str(part.get_observations(0))
        assert bank[added.number].key == first
        thing = first.removeprefix("Find: ").removesuffix(".")
        is_answer = re.fullmatch(rf"[a-z]+ says {thing}=\S+", added.text)
        # An asker that guesses without asking has read no answer.
        assert is_answer or added.text == first
        num_answers += is_answer is not None
    assert num_answers


def check_population(texts, episodes):
    """Instructions were rated, proposals tried."""
    assert texts.members[0].value is not None
    assert texts._next > 3
    numbers = {a.number for e in episodes for a in episode_data(e).added_texts}
    assert numbers


CHECKS = {
    "text_memory": check_memory,
    "reflexion": check_reflections,
    "shared_reflections": check_shared_reflections,
    "training_free_grpo": check_library,
    "agent_optimizer": check_functions,
    "iagents": check_asker,
    "inspo": check_population,
}


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", CASES)
def test_texts_change_as_the_method_says(ray_session, name):
    algo = last_stage(name).build_algo()
    results = [algo.train() for _ in range(3)]
    if name in CHECKS:
        texts = algo._driver_components.prompt_text_of(None)
        before = copy.deepcopy(texts)  # sampling ends with the next change of texts
        CHECKS[name](before, list(algo.sample_groups(8)))
    algo.stop()
    if not CASES[name]:
        assert all(r["num_updates_skipped"] == 1 for r in results)
        return
    (trained,) = algo.config.trained_module_ids
    assert trained == {"inspo": "default_policy", "memory_r1": "manager"}[name]
    learned = results[-1]["learners"][trained]
    assert np.isfinite(learned["grad_norm"]) and learned["grad_norm"] > 0
    assert learned["num_trained_tokens"] > 0
