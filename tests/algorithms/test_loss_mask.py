"""Tokens that ``loss_mask_pattern`` leaves out, from their text to the gradient."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch
from learner_helpers import (
    assert_close,
    fake_episode,
    gradients,
    make_batch,
    make_config,
    make_learner,
)
from ray.rllib.core.columns import Columns

from rllib_llm import GRPOConfig, LLMPPOConfig, PrefConfig, RewardModelConfig, SFTConfig
from rllib_llm.algorithms.pref.pairs import PreferencePair
from rllib_llm.connectors.learner.loss_mask import PatternMask
from rllib_llm.data import columns
from rllib_llm.errors import ConfigError
from rllib_llm.recipes import load_recipe

THOUGHT = r"<think>.*?(</think>|$)"
TEXT = "<think>7 \U0001f600 +\n5</think> It is <b>12</b>é. <think>un"


@pytest.fixture(scope="module")
def tokenizer():
    return make_config(GRPOConfig).chat_renderer().tokenizer


def slow_mask(tokenizer, ids, pattern):
    """Each token whose own characters, of growing prefixes, overlap a match."""
    text = tokenizer.decode(ids)
    inside = [False] * len(ids)
    before = 0
    pending = []
    for index in range(len(ids)):
        whole = tokenizer.decode(ids[: index + 1])
        pending.append(index)
        if whole.endswith("\ufffd"):
            continue  # a character that later tokens complete
        places = set(range(before, len(whole)))
        for match in re.finditer(pattern, text, re.DOTALL):
            if places & set(range(*match.span())):
                for token in pending:
                    inside[token] = True
        before, pending = len(whole), []
    return np.array(inside)


@pytest.mark.parametrize(
    "pattern", [THOUGHT, "It", "t is", "12|é", r"^.*(?=12)", "x*", "nothing", "."]
)
def test_tokens_that_overlap_a_match(tokenizer, pattern):
    ids = tokenizer.encode(TEXT)
    inside = PatternMask(pattern, tokenizer)(np.array(ids, np.int32))
    np.testing.assert_array_equal(inside, slow_mask(tokenizer, ids, pattern))


def test_what_is_left_of_a_text_with_thoughts(tokenizer):
    ids = np.array(tokenizer.encode(TEXT), np.int32)
    left = ids[~PatternMask(THOUGHT, tokenizer)(ids)]
    assert tokenizer.decode(left) == " It is <b>12</b>é. "


def spoken(tokenizer, seed, texts):
    """An episode whose turns say these texts."""
    episode = fake_episode(seed, turns=len(texts), reward=float(seed))
    for index, text in enumerate(texts):
        turn = episode.get_extra_model_outputs(columns.TURN, index)
        turn.action_ids = np.array(tokenizer.encode(text), np.int32)
        turn.action_logps = np.zeros(len(turn.action_ids), np.float32)
    return episode


def test_the_denominator_counts_what_is_trained(tokenizer):
    texts = ["<think>a b c</think>go up", "go left"]
    batch = make_batch(
        make_learner(
            make_config(
                GRPOConfig,
                loss_mask_pattern=THOUGHT,
                loss_agg_mode="seq-mean-token-mean",
            )
        ),
        [spoken(tokenizer, i, texts) for i in range(2)],
    )
    mask = batch[Columns.LOSS_MASK]
    for row in range(2):
        ids = batch[columns.INPUT_IDS][row][mask[row]]
        assert tokenizer.decode(ids.tolist()) == "go upgo left"
    weights = batch[columns.LOSS_WEIGHTS]
    torch.testing.assert_close(weights, mask / mask.sum(1, keepdim=True).float())


def shortened(episode, tokenizer):
    """The same episode, whose thoughts the policy read instead of saying them."""
    for index in range(len(episode)):
        turn = episode.get_extra_model_outputs(columns.TURN, index)
        ids = turn.action_ids
        start = int(PatternMask(THOUGHT, tokenizer)(ids).sum())
        changed = dataclasses.replace(
            turn,
            prompt_ids=np.concatenate([turn.prompt_ids, ids[:start]]),
            action_ids=ids[start:],
            action_logps=turn.action_logps[start:],
        )
        episode.extra_model_outputs[columns.TURN][index] = changed
    return episode


@pytest.mark.parametrize(
    "config_class, more",
    [
        (SFTConfig, {}),
        (PrefConfig, {"preference_loss": {"name": "exo", "beta": 0.3}}),
        (PrefConfig, {"preference_loss": {"name": "orpo", "beta": 0.3}}),
    ],
)
def test_the_gradient_is_that_of_thoughts_that_were_read(tokenizer, config_class, more):
    texts = ["<think>left is a hole</think>go up", "<think>now</think>go left"]
    others = ["<think>why not</think>go down", "<think>x</think>go down"]

    def units(change=lambda episode, _: episode):
        sides = [
            change(spoken(tokenizer, i, t), tokenizer)
            for i, t in enumerate([texts, others])
        ]
        return [PreferencePair(*sides)] if config_class is PrefConfig else sides

    found = gradients(
        make_learner(make_config(config_class, loss_mask_pattern=THOUGHT, **more)),
        units(),
    )
    expected = gradients(
        make_learner(make_config(config_class, **more)), units(shortened)
    )
    assert_close(found, expected)
    every = gradients(make_learner(make_config(config_class, **more)), units())
    assert any(not torch.allclose(found[n], every[n], atol=1e-4) for n in found)


@pytest.mark.parametrize(
    "config, message",
    [
        (GRPOConfig().training(loss_mask_pattern="(a"), "is no regular expression"),
        (LLMPPOConfig().training(loss_mask_pattern="a"), "the critic's returns need"),
        (
            GRPOConfig().generation(head="score").training(loss_mask_pattern="a"),
            "head='score' trains whole actions",
        ),
        (
            GRPOConfig()
            .training(loss_mask_pattern="a", advantage_estimator="turn_critic")
            .scorer(loss="td"),
            "the scorer reads the last trained token",
        ),
        (
            RewardModelConfig().training(loss_mask_pattern="a"),
            "loss_mask_pattern='a' would have no",
        ),
    ],
)
def test_what_is_refused(config, message):
    config.environment("frozen_lake-v0")
    with pytest.raises(ConfigError, match=re.escape(message)):
        config.validate()


def test_preflexor_compares_answers_alone_in_its_second_stage(tokenizer):
    first, second = (stage.build_config() for stage in load_recipe("preflexor").stages)
    assert (first.preference_loss["name"], first.loss_mask_pattern) == ("orpo", None)
    assert second.preference_loss["name"] == "exo"
    env = second.make_text_env()
    env.reset(seed=0)
    text = env.expert_action(np.random.default_rng(0))
    ids = np.array(tokenizer.encode(text), np.int32)
    left = ids[~PatternMask(second.loss_mask_pattern, tokenizer)(ids)]
    assert re.fullmatch(r"<answer>\d+</answer>", tokenizer.decode(left))
    assert len(left) < len(ids) / 2
