"""Forward passes of a transformers model over rows of a slot cache.

The runner owns what depends on the model family: which models can be served at all,
the form of their attention masks, their training flags and their attention function.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rllib_llm.engines.attention import ATTENTION_NAME
from rllib_llm.engines.slot_cache import SlotCache
from rllib_llm.errors import ConfigError, ModelError

_SERVED_LAYER_TYPES = ("full_attention", "sliding_attention")
_SERVED_ATTENTION = ("sdpa", "eager", ATTENTION_NAME)
_PROBE_TOKENS = 6


class ModelRunner:
    """Runs a decoder-only causal language model on a :class:`SlotCache`.

    Construction runs the model on a few tokens with and without the cache, so that a
    family the cache does not fit is refused at once rather than sampled from wrongly.

    Args:
        model: A transformers causal language model; shared, never copied.
        device: Where its inputs go; None is the device of its first parameter.

    Raises:
        ModelError: If the model cannot be served from a slot cache.
    """

    def __init__(self, model: nn.Module, device: torch.device | None = None) -> None:
        """Check the model and measure what one token takes in the cache."""
        self._model = model
        self._config = _check_model(model)
        self.device = torch.device(device or next(model.parameters()).device)
        self._dtype = next(model.parameters()).dtype
        self._window = _window_of(self._config)
        layer_types = set(getattr(self._config, "layer_types", None) or ())
        # Models that mix layer types take a mask per type, the others a single one.
        self._masks_by_type = "sliding_attention" in layer_types
        self.bytes_per_token = self._probe()

    def check_context(self, max_context_tokens: int) -> None:
        """Refuse contexts longer than the positions the model knows.

        Raises:
            ConfigError: If ``max_context_tokens`` is larger than those.
        """
        longest = getattr(self._config, "max_position_embeddings", None)
        if longest is not None and longest < max_context_tokens:
            raise ConfigError(
                f"max_context_tokens ({max_context_tokens}) exceeds the {longest} "
                f"positions of the model ({self._config.model_type})."
            )

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Sample with dropout off and our attention; restore the model afterwards.

        The model may be shared with a learner in this process: it finds its training
        flags and attention function as they were.
        """
        config = self._config
        attention = config._attn_implementation
        in_training = []
        if self._model.training:
            in_training = [m for m in self._model.modules() if m.training]
        try:
            if attention == "sdpa":
                config._attn_implementation = ATTENTION_NAME
            for module in in_training:
                module.training = False
            # Not inference_mode: buffers a model rebuilds on the way (such as dynamic
            # rotary frequencies) would be unusable in the learner's backward pass.
            with torch.no_grad():
                yield
        finally:
            config._attn_implementation = attention
            for module in in_training:
                module.training = True

    def forward(
        self,
        cache: SlotCache,
        first_row: int,
        token_ids: np.ndarray,
        starts: np.ndarray,
        counts: np.ndarray,
    ) -> Tensor:
        """Feed new tokens of consecutive rows; call it inside :meth:`serving`.

        Args:
            cache: Holds the tokens before, and receives the new ones.
            first_row: Cache row of the batch's first row.
            token_ids: New tokens, padded on the right. int64 [B, T]
            starts: Tokens each row already has in the cache. int64 [B]
            counts: Real new tokens of each row, >= 1; the largest is T. int64 [B]

        Returns:
            Logits that follow each row's last real token. [B, V]
        """
        visible = cache.prepare(first_row, starts, counts)
        last = counts - 1
        offsets = np.minimum(np.arange(token_ids.shape[1]), last[:, None])
        # Padding repeats the last position: it stays within learned positions.
        positions = self._to_device(starts[:, None] + offsets)  # [B, T]
        is_padded = token_ids.shape[1] > 1
        picks_last = _last_token_only(self._model, self._to_device(last))
        with picks_last if is_padded else contextlib.nullcontext():
            logits = self._model(
                input_ids=self._to_device(token_ids),
                attention_mask=self._mask(positions, visible),
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            ).logits
        if logits.shape[1] != 1:  # the head is not a module that a hook can reach
            rows = torch.arange(len(last), device=logits.device)
            return logits[rows, self._to_device(last)]
        return logits[:, 0]

    def _mask(self, positions: Tensor, visible: int) -> Tensor | dict[str, Tensor]:
        """Build the additive mask(s) of the new tokens. [B, 1, T, K] each."""
        columns = torch.arange(visible, device=self.device)
        queries = positions[:, None, :, None]
        full = columns <= queries
        if self._window is None:
            return self._additive(full)
        window = full & (columns > queries - self._window)
        if not self._masks_by_type:
            return self._additive(window)
        return {
            "full_attention": self._additive(full),
            "sliding_attention": self._additive(window),
        }

    def _additive(self, visible: Tensor) -> Tensor:
        hidden = torch.finfo(self._dtype).min
        mask = torch.zeros(visible.shape, dtype=self._dtype, device=self.device)
        return mask.masked_fill_(~visible, hidden)

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _probe(self) -> int:
        """Compare cached with uncached logits; return the cache's bytes per token."""
        ids = np.arange(_PROBE_TOKENS)[None] % self._config.vocab_size  # [1, T]
        cache = SlotCache(1, _PROBE_TOKENS, self.device)
        half = _PROBE_TOKENS // 2
        try:
            with self.serving():
                whole = self._model(
                    input_ids=self._to_device(ids), use_cache=False
                ).logits[:, -1]
                for start in (0, half):
                    part = ids[:, start : start + half].copy()
                    cached = self.forward(
                        cache, 0, part, np.array([start]), np.array([half])
                    )
        except Exception as error:
            raise ModelError(
                f"Models of type {self._config.model_type!r} do not run on the slot "
                f"cache ({type(error).__name__}: {error}). {_ADVICE}"
            ) from error
        # Low precision differs by rounding; a wrong cache differs by much more.
        tolerance = 1e-2 if self._dtype in (torch.float32, torch.float64) else 0.2
        gap = (whole.float() - cached.float()).abs().max()
        if gap > tolerance * (1e-3 + whole.float().abs().max()):
            raise ModelError(
                f"Models of type {self._config.model_type!r} give other logits with "
                f"the slot cache than without (by {gap:.2g}). {_ADVICE}"
            )
        return cache.bytes_per_token


