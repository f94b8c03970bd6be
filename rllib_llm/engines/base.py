"""Interface of the generation engines.

An engine keeps *sessions* (one per conversation: an environment and an agent) and
serves *requests* (one per model turn). It handles token ids only and is independent of
chat messages and RLlib. All calls are synchronous and incremental, so that one loop
serves synchronous and asynchronous environments, in process or with an actor::

    engine.open("env-0")
    engine.submit("env-0", prompt_ids, SamplingParams(max_new_tokens=16, seed=7))
    while engine.num_unfinished:
        for done in engine.step():
            reply_ids = ...  # the environment's answer to done.token_ids
            engine.submit(done.session_id, reply_ids, next_params)

The history of a session is a list of token ids that is only appended to. The engine
appends the sampled tokens, so text is never tokenised twice.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from rllib_llm.data.types import FinishReason, VersionChanges, token_versions
from rllib_llm.errors import ConfigError, RLlibLLMError

if TYPE_CHECKING:
    import torch

    from rllib_llm.pictures.placement import PlacedPicture

SessionId = Hashable

_generate_ids = itertools.count()


class ContextOverflowError(RLlibLLMError, ValueError):
    """A history with its new tokens leaves no room to sample in the context."""


class SessionError(RLlibLLMError, ValueError):
    """A session is not open, already open, or busy with another request."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one turn.

    The logits are divided by the temperature, then restricted to the ``top_k`` most
    likely tokens, then to the smallest set with ``top_p`` of the remaining mass, and
    renormalised.

    Attributes:
        max_new_tokens: Maximum tokens to sample, >= 1.
        seed: Seed of this request's random numbers, >= 0. The same seed and history
            give the same tokens, with any other requests in the engine.
        temperature: > 0, or exactly 0.0 for the most likely token. Greedy requests
            ignore ``top_k`` and ``top_p``; their log-probabilities are those of the
            distribution at temperature 1.
        top_p: Probability mass to keep, in (0, 1]; 1.0 keeps all tokens.
        top_k: Number of tokens to keep, >= 0; 0 keeps all tokens.
        stop_token_ids: Sampling one of these ends the turn; it stays in the result.
        stop_strings: The turn ends once its decoded text contains one of these; the
            tokens of the string stay in the result.
    """

    max_new_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check every range and store plain Python values.

        Raises:
            ConfigError: If a value is out of range or of the wrong type.
        """
        for name, least in (("max_new_tokens", 1), ("seed", 0), ("top_k", 0)):
            # The dataclass is frozen; numpy integers become int, which pickles small
            # and hashes alike.
            object.__setattr__(self, name, _as_int(name, getattr(self, name), least))
        if not (math.isfinite(self.temperature) and self.temperature >= 0.0):
            raise ConfigError(
                f"temperature ({self.temperature}) must be finite and >= 0. Use 0.0 "
                "for greedy decoding."
            )
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(
                f"top_p ({self.top_p}) must be in (0, 1]. Use 1.0 to disable it."
            )
        stop_ids = tuple(_as_int("stop_token_ids", i, 0) for i in self.stop_token_ids)
        object.__setattr__(self, "stop_token_ids", stop_ids)
        if isinstance(self.stop_strings, str):
            raise ConfigError(
                f"stop_strings must be a tuple of strings, got the string "
                f"{self.stop_strings!r}. Write ({self.stop_strings!r},)."
            )
        object.__setattr__(self, "stop_strings", tuple(self.stop_strings))
        if not all(isinstance(s, str) and s for s in self.stop_strings):
            raise ConfigError(
                f"stop_strings {self.stop_strings!r} must be non-empty strings. Remove "
                "the others."
            )


