"""Pref: pairs, their gradient in two passes, and runs."""

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
from ray.rllib.core.columns import Columns
from test_rewards_filters_runs import Counting
from test_sft_files import chat, say, write

from rllib_llm import PrefConfig
from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.algorithms.pref.pairs import (
    PreferencePair,
    outcome_pairs,
)
from rllib_llm.algorithms.pref.pref import Pref
from rllib_llm.algorithms.pref.stored_pairs import (
    stored_pair,
)
from rllib_llm.components.registry import bind
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.envs.dataset.dataset_rows import RowError
from rllib_llm.errors import ConfigError
from rllib_llm.losses.preference_losses import PairSums
from rllib_llm.offline.conversation_files import parse_pair
from rllib_llm.offline.demonstrations import demonstrate

# Pairs --------------------------------------------------------------------------------

RETURNS = [0.0, 1.0, 0.5, 1.0, 2.0, 2.0]
TASKS = [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"match": "best_worst"}, [(1, 0)]),
        ({"match": "one_to_one"}, [(1, 0), (3, 2)]),
        ({"match": "one_to_one", "margin": 0.5}, [(1, 0)]),
        ({"match": "all"}, [(1, 0), (3, 0), (1, 2), (3, 2), (2, 0)]),
        ({"match": "all", "max_pairs_per_task": 2}, [(1, 0), (3, 0)]),
        ({"match": "all", "margin": 1.0}, []),
    ],
)
def test_pairs_of_outcomes(settings, expected):
    assert outcome_pairs(RETURNS, TASKS, **settings) == expected


def test_an_episode_may_be_on_both_sides():
    middle = fake_episode(0)
    one = PreferencePair(fake_episode(1), middle)
    two = PreferencePair(middle, fake_episode(2))
    sides = [episode_data(p.agent_episodes["rejected"]).agent_index for p in (one, two)]
    assert sides == [1, 1]
    assert episode_data(two.agent_episodes["chosen"]).agent_index == 0
    assert len(one) == one.env_steps() == 6


def line(**row):
    return json.dumps(row).encode()


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        {
            "prompt": [say("user", "a")],
            "chosen": [say("assistant", "b")],
            "rejected": [say("assistant", "c")],
        },
        {"chosen": chat("a", "b"), "rejected": chat("a", "c")},
    ],
)
def test_forms_of_one_stored_pair(row):
    pair = parse_pair(line(**row))
    assert pair.chosen.messages == chat("a", "b")
    assert pair.rejected.messages == chat("a", "c")


@pytest.mark.parametrize(
    "row, message",
    [
        ({"prompt": "a", "chosen": "b"}, "a row needs 'chosen' and 'rejected'"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "are equal"),
        ({"chosen": "b", "rejected": "c"}, "chosen: messages='b' must be a list"),
        ({"prompt": "a", "chosen": "b", "rejected": " "}, r"rejected: messages\[1\]"),
    ],
)
def test_what_is_wrong_with_a_stored_pair(row, message):
    with pytest.raises(RowError, match=message):
        parse_pair(line(**row))


# Gradient -----------------------------------------------------------------------------


def pairs(count=5):
    made = []
    for i in range(count):
        chosen = fake_episode(2 * i, turns=1 + i % 3, breaks=i == 2)
        made.append(PreferencePair(chosen, fake_episode(2 * i + 1, turns=1 + i % 2)))
    return made


def shifted(learner, scale=0.02):
    """Move the policy away from the reference, where all margins are 0."""
    with torch.no_grad():
        for p in policy(learner).lm.parameters():
            noise = torch.Generator().manual_seed(p.numel())
            p += scale * torch.randn(p.shape, generator=noise)
    return learner


def log_sums(learner, pair, discount):
    """Sums over both sides' sampled tokens, one row at a time, with the graph."""
    found = []
    for episode in pair.agent_episodes.values():
        batch = learner._make_batch_if_necessary(
            training_data=LLMTrainingData(episodes=[episode])
        ).policy_batches[DEFAULT_MODULE_ID]
        rows, total = dict(batch), len(episode)
        out = policy(learner).forward_train(rows)[Columns.ACTION_DIST_INPUTS]
        logp, ref = out[..., 0].double(), rows[columns.REF_LOGP].double()
        sums = [0.0, 0.0, 0]
        mask, turns = rows[Columns.LOSS_MASK], rows[columns.TURN_IDS]
        for row, column in mask.nonzero().tolist():
            h = int(turns[row, column])
            weight = 1.0
            if discount < 1:
                weight = discount**h * (1 - discount ** (total - h))
                weight /= 1 - discount**total
            sums[0] = sums[0] + weight * logp[row, column]
            sums[1] = sums[1] + weight * ref[row, column]
            sums[2] += 1
        found.append(sums)
    return found


