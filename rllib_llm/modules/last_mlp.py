"""The last layer's MLP, computed only for the tokens whose logits are needed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rllib_llm.pictures.features import text_trunk

if TYPE_CHECKING:
    from rllib_llm.modules.llm_rl_module import LLMRLModule

# Rows and columns of the hidden states that will be read. 2 x [N]
_READ: ContextVar[tuple[Tensor, Tensor] | None] = ContextVar("_READ", default=None)
_STEP = 64
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}  # else 2e-2, of the largest


@contextlib.contextmanager
def only_read_at(places: tuple[Tensor, Tensor]) -> Iterator[None]:
    """Declare which hidden states of the passes inside of the block will be read.

    Others lack the part of the last MLP if :func:`limit_last_mlp` changed the model.

    Args:
        places: Their rows and columns, in any order, also repeated. 2 x [N]
    """
    token = _READ.set(places)
    try:
        yield
    finally:
        _READ.reset(token)


def limit_last_mlp(module: LLMRLModule, device: torch.device) -> None:
    """Let a policy's last MLP leave out tokens whose hidden states nobody reads.

    No later layer mixes tokens, so log-probabilities and gradients are the same. It
    saves the more, the fewer layers a model has and the fewer tokens are trained. Only
    on a CPU: elsewhere a smaller product of one layer is hardly faster.

    Args:
        module: Policy, changed in place. Not if a critic reads all hidden states, nor
            with gradient checkpointing, which repeats passes later, nor if a probe
            shows that the MLP's output reaches other tokens.
        device: Device of the module.
    """
    if device.type != "cpu" or module.model_config.get("gradient_checkpointing"):
        return
    if hasattr(module, "value_head") and module.value_head.trunk is None:
        return
    layers: Any = getattr(text_trunk(module.lm), "layers", None) or [None]
    mlp: Any = getattr(layers[-1], "mlp", None)
    if not type(mlp).__name__.endswith("MLP") or "forward" in vars(mlp):
        return  # e.g. experts, which also count the tokens of each
    mlp.forward = functools.partial(_forward, mlp, type(mlp).forward)
    if not _is_independent(module.lm):
        del mlp.forward


def _forward(mlp: nn.Module, plain: Callable[..., Tensor], x: Tensor) -> Tensor:
    places = _READ.get()
    if places is None:
        return plain(mlp, x)
    tokens = _chosen(*places, x.shape)
    flat = x.flatten(0, 1)
    if len(tokens) == len(flat):
        return plain(mlp, x)
    computed = plain(mlp, flat[tokens])
    whole = computed.new_zeros(flat.shape[0], computed.shape[-1])
    return whole.index_put((tokens,), computed).view(*x.shape[:2], -1)


def _chosen(rows: Tensor, columns: Tensor, shape: torch.Size) -> Tensor:
    """Return the tokens to compute, as indices into all of them. int64 [N]

    They are those that will be read, and others up to a multiple of :data:`_STEP`:
    libraries that compile a product for every new shape then meet few.

    Args:
        rows: Rows of the tokens that will be read.
        columns: Their columns.
        shape: Shape of the hidden states, [B, T, D].
    """
    is_read = torch.zeros(shape[:2], dtype=torch.bool)
    is_read[rows, columns] = True
    is_read = is_read.flatten()
    others = (~is_read).nonzero()[:, 0]
    count = len(is_read) - len(others)
    is_read[others[: -count % _STEP]] = True
    return is_read.nonzero()[:, 0]


@torch.no_grad()
def _is_independent(lm: Any) -> bool:
    """Return whether hidden states need the last MLP at their own token only."""
    trunk, ids = text_trunk(lm), torch.arange(2 * _STEP).view(_STEP, 2)
    ids %= lm.config.get_text_config().vocab_size
    places = torch.arange(_STEP), torch.arange(_STEP) % 2
    was_training = lm.training
    lm.eval()
    try:
        expected = trunk(input_ids=ids, use_cache=False).last_hidden_state[places]
        with only_read_at(places):
            limited = trunk(input_ids=ids, use_cache=False).last_hidden_state[places]
    finally:
        lm.train(was_training)
    tolerance = _TOLERANCE.get(expected.dtype, 2e-2) * expected.abs().max()
    return bool((limited - expected).abs().max() <= tolerance)