@dataclasses.dataclass(slots=True)
class Generation:
    """One finished request.

    Attributes:
        request_id: The id that ``submit`` returned.
        session_id: The conversation it belongs to.
        token_ids: Sampled tokens, including the stop token if sampled. int32 [T]
        logps: Log-probabilities of those tokens, in nats, under the distribution they
            were sampled from (after temperature, top-k and top-p). float32 [T]
        finish: Finish reason.
        weights_version: Version of the weights that sampled the first token.
        seconds: Wall time from submission to the last token.
        version_changes: Updates of the weights in the middle of the turn: index of the
            first token that the new weights sampled, and their version.
        allowed: Bits of the tokens that each one was chosen from, if the engine
            restricts them. uint8 [T, ceil(V / 8)]
    """

    request_id: int
    session_id: SessionId
    token_ids: np.ndarray
    logps: np.ndarray
    finish: FinishReason
    weights_version: int
    seconds: float
    version_changes: VersionChanges = ()
    allowed: np.ndarray | None = None

    @property
    def token_versions(self) -> np.ndarray:
        """Version of the weights that sampled each token. int64 [T]"""
        count = len(self.token_ids)
        return token_versions(self.weights_version, self.version_changes, count)


class GenerationEngine(abc.ABC):
    """Samples turns of many concurrent conversations.

    A session has at most one unfinished request. Any number of sessions may be open
    and any number of requests submitted: those beyond the engine's capacity wait.
    """

    @property
    @abc.abstractmethod
    def num_unfinished(self) -> int:
        """Number of requests submitted and neither finished nor aborted."""

    @property
    @abc.abstractmethod
    def weights_version(self) -> int:
        """Version of the weights that sample the next token; 0 at the start."""

    @property
    def shares_weights(self) -> bool:
        """True if the engine samples with the caller's own parameters.

        The caller then reports changes with :meth:`set_weights_version`. An engine
        with a copy of the weights needs :meth:`update_weights` instead.
        """
        return True

    @abc.abstractmethod
    def open(self, session_id: SessionId) -> None:
        """Start a conversation with an empty history.

        Raises:
            SessionError: If the session is already open.
        """

    @abc.abstractmethod
    def submit(
        self,
        session_id: SessionId,
        new_token_ids: Sequence[int] | np.ndarray,
        params: SamplingParams,
        *,
        extends: bool = True,
    ) -> int:
        """Append tokens to a session and request a continuation.

        Args:
            session_id: An open session without an unfinished request.
            new_token_ids: Tokens since the last sampled one; may be empty if there is
                a history to continue. [T]
            params: Sampling parameters.
            extends: False replaces the whole history by ``new_token_ids``, e.g. because
                the conversation was rewritten and does not start with the old tokens.

        Returns:
            The id of the request, unique within this engine.

        Raises:
            ContextOverflowError: If no token could be sampled within the context; the
                session is unchanged.
            SessionError: If the session is not open or is busy.
        """

    @abc.abstractmethod
    def step(self) -> list[Generation]:
        """Run one iteration (some prefill or one token per running request).

        Returns:
            The requests that finished in this iteration; empty if there is no work.
        """

    @abc.abstractmethod
    def abort(self, request_id: int) -> None:
        """Cancel a request; finished and unknown requests are ignored.

        The session keeps the submitted tokens and loses the tokens sampled so far.
        Submitting no new tokens then retries the turn.
        """

    @abc.abstractmethod
    def close(self, session_id: SessionId) -> None:
        """Delete a session with its history, aborting its request if it has one.

        Raises:
            SessionError: If the session is not open.
        """

    @abc.abstractmethod
    def set_weights_version(self, version: int) -> None:
        """Announce that weights shared with the caller have changed in place.

        All cached keys and values are dropped; histories are computed anew when they
        are next needed. Call it between requests: those still running go on with the
        new weights and keep the tokens they have.
        """

    @abc.abstractmethod
    def update_weights(
        self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int
    ) -> None:
        """Copy new values into the engine's weights, then set their version.

        Args:
            named_tensors: Pairs of parameter name, as the model names it, and value.
            version: The version of the new weights.
        """

    @abc.abstractmethod
    def stats(self) -> dict[str, int]:
        """Return counters since the last reset.

        Keys: ``prefill_tokens`` (prompt tokens computed), ``cached_tokens`` (prompt
        tokens found in the cache instead), ``decoded_tokens`` (tokens sampled),
        ``shared_tokens`` (prompt tokens copied from another session's cache, if the
        engine shares prefixes), ``reprefills`` (histories computed again because their
        cache was evicted, made stale by new weights, or replaced with
        ``extends=False``), ``forwards`` (forward passes), and from engines that draft
        tokens ``draft_tokens`` and ``accepted_tokens`` (those of them that were
        sampled).
        """

    def sampled_so_far(self, request_id: int) -> Sequence[int]:
        """Return the tokens of an unfinished request, to stream them.

        Engines that do not report them before the end return none.
        """
        return ()

    def start(self) -> None:  # noqa: B027
        """Start the engine's backend if it does not run yet; may take minutes."""

    def sleep(self) -> None:  # noqa: B027
        """Release device memory while nothing is sampled, if supported.

        Raises:
            SessionError: If requests are unfinished.
        """

    def wake_up(self) -> None:  # noqa: B027
        """Allocate the memory that :meth:`sleep` released."""

    @abc.abstractmethod
    def reset_stats(self) -> None:
        """Set all counters to zero."""


