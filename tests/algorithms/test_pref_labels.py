"""Pref with labelled episodes (KTO): labels, the KL estimate, gradient and runs."""

from __future__ import annotations

import json

import pytest
import torch
from learner_helpers import (
    fake_episode,
    gradients,
    make_config,
    make_learner,
    policy,
    update,
)
from ray.rllib.core import DEFAULT_MODULE_ID
from test_pref import log_sums, pref, shifted
from test_sft_files import chat, say, write

from rllib_llm import PrefConfig
from rllib_llm.algorithms.pref.pairs import (
    LabelledEpisode,
    PreferencePair,
    labelled_episodes,
)
from rllib_llm.algorithms.pref.stored_pairs import (
    WithNeighbours,
    stored_labelled,
)
from rllib_llm.components.registry import bind
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.envs.dataset.dataset_rows import RowError
from rllib_llm.errors import ConfigError
from rllib_llm.losses.preference_losses import LabelledSums
from rllib_llm.offline.conversation_files import (
    parse_labelled,
    parse_row,
    parser_of,
)


def line(**row):
    return json.dumps(row).encode()


def test_labels_of_returns():
    returns = [0.0, 1.0, 0.5]
    units = labelled_episodes([fake_episode(0, reward=r) for r in returns], 0.5)
    labels = [episode_data(u.agent_episodes["episode"]).agent_index for u in units]
    assert labels == [1, 0, 1]  # equal to the limit is not above it


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a", "completion": "b"},
        {"prompt": [say("user", "a")], "completion": [say("assistant", "b")]},
        {"messages": chat("a", "b")},
    ],
)
@pytest.mark.parametrize("label", [True, False])
def test_forms_of_a_labelled_row(row, label):
    stored = parse_labelled(line(**row, label=label))
    assert stored.conversation.messages == chat("a", "b")
    assert stored.desirable is label
    assert parser_of([*row, "label"]) is parse_labelled
    assert parser_of([*row]) is parse_row


@pytest.mark.parametrize(
    "row, message",
    [
        ({"prompt": "a", "completion": "b"}, "no column 'label': a row needs"),
        ({"prompt": "a", "completion": "b", "label": 1}, "label=1: a row needs"),
        ({"prompt": "a", "label": True}, "a row needs 'messages', or 'prompt'"),
    ],
)
def test_what_is_wrong_with_a_labelled_row(row, message):
    with pytest.raises(RowError, match=message):
        parse_labelled(line(**row))


def test_a_mismatched_conversation_is_the_prompt_with_the_other_reply():
    own = parse_row(line(prompt=[*chat("a", "b"), say("user", "c")], completion="d"))
    other = parse_row(line(messages=chat("e", "f", "g", "h")))
    mixed = own.with_reply_of(other)
    texts = [message["content"] for message in mixed.messages]
    assert texts == ["a", "b", "c", "f", "g", "h"]
    assert mixed.trained == (False, True, True)


def test_a_stored_row_borrows_the_reply_of_its_neighbour():
    config = make_config(PrefConfig, preference_loss="kto")
    rows = [
        parse_labelled(line(prompt=p, completion=c, label=True))
        for p, c in (("first", "one"), ("second", "two words"))
    ]
    unit = stored_labelled(tuple(rows), config.chat_renderer(), max_tokens=99)
    own, mixed = (
        episode_data(unit.agent_episodes[name]) for name in ("episode", "mismatched")
    )
    assert [m["content"] for m in own.messages] == ["first", "one"]
    assert [m["content"] for m in mixed.messages] == ["first", "two words"]
    assert len(unit) == 1  # turns that were played
    short = stored_labelled(tuple(rows), config.chat_renderer(), max_tokens=3)
    assert "mismatched" not in short.agent_episodes


def test_the_neighbour_is_the_row_before_in_the_iteration():
    class Rows:
        def in_passes(self, seed, first, count):
            return list(range(first, first + count))

    found = WithNeighbours(Rows()).in_passes(0, 4, 3)
    assert found == [(4, 6), (5, 4), (6, 5)]


# Gradient -----------------------------------------------------------------------------


def labelled(count=6, mismatched=False):
    first = 0 if mismatched else 50
    return [
        LabelledEpisode(
            fake_episode(first + i, turns=1 + i % 3, breaks=i == 2),
            i % 3 > 0,
            fake_episode(50 + i) if mismatched else None,
        )
        for i in range(count)
    ]


def kto_learner(mismatched, **training):
    settings = {"name": "kto", "beta": 0.3, "undesirable_weight": 1.3}
    config = make_config(PrefConfig, preference_loss=settings, **training)
    if mismatched:
        config.data_files = "rows.jsonl"  # not read by a Learner
    # Towards these random tokens, so that the estimate of the divergence is above 0.
    return shifted(make_learner(config), scale=-0.02), settings


