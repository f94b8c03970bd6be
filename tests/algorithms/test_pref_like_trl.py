"""Preference losses and their gradients are those of TRL on the same batches.

TRL's trainers prepare the batches and compute their loss; the Learner gets the tokens
of these batches. Skipped where TRL is not installed; the extra ``dev`` has it.
"""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from learner_helpers import gradients, make_config, make_learner, policy, update
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from test_pref import shifted

from rllib_llm import PrefConfig
from rllib_llm.algorithms.pref.pairs import LabelledEpisode, PreferencePair
from rllib_llm.components.registry import bind
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import FinishReason, StopPolicy, Turn
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.losses.preference_losses import PairSums

VERSION = "1.16.0"
PROMPTS = ["guess a number", "go", "what is next", "say more than one word"]
REPLIES = [
    "seven",
    "left and right",
    "a",
    "no idea at all",
    "up",
    "down we go",
    "x",
    "y",
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def trl():
    """Skip the tests without TRL."""
    try:
        version = importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        version = None
    if version != VERSION:
        pytest.skip(f"trl {VERSION} is not installed")


def learner_of(**training):
    """A Learner away from its reference."""
    return shifted(make_learner(make_config(PrefConfig, **training)))


def trainer_of(kind, config, rows, tmp_path, **settings):
    """TRL's trainer of the Learner's first weights, which are its reference's."""
    import datasets
    import trl
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(config.resolved_model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model, ref_model = (
        AutoModelForCausalLM.from_pretrained(config.resolved_model, dtype="float32")
        for _ in range(2)
    )
    arguments = getattr(trl, f"{kind}Config")(
        output_dir=str(tmp_path),
        per_device_train_batch_size=len(PROMPTS),
        train_sampling_strategy="sequential",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_dropout=True,
        report_to="none",
        max_length=None,
        **settings,
    )
    return getattr(trl, f"{kind}Trainer")(
        model=model,
        ref_model=ref_model,
        args=arguments,
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer,
    )


def of_trl(trainer, learner, batch):
    """TRL's loss and gradient with the Learner's weights."""
    trainer.model.load_state_dict(policy(learner).lm.state_dict())
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    grads = {n: p.grad for n, p in trainer.model.named_parameters()}
    return float(loss.detach()), grads


def episodes_of(batch, prefix=""):
    """The rows of TRL's batch as episodes of one turn, token by token."""
    found = []
    names = [prefix + n for n in ("input_ids", "attention_mask", "completion_mask")]
    for ids, real, reply in zip(*(batch[n].tolist() for n in names), strict=True):
        tokens = [i for i, r in zip(ids, real, strict=True) if r]
        start = sum(real) - sum(reply)
        turn = Turn(
            prompt_ids=np.asarray(tokens[:start], np.int32),
            extends=True,
            action_ids=np.asarray(tokens[start:], np.int32),
            action_logps=np.zeros(sum(reply), np.float32),
            finish=FinishReason.STOP,
        )
        space = UnicodeText()
        episode = SingleAgentEpisode(observation_space=space, action_space=space)
        episode.add_env_reset(observation="", infos={})
        data = episode_data(episode)
        data.stop_policy = StopPolicy.TRAIN
        data.record(turn)
        episode.add_env_step(
            observation="",
            action="",
            reward=0.0,
            infos={},
            terminated=True,
            extra_model_outputs={columns.TURN: turn},
        )
        found.append(episode)
    return found


def compare(trainer, learner, batch, units):
    """Assert that loss and gradient of both are equal."""
    loss, grads = of_trl(trainer, learner, batch)
    found = gradients(learner, units)
    # Without a step, as the gradients before.
    stats = update(learner, units)[DEFAULT_MODULE_ID]
    result = float(stats["preference_loss"].peek())
    assert result == pytest.approx(loss, rel=1e-5, abs=1e-6)
    largest = max(float(g.abs().max()) for g in grads.values() if g is not None)
    assert largest > 1e-4
    compared = 0
    for name, grad in grads.items():
        ours = found.get(f"lm.{name}")
        if grad is None or ours is None:
            continue
        compared += 1
        torch.testing.assert_close(ours, grad, atol=1e-5 * largest, rtol=1e-4)
    assert compared > 10
    return stats


@pytest.fixture(scope="module")
def dpo_trainer(trl, tmp_path_factory):
    rows = [
        {"prompt": p, "chosen": " " + c, "rejected": " " + r}
        for p, c, r in zip(PROMPTS, REPLIES[:4], REPLIES[4:], strict=True)
    ]
    config = make_config(PrefConfig)
    trainer = trainer_of("DPO", config, rows, tmp_path_factory.mktemp("dpo"), beta=0.4)
    return trainer, next(iter(trainer.get_train_dataloader()))


@pytest.mark.parametrize(
    "theirs, ours, smoothing",
    [
        ("sigmoid", {"name": "dpo"}, 0.0),
        ("ipo", {"name": "ipo"}, 0.0),
        ("hinge", {"name": "hinge"}, 0.0),
        ("robust", {"name": "robust_dpo", "label_smoothing": 0.2}, 0.2),
        ("exo_pair", {"name": "exo", "label_smoothing": 0.01}, 0.01),
    ],
)
def test_dpo(dpo_trainer, theirs, ours, smoothing):
    trainer, batch = dpo_trainer
    trainer.loss_types, trainer.loss_weights = [theirs], [1.0]
    trainer.label_smoothing = smoothing
    learner = learner_of(preference_loss={**ours, "beta": 0.4})
    compare(trainer, learner, batch, pairs_of(batch))


def pairs_of(batch):
    """The pairs of TRL's batch, whose first half is chosen."""
    episodes = episodes_of(batch)
    half = len(episodes) // 2
    return [
        PreferencePair(w, x)
        for w, x in zip(episodes[:half], episodes[half:], strict=True)
    ]


def test_rpo(tmp_path):
    """TRL's likelihood is a mean over tokens, the same for replies of one length."""
    rows = [
        {"prompt": p, "chosen": " " + c, "rejected": " " + r}
        for p, c, r in zip(PROMPTS, 4 * ["up"], REPLIES[:4], strict=True)
    ]
    trainer = trainer_of("DPO", make_config(PrefConfig), rows, tmp_path, beta=0.4)
    trainer.loss_types, trainer.loss_weights = ["sigmoid", "sft"], [1.0, 0.5]
    batch = next(iter(trainer.get_train_dataloader()))
    pairs = pairs_of(batch)
    chosen = [
        next(iter(pair.agent_episodes.values())).get_extra_model_outputs(columns.TURN)
        for pair in pairs
    ]
    assert len({len(turns[0].action_ids) for turns in chosen}) == 1
    dpo = {"name": "dpo", "beta": 0.4}
    learner = learner_of(preference_loss=dpo, nll_weight=0.5)
    compare(trainer, learner, batch, pairs)


def test_kto(tmp_path):
    labels = [True, False, False, True]
    rows = [
        {"prompt": p, "completion": " " + c, "label": label}
        for p, c, label in zip(PROMPTS, REPLIES[:4], labels, strict=True)
    ]
    settings = {"beta": 0.4, "desirable_weight": 1.3, "undesirable_weight": 0.7}
    config = make_config(PrefConfig)
    trainer = trainer_of("KTO", config, rows, tmp_path, **settings)
    batch = next(iter(trainer.get_train_dataloader()))
    config = make_config(PrefConfig, preference_loss={"name": "kto", **settings})
    config.data_files = "rows.jsonl"  # the batch comes from TRL
    learner = shifted(make_learner(config))
    given = (episodes_of(batch), batch["label"], episodes_of(batch, "KL_"))
    units = [LabelledEpisode(e, bool(y), m) for e, y, m in zip(*given, strict=True)]
    stats = compare(trainer, learner, batch, units)
    assert float(stats["preference_kl"].peek()) > 1e-3  # else it would not be seen


def means(count=5):
    """Mean log-probabilities of a token, with gradients. 2 x [P]"""
    rng = torch.Generator().manual_seed(0)
    return [(-3 * torch.rand(count, generator=rng)).requires_grad_() for _ in range(2)]


def of_means(chosen, rejected):
    """The pairs of these means: episodes of one token."""
    zero, one = torch.zeros_like(chosen), torch.ones_like(chosen)
    return PairSums(chosen, rejected, zero, zero, one, one)


def test_orpo_up_to_its_likelihood():
    """TRL's likelihood term is a mean over all tokens, those of the prompt too."""
    from trl.experimental.orpo import ORPOTrainer

    chosen, rejected = means()
    theirs = -ORPOTrainer.odds_ratio_loss(
        SimpleNamespace(beta=0.3, accelerator=SimpleNamespace(device="cpu")),
        chosen,
        rejected,
    )[0]
    ours = bind("preference_loss", {"name": "orpo", "beta": 0.3}).call
    same(ours(of_means(chosen, rejected)) + chosen, theirs, (chosen, rejected))


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_simpo(gamma):
    from trl.experimental.cpo import CPOTrainer

    chosen, rejected = means()
    theirs = CPOTrainer.cpo_loss(
        SimpleNamespace(
            beta=2.0,
            simpo_gamma=gamma,
            alpha=0.0,
            label_smoothing=0.0,
            loss_type="simpo",
            accelerator=SimpleNamespace(device="cpu"),
        ),
        chosen,
        rejected,
    )[0]
    ours = bind("preference_loss", {"name": "simpo", "beta": 2.0, "gamma": gamma}).call
    same(ours(of_means(chosen, rejected)), theirs, (chosen, rejected))


def same(ours, theirs, inputs):
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    for one, other in zip(
        torch.autograd.grad(ours.sum(), inputs),
        torch.autograd.grad(theirs.sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