LOSSES = [
    ("dpo", {}),
    ({"name": "ipo", "beta": 0.5}, {}),
    ({"name": "hinge", "beta": 0.5}, {"nll_weight": 0.5}),
    ("dpo", {"turn_discount": 0.7}),
]


@pytest.mark.parametrize("loss, more", LOSSES, ids=str)
@pytest.mark.parametrize("tokens", [None, 48])
def test_two_passes_have_the_gradient_of_the_loss(loss, more, tokens):
    config = make_config(
        PrefConfig, preference_loss=loss, micro_batch_tokens=tokens, **more
    )
    learner, played = shifted(make_learner(config)), pairs()
    found = gradients(learner, played)
    call, total = bind("preference_loss", loss).call, 0.0
    for pair in played:
        (w, rw, nw), (x, rl, nl) = log_sums(
            learner, pair, more.get("turn_discount", 1.0)
        )
        one = [torch.as_tensor(v, dtype=torch.float64) for v in (w, x, rw, rl, nw, nl)]
        total = total + call(PairSums(*(v[None] for v in one))).sum()
        total = total - more.get("nll_weight", 0.0) * w / nw
    parameters = dict(policy(learner).named_parameters())
    expected = torch.autograd.grad(
        total / len(played), list(parameters.values()), allow_unused=True
    )
    largest = max(float(g.abs().max()) for g in expected if g is not None)
    assert largest > 1e-4
    for name, grad in zip(parameters, expected, strict=True):
        if grad is not None:
            torch.testing.assert_close(
                found[name], grad, atol=2e-6 * max(1, largest), rtol=1e-4
            )


@pytest.mark.parametrize("loss", ["simpo", "orpo"])
def test_losses_without_a_reference_keep_no_copy(loss):
    config = make_config(PrefConfig, preference_loss=loss)
    learner = make_learner(config)
    assert not policy(learner)._reference
    found = gradients(learner, pairs())
    assert max(float(g.abs().max()) for g in found.values()) > 1e-4


def test_updates_widen_the_margin():
    learner = make_learner(make_config(PrefConfig, lr=3e-4, minibatch_size=3))
    played = pairs()
    results = [update(learner, played, minibatch_size=3) for _ in range(4)]
    first, last = (
        {
            k: float(r[DEFAULT_MODULE_ID][k].peek())
            for k in ("margin", "preference_loss")
        }
        for r in (results[0], results[-1])
    )
    # The first of its two steps begins at the reference, with a loss of log 2.
    assert first["preference_loss"] == pytest.approx(0.6931, abs=0.02)
    assert last["margin"] > 1 > first["margin"]
    assert last["preference_loss"] < 0.65


# Configuration ------------------------------------------------------------------------


def pref(**training):
    return (
        PrefConfig()
        .environment("guess_number-v0", env_config={"upper": 7})
        .generation(max_new_tokens=8)
        .rollouts(episodes_per_iteration=16, group_size=4)
        .training(**{"lr": 1e-3, "minibatch_size": 4, **training})
    )


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c.training(preference_loss="dpoo"), "Did you mean 'dpo'"),
        (
            lambda c: c.training(preference_loss={"name": "dpo", "beta": -1.0}),
            "beta is -1.0",
        ),
        (lambda c: c.training(turn_discount=0.0), r"turn_discount=0.0 must be"),
        (lambda c: c.training(nll_weight=-1.0), "nll_weight=-1.0 must be"),
        (lambda c: c.training(match="some"), "match='some'"),
        (
            lambda c: PrefConfig().environment(Counting).training(expert_episodes=True),
            "expert_episodes=True needs a scripted expert",
        ),
        (
            lambda c: c.rollouts(rewards=["format"]).training(expert_episodes=True),
            "compares the environment's rewards",
        ),
        (lambda c: c.training(margin=-1), "margin=-1 must be"),
        (lambda c: c.training(max_pairs_per_task=0), "max_pairs_per_task=0 must be"),
        (lambda c: c.training(ref_kl_coeff=0.1), "ref_kl_coeff=0.1 would have no"),
        (lambda c: c.rollouts(group_size=1), "a pair needs two episodes"),
        (
            lambda c: (
                PrefConfig().environment("frozen_lake-v0").generation(head="score")
            ),
            "head='score': Pref compares",
        ),
        (
            lambda c: PrefConfig().environment("secret_sum-v0"),
            "Set compared_agent",
        ),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        change(pref()).validate()


