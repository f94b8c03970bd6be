"""Torch engine: continuous batching on a transformers model in this process.

Running requests hold the first rows of the cache, so that a decoding step works on
views. When the set of running requests has changed, rows are swapped: one copy per
change is cheaper than gathering all rows in every step. Idle sessions keep their row
with its keys and values until another session needs it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from rllib_llm.data.types import FinishReason
from rllib_llm.engines.base import (
    Generation,
    GenerationEngine,
    SamplingParams,
    SessionError,
    SessionId,
)
from rllib_llm.engines.decode_batch import DecodeBatch
from rllib_llm.engines.drafts import DraftedStep, Drafter
from rllib_llm.engines.kv_budget import slots_within
from rllib_llm.engines.model_runner import ModelRunner
from rllib_llm.engines.nucleus_mask import MaskedRunner, PairedCache
from rllib_llm.engines.prefix_sharing import share_prefixes
from rllib_llm.engines.requests import (
    Request,
    Session,
    check_submit,
    common_prefix,
    feed,
)
from rllib_llm.engines.scheduling import (
    PREFILL_CHUNK,
    is_prefill_due,
    may_join,
    split_group,
)
from rllib_llm.engines.slot_cache import SlotCache, new_columns, row_length
from rllib_llm.engines.slot_table import SlotTable
from rllib_llm.errors import ConfigError, ModelError
from rllib_llm.modules.nucleus_mask import pack_bits
from rllib_llm.pictures.features import EngineFeatures
from rllib_llm.pictures.placement import PlacedPicture, moved, with_keys
from rllib_llm.pictures.text_part import TextPart

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rllib_llm.pictures.spec import ImageSpec

_COUNTERS = (
    "prefill_tokens",
    "cached_tokens",
    "shared_tokens",
    "decoded_tokens",
    "draft_tokens",
    "accepted_tokens",
    "reprefills",
    "forwards",
)

# A larger cache is freed with the last session, so that e.g. the Learner can use the
# memory. For a smaller one the new allocation would cost more than the memory is worth.
_KEPT_BYTES = 64 * 2**20

# Share of the rows of a pass with drafts that may be idle, which saves moves.
_MAX_GAPS = 0.25


class TorchEngine(GenerationEngine):
    """Samples from a transformers model that it shares with the caller.

    After changing the weights in place, call :meth:`set_weights_version`.

    Args:
        model: A decoder-only causal language model with full or sliding attention.
        max_slots: Maximum number of sessions with keys and values in the cache, and
            of requests that run at once. More may be open and submitted: the least
            recently used idle session loses its row, and requests wait. A session
            whose next turn is submitted before the next step keeps its row.
        max_context_tokens: Maximum tokens of a history, sampled ones included.
        tokenizer: Decodes tokens to find stop strings; only needed for those.
        device: Device of the model's inputs; None is the device of its weights.
        kv_budget_bytes: Lowers ``max_slots`` so that the cache fits even if all
            histories are full.
        forward: "auto" runs the common decoder layout (Llama, Mistral, Qwen2, Qwen3)
            through a fused forward pass; "plain" always runs the model's own modules.
        others: Models with the same base weights in the same memory and their own LoRA
            adapters; ``open(..., adapter=n)`` samples from the n-th of them (0 is
            ``model``), and all share the batches.
        pictures: Picture inputs of a vision-language model (an ImageSpec); None: it
            reads text alone.
        vocabulary: Number of ids that may be sampled, from 0; None means all. Models
            often have more output rows than their tokenizer has tokens.
        mask_policy: A model whose nucleus restricts the tokens; results then hold the
            tokens that each was chosen from. Without ``others`` and ``pictures``.
        mask_top_p: Probability of that nucleus, in (0, 1).
        num_speculative_tokens: Most tokens that a draft from earlier turns has
            (:mod:`~rllib_llm.engines.drafts`); 0: one token per forward pass, as with
            a mask policy.

    Raises:
        ConfigError: If a setting is out of range.
        ModelError: If the model cannot be served from a slot cache.

    Example::

        engine = TorchEngine(model, max_slots=64, max_context_tokens=1024)
        params = [SamplingParams(max_new_tokens=16, seed=i) for i in range(8)]
        results = generate(engine, prompts, params)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        max_slots: int,
        max_context_tokens: int,
        tokenizer: PreTrainedTokenizerBase | None = None,
        device: torch.device | str | None = None,
        kv_budget_bytes: int | None = None,
        forward: str = "auto",
        others: Sequence[nn.Module] = (),
        vocabulary: int | None = None,
        pictures: ImageSpec | None = None,
        mask_policy: nn.Module | None = None,
        mask_top_p: float = 0.9,
        num_speculative_tokens: int = 0,
    ) -> None:
        """Check the model and settings; the cache is allocated on first use."""
        if max_slots < 1 or max_context_tokens < 2:
            raise ConfigError(
                f"max_slots ({max_slots}) must be >= 1 and max_context_tokens "
                f"({max_context_tokens}) >= 2. Raise them."
            )
        device = None if device is None else torch.device(device)
        self._model = model
        self._pictures: EngineFeatures | None = None
        text_model = model
        if pictures is not None:
            self._pictures = EngineFeatures(model, pictures)
            text_model = TextPart(model)
        cache_class = SlotCache
        self._is_masked = mask_policy is not None
        if mask_policy is None:
            self._runner = ModelRunner(text_model, device, forward, others)
        else:
            if others or pictures is not None:
                raise ConfigError(
                    "mask_policy does not go with others or pictures. Build one engine "
                    "per model of text, or leave mask_policy out."
                )
            cache_class = PairedCache
            self._runner = MaskedRunner(
                model, mask_policy, mask_top_p, vocabulary, device, forward
            )
        self._num_models = 1 + len(others)
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._max_context = max_context_tokens
        self._runner.check_context(max_context_tokens)
        row_bytes = self._runner.bytes_per_token * row_length(max_context_tokens)
        if kv_budget_bytes is not None:
            fit = slots_within(kv_budget_bytes, row_bytes, max_context_tokens)
            max_slots = min(max_slots, fit)
        self._table = SlotTable(
            max_slots, max_context_tokens, self._runner.device, cache_class
        )
        self._sessions: dict[SessionId, Session] = {}
        self._requests: dict[int, Request] = {}
        self._running = self._batch([])  # rows 0, 1, 2, ...
        self._waiting: list[Request] = []  # in order of submission
        self._steps_waited = 0
        self._next_id = 0
        self._version = 0
        self._stats = dict.fromkeys(_COUNTERS, 0)
        self._drafter: Drafter | None = None
        # The mask policy's nucleus is computed for one token of a row at a time.
        if num_speculative_tokens and not self._is_masked:
            self._drafter = Drafter(num_speculative_tokens)

    @property
    def max_slots(self) -> int:
        """Maximum number of sessions in the cache, within the memory budget."""
        return self._table.max_slots

    @property
    def is_fused(self) -> bool:
        """True if the fused forward runs in place of the model's modules."""
        return self._runner.is_fused

    @property
    def cache_bytes(self) -> int:
        """Allocated memory of the cache, in bytes."""
        return self._table.cache.num_bytes

    @property
    def num_unfinished(self) -> int:
        """Number of requests submitted and neither finished nor aborted."""
        return len(self._requests)

    @property
    def weights_version(self) -> int:
        """Version of the weights that sample the next token; 0 at the start."""
        return self._version

    def open(self, session_id: SessionId, *, adapter: int = 0) -> None:
        """Start a conversation; see :meth:`GenerationEngine.open`.

        Args:
            session_id: Its name.
            adapter: Index of the model that samples it.
        """
        if session_id in self._sessions:
            raise SessionError(
                f"Session {session_id!r} is already open. Close it first."
            )
        if not 0 <= adapter < self._num_models:
            raise SessionError(
                f"adapter={adapter} of session {session_id!r} must be in "
                f"[0, {self._num_models}), the models of this engine."
            )
        self._sessions[session_id] = Session(session_id, adapter)

    def submit(
        self,
        session_id: SessionId,
        new_token_ids: Sequence[int] | np.ndarray,
        params: SamplingParams,
        *,
        extends: bool = True,
        pictures: Sequence[PlacedPicture] = (),
    ) -> int:
        """Request a continuation; see :meth:`GenerationEngine.submit`.

        With ``extends=False`` the common prefix of the old and the new history keeps
        its keys and values.

        Args:
            session_id: An open session without an unfinished request.
            new_token_ids: Tokens since the last sampled one. [T]
            params: Sampling parameters.
            extends: False replaces the whole history.
            pictures: Pictures among the new tokens.
        """
        session = self._get_session(session_id)
        new = np.asarray(new_token_ids, dtype=np.int64).ravel().tolist()
        new = with_keys(new, pictures, self._pictures is not None)
        check_submit(
            session,
            len(new) + (len(session.history) if extends else 0),
            params,
            max_context_tokens=self._max_context,
            has_tokenizer=self._tokenizer is not None,
        )
        if extends:
            session.pictures += moved(pictures, len(session.history))
            session.history += new
        else:
            # A rewritten history often differs only near its end.
            kept = min(common_prefix(session.history, new), session.cached)
            session.lost_cache |= kept < session.cached
            session.history, session.cached = new, kept
            session.pictures = list(pictures)
        # The last token is always computed: sampling needs its logits.
        session.cached = min(session.cached, len(session.history) - 1)
        limit = self._max_context - len(session.history)
        request = Request(self._next_id, session, params, limit)
        self._next_id += 1
        session.request = request
        self._requests[request.request_id] = request
        self._waiting.append(request)
        return request.request_id

    def step(self) -> list[Generation]:
        """Run one prefill or one decoding step; see :meth:`GenerationEngine.step`."""
        # No forward pass without work: step() may be polled.
        if not self._requests:
            return []
        with self._runner.serving():
            if self._drafter is not None:
                self._join()
            if is_prefill_due(
                len(self._waiting),
                len(self._running),
                self._table.max_slots,
                self._steps_waited,
            ):
                self._steps_waited = 0
                return self._prefill()
            # Bounds the wait: see is_prefill_due().
            self._steps_waited += bool(self._waiting)
            # As late as possible: sessions that close or go on need no move.
            self._close_gaps(0.0 if self._drafter is None else _MAX_GAPS)
            return self._decode()

    def abort(self, request_id: int) -> None:
        """Cancel a request; see :meth:`GenerationEngine.abort`."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        session = request.session
        del session.history[request.prompt_length :]
        # Keys and values of the discarded tokens stay in the row, but are never read.
        session.cached = min(session.cached, len(session.history) - 1)
        session.request = None
        if request in self._waiting:
            self._waiting.remove(request)
        else:
            rest = [r for r in self._running.requests if r is not request]
            self._set_running(rest)

    def close(self, session_id: SessionId) -> None:
        """Delete a session; see :meth:`GenerationEngine.close`."""
        session = self._get_session(session_id)
        if session.request is not None:
            self.abort(session.request.request_id)
        self._table.release(session)
        del self._sessions[session_id]
        if not self._sessions and self.cache_bytes > _KEPT_BYTES:
            self._table.cache.clear()

    def set_weights_version(self, version: int) -> None:
        """Set a new version; see :meth:`GenerationEngine.set_weights_version`.

        Sessions keep their rows; the keys and values in them are computed again.
        """
        self._version = version
        # The fused forward holds concatenated copies of the weights.
        self._runner.refresh()
        if self._pictures is not None:
            self._pictures.weights_changed()
        for session in self._sessions.values():
            session.drop_cache()
        # Running requests need a new prefill of their whole history.
        self._waiting = list(self._requests.values())
        self._set_running([])

    def update_weights(
        self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int
    ) -> None:
        """Copy values into the model; see :meth:`GenerationEngine.update_weights`.

        Raises:
            ModelError: If a name or a shape does not fit the model. Tensors before it
                have been copied.
        """
        self._runner.copy_weights(named_tensors, self._model)
        self.set_weights_version(version)

    def sampled_so_far(self, request_id: int) -> Sequence[int]:
        """Return tokens; see :meth:`GenerationEngine.sampled_so_far`."""
        request = self._requests.get(request_id)
        if request is None:
            return ()
        return request.session.history[request.prompt_length :]

    def stats(self) -> dict[str, int]:
        """Return the counters; see :meth:`GenerationEngine.stats`."""
        return dict(self._stats)

    def reset_stats(self) -> None:
        """Set all counters to zero."""
        self._stats = dict.fromkeys(_COUNTERS, 0)

    def _join(self) -> None:
        """Let waiting requests with few new tokens run, whose prefill is a decode pass.

        They stay in their rows: a prefill of its own would move them together.
        """
        joining = {r for r in self._waiting if may_join(r.session)}
        for request in joining:
            self._count_prefill(request)
            self._stats["prefill_tokens"] += request.session.num_new
            request.begin(self._version)
        if joining:
            self._waiting = [r for r in self._waiting if r not in joining]
            self._set_running([*self._running.requests, *joining])

    def _prefill(self) -> list[Generation]:
        """Assign rows to waiting requests, compute their histories, sample a token."""
        for request in self._waiting:
            self._table.assign(request.session)
        todo = [r for r in self._waiting if r.session.row >= 0]
        for request in todo:
            self._count_prefill(request)
        finished: list[Generation] = []
        # At most three waves, each sharing the prefixes of the one before: a first
        # conversation (common instructions), one rollout per group, then all others.
        waves = 3
        while todo:
            waves -= 1
            now, todo, shared = share_prefixes(todo, self._table, may_wait=waves > 0)
            self._stats["shared_tokens"] += shared
            # By length, so that a group has little padding.
            now = sorted(now, key=lambda r: -r.session.num_new)
            while now:
                group, now = split_group(now)
                finished += self._prefill_group(group)
        return finished

    def _prefill_group(self, group: list[Request]) -> list[Generation]:
        self._close_gaps()
        sessions = [r.session for r in group]
        first_row = len(self._running)
        self._table.place(sessions, first_row)
        # Rows of one forward pass must be consecutive; place() has moved them.
        group.sort(key=lambda r: r.session.row)
        counts = [min(r.session.num_new, PREFILL_CHUNK) for r in group]
        logits = self._forward(group, first_row, counts)
        self._stats["prefill_tokens"] += sum(counts)
        # Prompts longer than a chunk stay in _waiting for the next prefill.
        done = [i for i, r in enumerate(group) if r.session.num_new == 0]
        if not done:
            return []
        if len(done) < len(group):
            logits = logits[done]
        started = [group[i] for i in done]
        self._waiting = [r for r in self._waiting if r.session.num_new]
        for request in started:
            request.begin(self._version)
        batch = self._batch(started)
        return self._sample(batch, logits, self._running.requests)

    def _decode(self) -> list[Generation]:
        batch, drafter = self._running, self._drafter
        if drafter is not None:
            step = batch.drafted(drafter, self._runner.num_logits)
            if step is not None:
                return self._decode_drafts(batch, step, drafter)
        token_ids, starts = batch.feed_last()
        ones = np.ones_like(starts)
        logits = self._continue(batch, token_ids, starts, ones, ones)
        return self._sample(batch, logits, [])

    def _continue(
        self,
        batch: DecodeBatch,
        token_ids: np.ndarray,
        starts: np.ndarray,
        counts: np.ndarray,
        wanted: np.ndarray,
    ) -> torch.Tensor:
        """Compute the next tokens of the running requests.

        Returns:
            Logits after the N wanted tokens. [N, V]
        """
        self._stats["forwards"] += 1
        positions = None
        if batch.behind is not None:
            columns = new_columns(starts, counts)
            positions = (columns - batch.behind[:, None])[None]
        return self._runner.forward(
            self._table.cache,
            0,
            token_ids,
            starts,
            counts,
            batch.adapters,
            positions=positions,
            wanted=wanted,
        )

    def _decode_drafts(
        self, batch: DecodeBatch, step: DraftedStep, drafter: Drafter
    ) -> list[Generation]:
        """Compute drafts, and sample the tokens up to the first wrong one."""
        logits = self._continue(
            batch, step.token_ids, step.starts, step.counts, step.wanted
        )
        tokens, logps = batch.draw_drafted(step, logits[:, : self._vocabulary])
        if not np.isfinite(logps).all():
            self._fail_on_nan()
        before = sum(r.num_sampled for r in batch.requests)
        ended = batch.accept_drafted(step, tokens, logps, self._tokenizer)
        count = sum(r.num_sampled for r in batch.requests) - before
        drafted, accepted = len(tokens) - len(batch), count - len(batch)
        if drafted:
            drafter.count(drafted, accepted)
        self._stats["decoded_tokens"] += count
        self._stats["draft_tokens"] += drafted
        self._stats["accepted_tokens"] += accepted
        return self._finish(batch, ended, [])

    def _forward(
        self, requests: list[Request], first_row: int, counts: list[int]
    ) -> torch.Tensor:
        """Compute the next ``counts`` tokens of each history; return logits [B, V]."""
        sessions = [r.session for r in requests]
        token_ids, starts = feed(sessions, counts)
        self._stats["forwards"] += 1
        placed = positions = None
        if self._pictures is not None:
            pictures = [s.pictures for s in sessions]
            placed = self._pictures.place(pictures, starts, counts)
            positions = self._pictures.positions(pictures, new_columns(starts, counts))
            token_ids[token_ids < 0] = self._pictures.token_id
        adapters = None
        if self._num_models > 1:
            adapters = np.array([s.adapter for s in sessions], np.int64)
        return self._runner.forward(
            self._table.cache,
            first_row,
            token_ids,
            starts,
            np.array(counts),
            adapters,
            placed,
            positions,
        )

    def _sample(
        self, batch: DecodeBatch, logits: torch.Tensor, others: list[Request]
    ) -> list[Generation]:
        """Sample a token per request; unfinished ones join the running ``others``."""
        tokens, logps = batch.draw(logits[:, : self._vocabulary])
        if not np.isfinite(logps).all():
            self._fail_on_nan()
        self._stats["decoded_tokens"] += len(batch)
        if self._is_masked:
            allowed = pack_bits(logits[:, : self._vocabulary] > -torch.inf)
            for request, bits in zip(batch.requests, allowed, strict=True):
                request.allowed.append(bits)
        ended = batch.accept(tokens.tolist(), logps.tolist(), self._tokenizer)
        return self._finish(batch, ended, others)

    def _finish(
        self,
        batch: DecodeBatch,
        ended: dict[Request, FinishReason],
        others: list[Request],
    ) -> list[Generation]:
        """Return finished turns; unfinished ones join the running ``others``."""
        for request in ended:
            if self._drafter is not None:
                self._drafter.observe(request)
            del self._requests[request.request_id]
            request.session.request = None
            self._table.touch(request.session)
        if ended or batch is not self._running:
            self._set_running([*others, *(r for r in batch.requests if r not in ended)])
        now = time.perf_counter()
        return [request.result(reason, now) for request, reason in ended.items()]

    def _set_running(self, requests: list[Request]) -> None:
        """Set the running requests; they keep their rows until :meth:`_close_gaps`."""
        requests.sort(key=lambda r: r.session.row)
        self._running = self._batch(requests)

    def _close_gaps(self, max_gaps: float = 0.0) -> None:
        """Move the running requests to the first rows of the cache.

        No row is moved if other sessions have at most a share ``max_gaps`` of them.
        """
        batch = self._running
        if len(batch) < (1.0 - max_gaps) * batch.num_rows:
            self._table.place([r.session for r in batch.requests], 0)
            self._set_running(batch.requests)

    def _batch(self, requests: list[Request]) -> DecodeBatch:
        skipped = self._pictures.skipped if self._pictures is not None else 0
        return DecodeBatch(requests, self._runner.device, self._num_models > 1, skipped)

    def _count_prefill(self, request: Request) -> None:
        session = request.session
        if not request.is_counted:
            self._stats["cached_tokens"] += session.cached
            request.is_counted = True
        if session.lost_cache:
            self._stats["reprefills"] += 1
            session.lost_cache = False

    def _fail_on_nan(self) -> None:
        """Clear the cache and raise a ModelError."""
        # A mask does not hide NaN (0 * NaN is NaN): stale columns could leak it.
        self.set_weights_version(self._version)
        self._table.cache.clear()
        raise ModelError(
            f"The logits are not finite (weights version {self._version}). The weights "
            "have probably diverged: lower the learning rate or the gradient clip. "
            "Abort unfinished requests, or set finite weights and call step() again."
        )

    def _get_session(self, session_id: SessionId) -> Session:
        try:
            return self._sessions[session_id]
        except KeyError:
            raise SessionError(
                f"Session {session_id!r} is not open; call open() first."
            ) from None
