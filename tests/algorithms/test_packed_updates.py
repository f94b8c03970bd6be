"""Updates with packed rows are those of the same rows apart."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from learner_helpers import TINY, fake_episode, make_learner, policy
from team_helpers import (
    LORA,
    PairTogether,
    Run,
    make_team_learner,
    set_group_advantages,
    team_config,
    update,
)
from test_scoring_runs import Run as ScoringRun
from test_scoring_runs import config_of as scoring_config
from test_sft import sft

from rllib_llm import GRPOConfig, LLMPPOConfig, MARFTConfig
from rllib_llm.connectors.learner.token_rows import build_rows
from rllib_llm.data import columns, micro_batches
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import StopReason
from rllib_llm.doctor.mismatch import _differences
from rllib_llm.errors import ModelError
from rllib_llm.modules.llm_rl_module import LLMRLModule
from rllib_llm.modules.loading import load_tokenizer
from rllib_llm.offline import sft_before_rl
from rllib_llm.offline.prepare_model import prepare_language_model

MICRO_BATCH_TOKENS = 96


@pytest.fixture(autouse=True)
def few_passes(monkeypatch):
    """Make rows apart share passes, which needs padding."""
    monkeypatch.setattr(micro_batches, "_PASS_TOKENS", 10**6)


@torch.no_grad()
def shake(learner, size, seed):
    """Move weights by noise, the zeros of value heads and adapters as well."""
    generator = torch.Generator().manual_seed(seed)
    for module_id in sorted(learner.module.keys()):
        for parameter in learner.module[module_id].unwrapped().parameters():
            noise = size * torch.randn(parameter.shape, generator=generator)
            if parameter.requires_grad:
                parameter += noise.to(parameter.dtype)


@contextlib.contextmanager
def counted_padding():
    """Collect the number of positions without a token of every forward pass."""
    found, inputs_of = [], LLMRLModule._inputs

    def count(lm, batch):
        inputs = inputs_of(lm, batch)
        found.append(
            inputs["input_ids"].numel() - int(batch[columns.ATTENTION_MASK].sum())
        )
        return inputs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LLMRLModule, "_inputs", staticmethod(count))
        yield found


def two_epochs(learner, episodes):
    """Return the gradients of all steps, between which weights move, and metrics."""
    shake(learner, 0.05, 0)
    taken: list[dict[str, torch.Tensor]] = []
    names = {
        parameter: f"{module_id}/{name}"
        for module_id in learner.module.keys()
        for name, parameter in learner.module[module_id].unwrapped().named_parameters()
    }

    def keep(gradients):
        taken.append({names[p]: g.clone() for p, g in gradients.items()})
        shake(learner, 0.02, len(taken))

    learner.apply_gradients = keep
    results = update(learner, episodes, num_epochs=2)
    metrics = {
        f"{module_id}/{name}": float(value.peek())
        for module_id in learner.module.keys()
        for name, value in results[module_id].items()
        if np.ndim(value.peek()) == 0
    }
    return taken, metrics


def assert_the_same(config, episodes, build, atol=1e-6):
    """Compare gradients and metrics of updates with and without packing."""
    found = []
    for packing in (False, True):
        config = config.copy(copy_frozen=False).training(packing=packing)
        learner = build(config)
        with counted_padding() as padding:
            found.append(two_epochs(learner, episodes))
        # Of every pass: training, old log-probabilities, values, the reference's.
        assert len(padding) >= 4 and any(padding) == (not packing)
    (apart, metrics_apart), (packed, metrics) = found
    assert len(apart) == len(packed) >= 2
    for left, right in zip(apart, packed, strict=True):
        assert left.keys() == right.keys()
        largest = max(float(g.abs().max()) for g in left.values())
        assert largest > 1e-3
        for name, gradient in left.items():
            gap = float((gradient - right[name]).abs().max())
            assert gap <= atol * max(1.0, largest), name
    assert metrics.keys() == metrics_apart.keys()
    padding = [k for k in metrics if k.endswith("/padding_frac")]
    assert padding and all(metrics[k] == 0.0 < metrics_apart[k] for k in padding)
    for name in metrics.keys() - {*padding}:
        expected = pytest.approx(metrics_apart[name], abs=20 * atol, rel=20 * atol)
        assert metrics[name] == expected, name


def episodes(count=8):
    """Return ended and cut episodes of one row, and of two."""
    found = []
    for seed in range(count):
        stop = StopReason.MAX_TURNS if seed % 3 == 0 else StopReason.TERMINATED
        episode = fake_episode(
            seed, turns=1 + seed % 4, breaks=seed % 4 == 1, stop=stop
        )
        episode_data(episode).advantage = float(np.cos(seed))
        episode_data(episode).success = bool(seed % 2)
        found.append(episode)
    return found


def config_of(config_class=GRPOConfig, model=None, **training):
    config = config_class().environment("guess_number-v0")
    config.language_model(tiny=TINY, **(model or {}))
    training = {"micro_batch_tokens": MICRO_BATCH_TOKENS, **training}
    config.training(**{"matmul_precision": "highest", **training})
    config.validate()
    config.resolved_model = prepare_language_model(config)
    return config


REFERENCE = {"ref_kl_coeff": 0.3}
CASES = {
    "grpo": (GRPOConfig, {}, {"entropy_coeff": 0.1}),
    "reference and importance weights": (
        GRPOConfig,
        {},
        {**REFERENCE, "tis": "token", "tis_clip": 1.5},
    ),
    "adapters": (GRPOConfig, {"lora": {"rank": 4, "alpha": 8}}, REFERENCE),
    "whole sequences": (
        GRPOConfig,
        {},
        {"policy_loss": "gspo", "loss_agg_mode": "seq-mean-token-mean"},
    ),
    "ranks of all tokens": (
        GRPOConfig,
        {},
        {"loss_terms": [{"name": "kl_cov", "share": 0.2, "weight": 5.0}]},
    ),
    "checkpointing": (
        GRPOConfig,
        {"gradient_checkpointing": True},
        {"head_chunk_tokens": 8},
    ),
    "one row per pass": (GRPOConfig, {}, {"micro_batch_tokens": 40}),
    "critic": (LLMPPOConfig, {"value_head_detach": False}, {"vf_loss_coeff": 1.0}),
    "own critic": (LLMPPOConfig, {"value_model": "own"}, {"vf_loss_coeff": 1.0}),
    "values per turn": (
        LLMPPOConfig,
        {},
        {"value_loss": "huber", "gae_level": "turn"},
    ),
    "reference in rewards": (
        LLMPPOConfig,
        {"value_head_detach": False},
        {**REFERENCE, "ref_kl_in": "reward", "ref_kl_estimator": "k1"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_and_metrics(case):
    assert_the_same(
        config_of(*CASES[case][:2], **CASES[case][2]), episodes(), make_learner
    )


@pytest.mark.parametrize(
    ("model", "atol"), [({"autocast": "bfloat16"}, 5e-3), ({"dtype": "bfloat16"}, 2e-2)]
)
def test_lower_precision_rounds_otherwise_alike(model, atol):
    """Gradients differ by rounding; a neighbour would change them more."""
    config = config_of(LLMPPOConfig, model)
    taken = []
    for packing in (False, True):
        config = config.copy(copy_frozen=False).training(packing=packing)
        taken.append(two_epochs(make_learner(config), episodes())[0][0])
    apart, packed = taken
    largest = max(float(g.float().abs().max()) for g in apart.values())
    for name, gradient in apart.items():
        gap = (gradient.float() - packed[name].float()).abs().max()
        assert float(gap) <= atol * largest, name


def test_imitation():
    config = sft(observation_weight=0.3, micro_batch_tokens=64, minibatch_size=None)
    config.validate()
    config.resolved_model = prepare_language_model(config)
    assert_the_same(config, episodes(), make_learner)


@pytest.mark.parametrize("config_class", [GRPOConfig, LLMPPOConfig])
def test_a_policy_over_actions(config_class):
    config = scoring_config(config_class, env_config={"upper": 5})
    config.training(micro_batch_tokens=600, entropy_coeff=0.1, **REFERENCE)
    played = ScoringRun(config).sample()
    for number, episode in enumerate(played):
        episode_data(episode).advantage = float(np.cos(number))
    assert_the_same(config, played, make_learner)


TEAMS = {
    "marft": (MARFTConfig, {"critic": "shared"}, {}),
    "in turn": (MARFTConfig, {"update_schedule": "sequential", **REFERENCE}, {}),
    "central critic": (MARFTConfig, {"critic": "central", "level": "token"}, {}),
    "own critics": (MARFTConfig, {"critic": "own", "level": "token"}, {}),
    "adapters on one model": (MARFTConfig, REFERENCE, {"lora": LORA}),
    "grpo": (GRPOConfig, {}, {}),
}


@pytest.mark.parametrize("case", TEAMS)
def test_a_team(case):
    config_class, training, model = TEAMS[case]
    played, run = [], None
    for rounds in (1, 2):  # rows of unequal lengths
        config = team_config(
            PairTogether,
            config_class,
            training={"micro_batch_tokens": None, **training},
            rollouts={"group_size": 2 if config_class is GRPOConfig else 1},
            language_model=model,
            env_config={"rounds": rounds},
        )
        run = Run(config, learner=False)
        played += run.sample(3)
    if config_class is GRPOConfig:
        set_group_advantages(config, played)
    assert_the_same(config, played, make_team_learner)


# Other places -------------------------------------------------------------------------


def test_a_learner_refuses_a_model_that_mixes_rows(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = config_of(packing=True)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "ffn_dim": 64}
    opt = transformers.OPTConfig(
        **sizes, num_attention_heads=4, word_embed_proj_dim=32, vocab_size=400
    )
    transformers.AutoModelForCausalLM.from_config(opt).save_pretrained(tmp_path)
    load_tokenizer(config.resolved_model).save_pretrained(tmp_path)
    config.language_model(model=str(tmp_path), tiny={})
    config.resolved_model = str(tmp_path)
    with pytest.raises(ModelError, match="Set training.packing to False"):
        make_learner(config)
    make_learner(config.copy(copy_frozen=False).training(packing=False))


def test_the_doctors_differences_are_those_of_rows_apart():
    learner = make_learner(config_of())
    rows = [
        row
        for episode in episodes()
        for turns in [episode.get_extra_model_outputs(columns.TURN)]
        for row in build_rows(turns, [0.0] * len(turns), bootstrap=False)
    ]
    found = []
    for packing in (False, True):
        with counted_padding() as padding:
            config = config_of(packing=packing, micro_batch_tokens=None)
            found.append(_differences(policy(learner), rows, config))
        assert any(padding) == (not packing)
    apart, packed = (x.sort().values for x in found)
    torch.testing.assert_close(apart, packed, atol=1e-6, rtol=1e-5)


def test_sft_before_rl_packs_as_rl_does():
    for packing in (False, True):
        config = config_of(packing=packing).sft(demonstrations=4)
        learner = sft_before_rl._learner(config, config.resolved_model, 4)
        assert learner.config.packing == packing