def test_settings_of_sampling_have_no_effect_on_files(tmp_path):
    row = {"prompt": "a", "chosen": "b", "rejected": "c"}
    files = write(tmp_path / "pairs.jsonl", [row])
    with pytest.raises(ConfigError, match="margin=0.5 would have no effect"):
        PrefConfig().environment("guess_number-v0").data(files=files).training(
            margin=0.5
        ).validate()


# Runs ---------------------------------------------------------------------------------


@pytest.mark.ray
def test_a_run_on_sampled_pairs(ray_session, tmp_path):
    config = pref().sft(demonstrations=60, mistake_rate=0.5)
    algo = config.build_algo()
    results = [algo.train() for _ in range(2)]
    assert all(0 < r["num_pairs"] <= 8 for r in results)
    learned = results[-1]["learners"][DEFAULT_MODULE_ID]
    assert {"margin", "pair_accuracy", "chosen_logratio", "rejected_logp"} <= {*learned}
    path = algo.save_to_path(tmp_path / "checkpoint")
    expected = algo.train()["learners"][DEFAULT_MODULE_ID]["preference_loss"]
    again = type(algo).from_checkpoint(path)
    assert again.train()["learners"][DEFAULT_MODULE_ID]["preference_loss"] == expected
    again.stop()
    algo.stop()


@pytest.mark.ray
def test_a_run_on_stored_pairs(ray_session, tmp_path):
    rows = [
        {
            "prompt": f"Guess a number from 1 to {n}.",
            "chosen": str(n // 2),
            "rejected": str(n),
        }
        for n in range(5, 29)
    ]
    config = (
        PrefConfig()
        .environment("guess_number-v0", env_config={"upper": 7})
        .rollouts(episodes_per_iteration=24)
        .training(lr=1e-3, minibatch_size=8)
        .data(files=write(tmp_path / "pairs.jsonl", rows))
    )
    algo = config.build_algo()
    results = [algo.train() for _ in range(3)]
    learned = [r["learners"][DEFAULT_MODULE_ID] for r in results]
    assert [r["num_pairs"] for r in results] == [24, 24, 24]
    losses = [one["preference_loss"] for one in learned]
    assert losses[0] > losses[1] > losses[2]
    assert learned[-1]["pair_accuracy"] > 0.9
    algo.stop()


def test_stored_pairs_share_the_tokens_of_their_prompt():
    config = make_config(PrefConfig)
    pair = parse_pair(line(prompt="Guess.", chosen="4", rejected="7"))
    made = stored_pair(pair, config.chat_renderer()).agent_episodes
    (one,), (two,) = (
        [t.prompt_ids.tolist() for t in e.get_extra_model_outputs(columns.TURN)]
        for e in (made["chosen"], made["rejected"])
    )
    assert one == two


def test_the_experts_episode_is_compared_with_the_worst():
    config = make_config(PrefConfig, expert_episodes=True, match="best_worst")
    driver = Pref.__new__(Pref)
    driver.config = config.rollouts(group_size=2, episodes_per_iteration=4)
    own = [fake_episode(i, reward=-0.1 * i, group=i // 2) for i in range(4)]
    driver.sample_groups, driver.process_episodes = lambda count: own, list
    pairs = driver._sampled()
    env = config.make_text_env()
    for pair, group in zip(pairs, (0, 1), strict=True):
        task = own[2 * group].custom_data[columns.EPISODE_DATA].task
        expected = demonstrate(
            env, seed=task.seed, mistake_rate=0.0, options=task.options
        )
        chosen, rejected = pair.agent_episodes.values()
        messages = episode_data(chosen).messages
        replies = [m["content"] for m in messages if m["role"] == "assistant"]
        assert replies == expected.completions
        assert sum(rejected.get_rewards()) == pytest.approx(-0.1 * (2 * group + 1))