def generate(
    engine: GenerationEngine,
    prompts: Sequence[Sequence[int] | np.ndarray],
    params: Sequence[SamplingParams],
    *,
    open_settings: Mapping[str, Any] | None = None,
    pictures: Sequence[Sequence[PlacedPicture]] | None = None,
) -> list[Generation]:
    """Sample one continuation per prompt, each in a new session.

    Args:
        engine: An engine without unfinished requests.
        prompts: Token ids of each prompt, of any lengths.
        params: Sampling parameters of each prompt.
        open_settings: Keyword arguments of the engine's ``open``.
        pictures: Pictures of each prompt, with their places in it; None: no prompt has
            any.

    Returns:
        The results in the order of the prompts.

    Raises:
        ConfigError: If the numbers of prompts and params differ.
        SessionError: If the engine has unfinished requests.
    """
    if len(prompts) != len(params):
        raise ConfigError(
            f"generate() got {len(prompts)} prompts and {len(params)} params; pass one "
            "SamplingParams per prompt."
        )
    # The loop below takes every result: those of other callers would be lost.
    if engine.num_unfinished:
        raise SessionError(
            f"generate() needs an idle engine; {engine.num_unfinished} requests are "
            "unfinished. Use submit() and step()."
        )
    # A unique part of the names: two calls on one engine must not collide.
    call = next(_generate_ids)
    sessions = [("generate", call, index) for index in range(len(prompts))]
    opened: list[tuple[str, int, int]] = []
    results: dict[int, Generation] = {}
    try:
        order = []
        shown = pictures or [()] * len(prompts)
        for session, prompt, param, images in zip(
            sessions, prompts, params, shown, strict=True
        ):
            engine.open(session, **(open_settings or {}))
            opened.append(session)
            # Engines of other packages may take no pictures.
            images_of: dict[str, Any] = {"pictures": images} if images else {}
            order.append(engine.submit(session, prompt, param, **images_of))
        while engine.num_unfinished:
            results.update((done.request_id, done) for done in engine.step())
        return [results[request_id] for request_id in order]
    # Also after an error, so that the sessions' rows in the cache become free.
    finally:
        for session in opened:
            engine.close(session)


def _as_int(name: str, value: SupportsIndex, least: int) -> int:
    """Return ``value`` as an int; raise for floats and for values below ``least``."""
    try:
        # Accepts numpy integers, but no floats.
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} must be an integer, got {value!r}.") from None
    if number < least:
        raise ConfigError(f"{name} ({number}) must be >= {least}.")
    return number