@pytest.mark.parametrize("mismatched", [False, True])
@pytest.mark.parametrize("tokens", [None, 48])
def test_the_gradient_is_that_of_the_loss(mismatched, tokens):
    learner, settings = kto_learner(mismatched, micro_batch_tokens=tokens)
    units = labelled(mismatched=mismatched)
    found = gradients(learner, units)
    sums = [log_sums(learner, unit, 1.0) for unit in units]
    own = [(each[0][0], each[0][1]) for each in sums]
    ratios = [each[-1][0] - each[-1][1] for each in sums]  # mismatched or own
    kl = sum(float(ratio.detach()) for ratio in ratios) / len(ratios)
    assert kl > 0.01
    loss = bind("preference_loss", settings).call(
        LabelledSums(
            torch.stack([one[0] for one in own]),
            torch.stack([torch.as_tensor(one[1]) for one in own]),
            torch.tensor([i % 3 > 0 for i in range(len(units))]),
            torch.tensor(max(0.0, kl)),
        )
    )
    parameters = dict(policy(learner).named_parameters())
    expected = torch.autograd.grad(
        loss.mean(), list(parameters.values()), allow_unused=True
    )
    largest = max(float(g.abs().max()) for g in expected if g is not None)
    assert largest > 1e-4
    for name, grad in zip(parameters, expected, strict=True):
        if grad is not None:
            torch.testing.assert_close(
                found[name], grad, atol=2e-6 * max(1, largest), rtol=1e-4
            )


def test_mismatched_episodes_get_no_training_pass():
    rows = {}
    for mismatched in (False, True):
        learner, _ = kto_learner(mismatched)
        rows[mismatched] = []
        loss = learner.compute_loss_for_module

        def counted(*, batch, loss=loss, into=rows[mismatched], **kwargs):
            into.append(len(batch[columns.INPUT_IDS]))
            return loss(batch=batch, **kwargs)

        learner.compute_loss_for_module = counted
        update(learner, labelled(mismatched=mismatched))
    assert sum(rows[True]) == sum(rows[False]) > 0


def test_updates_move_labelled_episodes_apart():
    config = make_config(PrefConfig, preference_loss="kto", lr=1e-3)
    learner, units = make_learner(config), labelled()
    results = [update(learner, units, minibatch_size=3) for _ in range(4)]
    first, last = (
        {
            key: float(r[DEFAULT_MODULE_ID][key].peek())
            for key in ("chosen_logratio", "rejected_logratio", "preference_loss")
        }
        for r in (results[0], results[-1])
    )
    assert first["preference_loss"] == pytest.approx(0.5, abs=0.03)
    assert last["preference_loss"] < first["preference_loss"] - 0.02
    assert last["chosen_logratio"] > 0 > last["rejected_logratio"]


# Configuration and runs ---------------------------------------------------------------


@pytest.mark.parametrize(
    "change, message",
    [
        ({"match": "all"}, "match='all' would have no effect: .*'kto' compares no"),
        ({"nll_weight": 0.1}, "nll_weight=0.1 would have no effect"),
        ({"after_fork": True}, "after_fork=True would have no effect"),
        (
            {"preference_loss": {"name": "kto", "undesirable_weight": -1.0}},
            "undesirable_weight -1.0",
        ),
        (
            {"preference_loss": "dpo", "desirable_return": 1.0},
            "desirable_return=1.0 would have no effect: .*'dpo' compares pairs",
        ),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        pref(**{"preference_loss": "kto", **change}).validate()


def test_pairs_are_no_labels(tmp_path):
    row = {"prompt": "a", "chosen": "b", "rejected": "c"}
    config = pref(preference_loss="kto").data(files=write(tmp_path / "p.jsonl", [row]))
    with pytest.raises(ConfigError, match="no column 'label'"):
        config.validate()


@pytest.mark.ray
def test_a_run_on_labelled_rows(ray_session, tmp_path):
    rows = [
        {
            "prompt": f"Guess a number from 1 to {n}.",
            "completion": str(n // 2 if good else n),
            "label": good,
        }
        for n in range(5, 29)
        for good in (True, False)
    ]
    config = (
        PrefConfig()
        .environment("guess_number-v0", env_config={"upper": 7})
        .rollouts(episodes_per_iteration=24)
        .training(lr=1e-3, minibatch_size=8, preference_loss="kto")
        .data(files=write(tmp_path / "rows.jsonl", rows))
    )
    algo = config.build_algo()
    results = [algo.train() for _ in range(3)]
    learned = [r["learners"][DEFAULT_MODULE_ID] for r in results]
    assert all(r["num_desirable"] + r["num_undesirable"] == 24 for r in results)
    losses = [one["preference_loss"] for one in learned]
    assert losses[0] > losses[1] > losses[2]
    assert learned[-1]["chosen_logratio"] > learned[-1]["rejected_logratio"]
    assert learned[-1]["preference_kl"] >= 0
    algo.stop()


@pytest.mark.ray
def test_a_run_on_sampled_labels(ray_session):
    config = pref(preference_loss="kto", reference="current")
    algo = config.sft(demonstrations=60, mistake_rate=0.5).build_algo()
    result = algo.train()
    assert result["num_desirable"] + result["num_undesirable"] == 16
    assert "num_pairs" not in result
    algo.stop()


def test_a_pair_and_a_label_name_their_sides_alike():
    pair = PreferencePair(fake_episode(0), fake_episode(1))
    units = [LabelledEpisode(fake_episode(2), good) for good in (True, False)]
    of_pair = [episode_data(e).agent_index for e in pair.agent_episodes.values()]
    labels = [episode_data(u.agent_episodes["episode"]).agent_index for u in units]
    assert of_pair == labels == [0, 1]