_ADVICE = (
    "Served are decoder-only models whose layers are all of "
    f"{', '.join(_SERVED_LAYER_TYPES)}, such as qwen2, qwen3, llama, mistral, gemma2, "
    "gemma3_text, phi3, gpt2. Use one of these or another engine."
)


@contextlib.contextmanager
def _last_token_only(model: nn.Module, last: Tensor) -> Iterator[None]:
    """Feed only each row's last real position to the output head.

    Logits of a whole prompt would take more memory and time than the model itself.
    """
    head = model.get_output_embeddings()
    if head is None:
        yield
        return

    def pick(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = args[0]  # [B, T, hidden]
        rows = torch.arange(len(last), device=hidden.device)
        return (hidden[rows, last][:, None], *args[1:])

    handle = head.register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()


def _check_model(model: nn.Module) -> Any:
    """Return the text config of a model that can be served, else raise."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "get_text_config"):
        raise ModelError(
            f"The torch engine needs a transformers causal language model, got "
            f"{type(model).__name__}."
        )
    config = config.get_text_config()
    kind = f"Models of type {config.model_type!r}"
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{kind} are encoder-decoders. {_ADVICE}")
    layer_types = getattr(config, "layer_types", None) or ()
    unknown = sorted(set(layer_types) - set(_SERVED_LAYER_TYPES))
    if unknown:
        raise ModelError(f"{kind} have layers of {', '.join(unknown)}. {_ADVICE}")
    if getattr(model, "_is_stateful", False):
        raise ModelError(f"{kind} keep a recurrent state. {_ADVICE}")
    attention = config._attn_implementation
    if attention not in _SERVED_ATTENTION:
        raise ModelError(
            f"The torch engine needs explicit attention masks, which attention "
            f"{attention!r} does not take. Load the model with "
            "attn_implementation='sdpa' (or 'eager')."
        )
    return config


def _window_of(config: Any) -> int | None:
    """Return the sliding window in tokens, or None if no layer has one."""
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None and "sliding_attention" not in layer_types:
        return None
    return getattr(config, "sliding_window", None)
