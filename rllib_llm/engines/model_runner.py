"""Forward passes of a transformers model over rows of a slot cache.

The runner handles everything that depends on the model family: which models can be
served, their attention masks, training flags and attention function.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rllib_llm import compat
from rllib_llm.engines.attention import ATTENTION_NAME
from rllib_llm.engines.attention_masks import AttentionMasks, Masks
from rllib_llm.engines.fused_forward import FusedForward, Wanted
from rllib_llm.engines.fused_layout import why_not_fused, why_not_together
from rllib_llm.engines.pass_rows import PassRows
from rllib_llm.engines.rotary_table import has_three_axes
from rllib_llm.engines.served_models import ADVICE, check_model
from rllib_llm.engines.slot_cache import SlotCache, new_columns
from rllib_llm.errors import ConfigError, ModelError, did_you_mean
from rllib_llm.modules.max_positions import context_length, why_shorter
from rllib_llm.pictures.placed_features import PlacedFeatures
from rllib_llm.upload import upload

_PROBE_TOKENS = 6
_AXES = np.array([1, 2, 3])[:, None, None]
FORWARDS = ("auto", "plain")
# Maximum difference of logits that rounding explains, as a share of the largest logit.
_CACHE_TOLERANCE = {torch.float32: 1e-2, torch.float64: 1e-2}  # else 0.2
_FUSED_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}  # else 0.05

logger = logging.getLogger("rllib_llm")


class ModelRunner:
    """Runs a decoder-only causal language model on a :class:`SlotCache`.

    Construction runs the model on a few tokens with and without the cache, so that a
    model family that does not work with the cache is refused at once instead of giving
    wrong samples.

    Models of the common decoder layout run through the fused forward, all others
    through their own modules.

    Args:
        model: A transformers causal language model; shared, not copied.
        device: Device of its inputs; None is the device of its first parameter.
        forward: "auto", or "plain" to always run the model's own modules.
        others: Models with the same base weights and other adapters, whose rows may
            share a batch with the model's; this needs the fused forward.

    Raises:
        ConfigError: If ``forward`` is neither "auto" nor "plain".
        ModelError: If the model cannot be served from a slot cache.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device | None = None,
        forward: str = "auto",
        others: Sequence[nn.Module] = (),
    ) -> None:
        """Check the model and measure the cache's bytes per token."""
        self._model, self._others = model, tuple(others)
        self._config = check_model(model)
        self.device = torch.device(device or next(model.parameters()).device)
        self._dtype = next(model.parameters()).dtype
        self._masks = AttentionMasks(self._config, self._dtype, self.device)
        self._fused: FusedForward | None = None
        self.bytes_per_token = self._probe()
        if forward not in FORWARDS:
            raise ConfigError(
                f"forward={forward!r} must be one of {FORWARDS}. Use 'auto'."
            )
        if forward == "auto":
            self._fuse()
        if self._others and self._fused is None:
            reason = why_not_together([model, *others])
            raise ModelError(
                "These models cannot share a batch: "
                f"{reason or 'the fused forward is off'}. Build one engine per model."
            )

    @property
    def is_fused(self) -> bool:
        """True if the fused forward runs in place of the model's modules."""
        return self._fused is not None

    @property
    def num_logits(self) -> int:
        """Number of logits per token."""
        return self._config.vocab_size

    def refresh(self) -> None:
        """Rebuild the fused forward after a change of the weights."""
        # It holds joined copies of the old weights; hooks may have been added, too.
        if self._fused is not None:
            reason = why_not_fused(self._model)
            self._fused = None if reason else FusedForward(self._model, self._others)

    def check_context(self, max_context_tokens: int) -> None:
        """Check that the model serves contexts of this length.

        Raises:
            ConfigError: If ``max_context_tokens`` exceeds the model's positions.
            ModelError: If the logits at such positions change with the cache.
        """
        longest = context_length(self._config)
        if longest is not None and longest < max_context_tokens:
            raise ConfigError(
                f"max_context_tokens ({max_context_tokens}) exceeds the {longest} "
                f"positions that the model ({self._config.model_type}) supports."
                f"{why_shorter(self._config)} Lower max_context_tokens."
            )
        # The fused forward is limited to models with fixed rotary frequencies; others
        # may change them with the length.
        if self._fused is None and max_context_tokens > _PROBE_TOKENS:
            self._probe_far(max_context_tokens)

    def copy_weights(
        self,
        named_tensors: Iterable[tuple[str, Tensor]],
        model: nn.Module | None = None,
    ) -> None:
        """Copy values into the model's parameters and buffers.

        Args:
            named_tensors: Pairs of name and value.
            model: A model with this one as a part, whose names these are.

        Raises:
            ModelError: If a name or a shape does not fit the model. Tensors before it
                have been copied.
        """
        # With duplicates: tied weights may arrive under any of their names.
        model = model or self._model
        targets = dict(model.named_parameters(remove_duplicate=False))
        targets.update(model.named_buffers(remove_duplicate=False))
        with torch.no_grad():
            for name, tensor in named_tensors:
                if name not in targets:
                    raise ModelError(
                        f"The model has no weights {name!r}. "
                        f"{did_you_mean(name, targets)}"
                    )
                if targets[name].shape != tensor.shape:
                    raise ModelError(
                        f"Weights {name!r} have shape {tuple(tensor.shape)}; the "
                        f"model needs {tuple(targets[name].shape)}. Send weights of "
                        "the same model."
                    )
                targets[name].copy_(tensor)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Turn dropout off and set the slot attention; restore both afterwards.

        The model may be shared with a Learner in this process, which needs its training
        flags and attention function unchanged.
        """
        # The fused forward calls only some modules; the others need no switch.
        roots = [self._model] if self._fused is None else self._fused.called
        in_training = [
            m for r in roots if r.training for m in r.modules() if m.training
        ]
        for module in in_training:
            module.training = False
        try:
            # Not inference_mode: buffers that a model rebuilds in its forward (such as
            # dynamic rotary frequencies) would be unusable in the Learner's backward.
            with torch.no_grad(), self._slot_attention():
                yield
        finally:
            for module in in_training:
                module.training = True

    @contextlib.contextmanager
    def _slot_attention(self) -> Iterator[None]:
        """Make the model's own modules use :mod:`.attention` inside the block.

        Flash attention, which takes no masks, remains the Learner's.
        """
        chosen = self._config._attn_implementation
        if self._fused is not None or chosen == "eager":
            yield
            return
        with compat.attention_replaced(self._config, chosen, ATTENTION_NAME):
            yield

    def forward(
        self,
        cache: SlotCache,
        first_row: int,
        token_ids: np.ndarray,
        starts: np.ndarray,
        counts: np.ndarray,
        adapters: np.ndarray | None = None,
        placed: PlacedFeatures | None = None,
        positions: np.ndarray | None = None,
        wanted: np.ndarray | None = None,
    ) -> Tensor:
        """Compute logits after new tokens of consecutive rows, inside :meth:`serving`.

        Args:
            cache: Holds the earlier tokens and receives the new ones.
            first_row: Cache row of the batch's first row.
            token_ids: New tokens, padded on the right. int64 [B, T]
            starts: Tokens each row already has in the cache. int64 [B]
            counts: New tokens of each row; the largest is T. Rows that only lie between
                others have none. int64 [B]
            adapters: Index of the model that computes each row: 0, or the index in
                ``others`` plus 1; None with one model. int64 [B]
            placed: Features of the pictures among the tokens; None without any.
            positions: Positions of the new tokens [1, B, T], or time, row and column
                [3, B, T]; None: each is the token's column of the cache.
            wanted: Tokens at each row's end after which logits are wanted, M in total;
                None: the last one. int64 [B]

        Returns:
            Logits that follow these tokens, row by row. [M, V]
        """
        wanted = np.minimum(counts, 1) if wanted is None else wanted
        # Fresh rows need no mask.
        is_causal = (
            self._fused is not None
            and self._masks.window is None
            and token_ids.shape[1] > 1
            and not starts.any()
        )
        visible = cache.prepare(first_row, starts, counts, is_exact=is_causal)
        columns = new_columns(starts, counts)  # [B, T]
        positions = columns[None] if positions is None else positions
        inputs: dict[str, Any] = {}
        if placed is not None:
            ids = upload(token_ids, self.device)
            inputs = placed.inputs(self._model.get_input_embeddings()(ids))
        offsets = np.arange(token_ids.shape[1])
        is_real = offsets < counts[:, None]
        is_wanted = is_real & (offsets >= (counts - wanted)[:, None])
        both = np.concatenate((token_ids[None], positions))  # [2 or 4, B, T]
        if self._fused is None:
            masks = self._masks.of_columns(upload(columns, self.device), visible)
            uploaded = upload(both, self.device)
            inputs = inputs or {"input_ids": uploaded[0]}
            places = None
            if not is_wanted.all():
                places = upload(np.flatnonzero(is_wanted), self.device)
            axes = uploaded[1:].squeeze(0)
            return self._run_modules(cache, inputs, axes, masks, places)
        uploaded = upload(both[:, is_real], self.device)
        ids, axes = uploaded[0], uploaded[1:].squeeze(0)  # [N], [N] or [3, N]
        token_adapters = None
        if adapters is not None:
            token_adapters = upload(np.repeat(adapters, counts), self.device)
        inputs = _unpadded(inputs, cache.real)
        build = functools.partial(self._masks.of_columns, visible=visible)
        rows = PassRows(starts, counts, self.device, None if is_causal else build)
        last = None
        if (wanted != counts).any():
            tokens = upload(np.flatnonzero(is_wanted[is_real]), self.device)
            first = starts + counts - wanted
            last = Wanted(tokens, PassRows(first, wanted, self.device, build))
        return self._fused(cache, ids, axes, rows, last, token_adapters, inputs)

    def _run_modules(
        self,
        cache: SlotCache,
        inputs: dict[str, Any],
        positions: Tensor,
        masks: Masks,
        places: Tensor | None,
    ) -> Tensor:
        """Run transformers' own modules and return wanted logits. [M, V]

        Args:
            cache: Receives the new tokens.
            inputs: ``input_ids`` [B, T], or those of :class:`PlacedFeatures`.
            positions: [B, T], or [3, B, T].
            masks: Additive masks. [B, 1, T, K]
            places: Wanted tokens among all B * T; None: all. int64 [M]
        """
        head_input: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if places is not None:
            head_input = _wanted_tokens_only(self._model, places)
        with head_input:
            logits = self._model(
                **inputs,
                attention_mask=masks,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            ).logits.flatten(0, 1)
        # A model may have no head module for the hook.
        if places is not None and len(logits) != len(places):
            logits = logits[places]
        return logits

    def _probe(self) -> int:
        """Compare cached with uncached logits; return the cache's bytes per token."""
        ids = np.arange(_PROBE_TOKENS)[None] % self._config.vocab_size  # [1, T]
        cache = SlotCache(1, _PROBE_TOKENS, self.device)
        half = _PROBE_TOKENS // 2
        try:
            with self.serving():
                whole = self._model(
                    input_ids=upload(ids, self.device), use_cache=False
                ).logits[:, -1]
                for start in (0, half):
                    part = ids[:, start : start + half].copy()
                    cached = self.forward(
                        cache, 0, part, np.array([start]), np.array([half])
                    )
        except Exception as error:  # a model's own code may raise anything
            raise ModelError(
                f"Models of type {self._config.model_type!r} do not run on the slot "
                f"cache ({type(error).__name__}: {error}). {ADVICE}"
            ) from error
        self._require_same(whole, cached)
        return cache.bytes_per_token

    def _require_same(self, whole: Tensor, cached: Tensor, where: str = "") -> None:
        """Raise a ModelError if the logits change with the cache. [B, V] each"""
        # Low precision differs by rounding; a wrong cache differs by much more.
        tolerance = _CACHE_TOLERANCE.get(self._dtype, 0.2)
        gap, scale = _gap(whole, cached)
        if gap > tolerance * scale:
            raise ModelError(
                f"The logits of models of type {self._config.model_type!r} with the "
                f"slot cache differ from those without by {gap:.2g}{where}. {ADVICE}"
            )

    def _probe_far(self, max_context_tokens: int) -> None:
        """Compare cached with uncached logits at the first and the last positions.

        Rotary frequencies that change with the length would make the cached keys of
        the first positions stale.
        """
        half = _PROBE_TOKENS // 2
        near = np.arange(half)
        ids = np.arange(_PROBE_TOKENS) % self._config.vocab_size
        places = np.concatenate((near, max_context_tokens - half + near))
        inputs, at = upload(np.stack((ids, places)), self.device)[
            :, None
        ]  # [1, T] each
        cache = SlotCache(1, _PROBE_TOKENS, self.device)
        with self.serving():
            whole = self._model(
                input_ids=inputs,
                position_ids=at,
                attention_mask=self._masks.of_keys(at, at[0]),
                use_cache=False,
            ).logits[:, -1]
            for start, counts in np.array([[[0], [half]], [[half], [half]]]):
                visible = cache.prepare(0, start, counts, is_exact=True)
                new = at[:, visible - half : visible]
                cached = self._run_modules(
                    cache,
                    {"input_ids": inputs[:, visible - half : visible]},
                    new,
                    self._masks.of_keys(new, at[0, :visible]),
                    torch.tensor([half - 1], device=self.device),
                )
        where = f" up to position {max_context_tokens}"
        self._require_same(whole, cached, where)

    def _fuse(self) -> None:
        """Switch to the fused forward if it fits the models and computes the same."""
        models = (self._model, *self._others)
        reason = why_not_together(models) if self._others else why_not_fused(models[0])
        if reason is not None:
            logger.info("Sampling uses the model's own modules: %s.", reason)
            return
        plain = [
            ModelRunner(model, self.device, "plain")._probe_ragged() for model in models
        ]
        self._fused = FusedForward(self._model, self._others)
        tolerance = _FUSED_TOLERANCE.get(self._dtype, 0.05)
        for number, expected in enumerate(plain):
            gap, scale = _gap(expected, self._probe_ragged(number))
            if gap > tolerance * scale:
                self._fused = None
                logger.warning(
                    "Sampling uses the model's own modules: the logits of the fused "
                    "forward differ by %.2g (tolerance %.2g).",
                    gap,
                    tolerance * scale,
                )
                return
        self.refresh()  # weights may change before the first request

    def _probe_ragged(self, number: int = 0) -> Tensor:
        """Return logits of two rows of unequal length, over three passes. [3 * 2, V]

        Args:
            number: Index of the model whose adapters are used.
        """
        adapters = np.array([number, number]) if self._others else None
        cache = SlotCache(2, 2 * _PROBE_TOKENS, self.device)
        starts, logits = np.zeros(2, np.int64), []
        has_axes = has_three_axes(self._model.model)
        with self.serving():
            for counts in np.array([[3, 5], [4, 2], [1, 1]]):
                ids = np.arange(2 * counts.max()).reshape(2, -1) + starts[:, None]
                ids %= self._config.vocab_size
                # Unequal axes, so that the order of their dimensions is compared, too.
                at = new_columns(starts, counts) // _AXES if has_axes else None
                logits.append(
                    self.forward(cache, 0, ids, starts, counts, adapters, positions=at)
                )
                starts = starts + counts
        return torch.cat(logits)


def _gap(first: Tensor, second: Tensor) -> tuple[float, float]:
    """Return the largest difference and the largest logit plus 1e-3, never zero."""
    gap = (first.double() - second.double()).abs().max()
    return float(gap), 1e-3 + float(first.abs().max())


def _unpadded(inputs: dict[str, Any], real: Tensor | None) -> dict[str, Any]:
    """Return the inputs of :class:`PlacedFeatures` of the N real tokens alone."""
    padded = ("inputs_embeds", "visual_pos_masks")
    flat = {name: x.flatten(0, 1) for name, x in inputs.items() if name in padded}
    if real is not None:
        flat = {name: x[real] for name, x in flat.items()}
    return {**inputs, **flat}


@contextlib.contextmanager
def _wanted_tokens_only(model: nn.Module, places: Tensor) -> Iterator[None]:
    """Pass only the wanted tokens to the output head, as one row.

    The logits of a whole prompt would take more memory and time than the model itself.
    """
    head = model.get_output_embeddings()
    if head is None:
        yield
        return

    def pick(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = args[0].flatten(0, 1)  # [B * T, hidden]
        return (hidden[places][None], *args[1:])

    handle = head.register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()
