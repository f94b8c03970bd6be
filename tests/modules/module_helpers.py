"""LLMRLModules on tiny checkpoint folders, and reference scores of rows."""

from __future__ import annotations

import torch
from hf_folders import write_folder
from ray.rllib.core.columns import Columns

from rllib_llm.algorithms.learner.adamw import MixedPrecisionAdamW
from rllib_llm.data import columns
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.modules.llm_rl_module import LLMRLModule

LORA = {"rank": 4, "alpha": 8}


def make_module(model: str, *, inference_only: bool = False, **settings) -> LLMRLModule:
    """Build a module; ``settings`` override its model_config."""
    config = {
        "model": model,
        "dtype": "float32",
        "lora": None,
        "value_head": {"kind": "mlp", "detach": False},
        "reference": False,
        "temperature": 1.0,
        "init_seed": 0,
        **settings,
    }
    return LLMRLModule(
        observation_space=UnicodeText(),
        action_space=UnicodeText(),
        inference_only=inference_only,
        model_config=config,
    )


def family_module(folder, family: str, **settings) -> LLMRLModule:
    """Write a folder of ``family`` and build a module on it."""
    return make_module(write_folder(folder, family), **settings)


def random_rows(lengths=(9, 6, 12), seed: int = 0, vocab: int = 340, width=None):
    """Return right-padded rows in which about half of the tokens are trained."""
    generator = torch.Generator().manual_seed(seed)
    size = (len(lengths), width or max(lengths))
    attention = torch.arange(size[1]) < torch.tensor(lengths)[:, None]
    ids = torch.zeros(size, dtype=torch.long)
    mask = torch.zeros(size, dtype=torch.bool)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(vocab, (length,), generator=generator)
        mask[row, :length] = torch.rand(length, generator=generator) < 0.5
    mask[:, 0] = False
    mask[:, 1] = True
    return {
        columns.INPUT_IDS: ids,
        columns.ATTENTION_MASK: attention,
        Columns.LOSS_MASK: mask,
    }


@torch.no_grad()
def plain_scores(lm, rows, temperature: float = 1.0):
    """Return log-probabilities and entropies, row by row without padding. [B, T]"""
    logps = torch.zeros(rows[columns.INPUT_IDS].shape)
    entropies = torch.zeros_like(logps)
    for row, ids in enumerate(rows[columns.INPUT_IDS]):
        length = int(rows[columns.ATTENTION_MASK][row].sum())
        logits = lm(input_ids=ids[None, :length], use_cache=False).logits[0]
        found = torch.log_softmax(logits.float() / temperature, dim=-1)
        for t in range(1, length):
            logps[row, t] = found[t - 1, ids[t]]
            entropies[row, t] = -(found[t - 1].exp() * found[t - 1]).sum()
    mask = rows[Columns.LOSS_MASK]
    return logps * mask, entropies * mask


def scores_of(module, rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the module's own log-probabilities and entropies. [B, T]"""
    found = module._forward(rows)[Columns.ACTION_DIST_INPUTS]
    return found[..., 0], found[..., 1]


def step(module, rows, lr: float = 1e-2) -> None:
    """Take one optimiser step on policy and critic."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = MixedPrecisionAdamW(parameters, lr=lr)
    out = module.forward_train(rows)
    loss = -out[Columns.ACTION_DIST_INPUTS][..., 0].sum()
    if hasattr(module, "value_head"):
        values = module.compute_values(rows, out[Columns.EMBEDDINGS])
        loss = loss + (values - 1.0).square().sum()
    loss.backward()
    optimizer.step()


def assert_bit_equal(left, right) -> None:
    """Compare two module states."""
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype, name
        assert (left[name] == right[name]).all(), name
