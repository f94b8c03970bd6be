"""Check that a model keeps packed rows apart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from torch import Tensor, nn

from rllib_llm.data import columns
from rllib_llm.data.micro_batches import HostColumns
from rllib_llm.data.packed_rows import PackedRows
from rllib_llm.errors import ModelError
from rllib_llm.upload import upload

if TYPE_CHECKING:
    from rllib_llm.modules.llm_rl_module import LLMRLModule

# The first row is the longest, so that positions without a restart differ as well.
_LENGTHS = (11, 5, 8)
# Largest difference of log-probabilities that rounding explains, as a share of the
# largest one.
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}  # else 2e-2


def check_packing(module: LLMRLModule) -> None:
    """Check that packed rows have their own positions and do not see each other.

    Args:
        module: On its device, with the attention implementation that it trains with.

    Raises:
        ModelError: If log-probabilities differ from those of rows apart, or depend on
            tokens of another row, or if the model takes no positions.
    """
    was_training = module.training
    module.eval()
    try:
        _check_scores(module)
        _check_independence(module)
    except TypeError as error:
        raise _refusal(module, f"take no positions ({error})") from error
    finally:
        module.train(was_training)


@torch.no_grad()
def _check_scores(module: LLMRLModule) -> None:
    """Compare log-probabilities of rows apart and packed."""
    expected, packed = (_logps(module, _rows(module, packed=p)) for p in (False, True))
    gap, largest = (float(x.abs().max()) for x in (packed - expected, expected))
    tolerance = _tolerance(module) * largest
    if not gap <= tolerance:  # also if it is NaN
        raise _refusal(
            module,
            f"compute other log-probabilities from packed rows, by {gap:.2g} (rounding "
            f"explains {tolerance:.2g})",
        )


def _check_independence(module: LLMRLModule) -> None:
    """Check the gradient of later rows' log-probabilities by the first row's tokens.

    It must be zero to the bit. A difference of log-probabilities could be too small to
    tell from rounding, e.g. in a recurrent layer of random weights.
    """
    with torch.enable_grad(), _embeddings(module.lm) as embedded:
        logps = _logps(module, _rows(module, packed=True))
        (gradient,) = torch.autograd.grad(logps[1:].sum(), embedded)
    # Layers of some models have another order of axes, but one row is packed.
    by_token = gradient.reshape(-1, gradient.shape[-1]).abs().amax(dim=1)
    leak = float(by_token[: _LENGTHS[0]].max())
    if leak != 0.0:
        raise _refusal(
            module,
            "let packed rows depend on the row before (gradient "
            f"{leak:.2g}, {float(by_token.max()):.2g} by their own tokens)",
        )


@contextlib.contextmanager
def _embeddings(lm: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the token embeddings of the passes in the block, as leaves."""
    embedded: list[Tensor] = []

    def keep(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        # A leaf: with LoRA the embedding itself needs no gradient.
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    handle = lm.get_input_embeddings().register_forward_hook(keep)
    try:
        yield embedded
    finally:
        handle.remove()


def _logps(module: LLMRLModule, rows: dict[str, Any]) -> Tensor:
    return module._forward(rows)[Columns.ACTION_DIST_INPUTS][..., 0].double()


def _rows(module: LLMRLModule, *, packed: bool) -> dict[str, Any]:
    """Return rows of unequal lengths, of which all tokens but the first are scored."""
    num_ids = module.vocabulary or module.lm.config.get_text_config().vocab_size
    attention = np.arange(max(_LENGTHS)) < np.array(_LENGTHS)[:, None]
    arrays = {
        columns.INPUT_IDS: np.random.default_rng(0).integers(
            0, num_ids, attention.shape
        ),
        columns.ATTENTION_MASK: attention,
        Columns.LOSS_MASK: attention & (np.arange(max(_LENGTHS)) > 0),
    }
    device = next(module.parameters()).device
    rows: dict[str, Any] = {n: upload(a, device) for n, a in arrays.items()}
    if packed:
        rows[columns.PACKED_ROWS] = PackedRows.of(attention, device)
    return {**rows, columns.HOST: HostColumns.of(arrays)}


def _tolerance(module: LLMRLModule) -> float:
    dtype = torch.bfloat16
    if not module.model_config.get("autocast"):
        dtype = next(module.lm.parameters()).dtype
    return _TOLERANCE.get(dtype, 2e-2)


def _refusal(module: LLMRLModule, what: str) -> ModelError:
    config = module.lm.config.get_text_config()
    return ModelError(
        f"packing=True: models of type {config.model_type!r} with the attention "
        f"implementation {config._attn_implementation!r} {what}. They must tell packed "
        "rows apart by positions that restart. Set training.packing to False, or use "
        "another model or language_model.model_kwargs.attn_implementation."
    )
