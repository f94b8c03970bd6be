"""Data types of turns, tasks and messages, shared by all packages.

Shape legend, used in every docstring of the package:

====  ===========================================================
``B``  rows of a batch (one row is one token sequence)
``T``  token positions in a row
``V``  vocabulary entries
``G``  rollouts of one task (the group)
``H``  turns of an episode
====  ===========================================================

Position convention: column ``t`` of every ``[B, T]`` array describes token ``t``
itself; its log-probability is that *of* token ``t`` given the tokens before it.
Mask convention: ``loss_mask`` is True where a token is trained, ``attention_mask``
is True where a token is real.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rllib_llm.data.added_texts import TextSource
    from rllib_llm.data.places import Place
    from rllib_llm.pictures.placement import PictureRef

Message = dict[str, str]
"""A chat message: ``{"role": "system"|"user"|"assistant"|"tool", "content": text}``."""


class FinishReason(enum.StrEnum):
    """Reason that the engine ended a turn."""

    STOP = "stop"  # the model sampled its end-of-turn token or a stop string
    LENGTH = "length"  # max_new_tokens was reached


class StopReason(enum.StrEnum):
    """Reason that an episode ended (a closed set; StopPolicy tells what follows)."""

    TERMINATED = "terminated"
    MAX_TURNS = "max_turns"
    MAX_TOKENS_TURN = "max_tokens_turn"
    MAX_TOKENS_EPISODE = "max_tokens_episode"
    CONTEXT_OVERFLOW = "context_overflow"
    PARSE_ERROR = "parse_error"
    ENV_ERROR = "env_error"
    TIMEOUT = "timeout"
    ABORTED = "aborted"


class StopPolicy(enum.StrEnum):
    """Treatment in training of an episode that ended for a given reason."""

    TRAIN = "train"  # final: the return is the sum of the rewards received
    BOOTSTRAP = "bootstrap"  # cut short: the critic's value replaces later rewards
    MASK = "mask"  # counted in statistics and group baselines, never trained on
    DROP = "drop"  # discarded and sampled anew, as if it had not happened


DEFAULT_STOP_POLICIES: dict[StopReason, StopPolicy] = {
    StopReason.TERMINATED: StopPolicy.TRAIN,
    StopReason.MAX_TURNS: StopPolicy.BOOTSTRAP,
    StopReason.MAX_TOKENS_TURN: StopPolicy.TRAIN,
    StopReason.MAX_TOKENS_EPISODE: StopPolicy.BOOTSTRAP,
    StopReason.CONTEXT_OVERFLOW: StopPolicy.BOOTSTRAP,
    StopReason.PARSE_ERROR: StopPolicy.TRAIN,
    StopReason.ENV_ERROR: StopPolicy.DROP,
    StopReason.TIMEOUT: StopPolicy.DROP,
    StopReason.ABORTED: StopPolicy.DROP,
}


VersionChanges = tuple[tuple[int, int], ...]


def token_versions(first: int, changes: VersionChanges, count: int) -> np.ndarray:
    """Return the version of the weights that sampled each token of a turn. int64 [T]

    Args:
        first: Version that sampled the first token.
        changes: Index of the first token of each later version, and that version.
        count: Number of tokens.
    """
    versions = np.full(count, first, np.int64)
    for index, version in changes:
        versions[index:] = version
    return versions


@dataclasses.dataclass(slots=True)
class Choice:
    """Alternatives to a turn whose action was chosen from a list.

    Attributes:
        others: Token ids of the actions not taken. int32, one array per action
        weights: Factor of the log-probabilities of an action's tokens in the action's
            score: first of the action taken, then of the others. float32 [K]
        expert_probs: Probability of each action under the environment's expert, in the
            same order; None: it reports none. float32 [K]
    """

    others: list[np.ndarray]
    weights: np.ndarray
    expert_probs: np.ndarray | None = None


@dataclasses.dataclass(slots=True)
class Turn:
    """Token-level record of one model turn, made when it was sampled.

    Stored in ``extra_model_outputs["turn"]`` of the episode, one per time step. The
    ids are exactly those the engine saw and returned; nothing is re-made from text.

    Attributes:
        prompt_ids: Tokens appended to the conversation before sampling: only the new
            ones if ``extends``, else the whole prompt. int32
        extends: Whether the stored ids of the episode so far are a prefix.
        action_ids: Sampled tokens, including the end-of-turn token if sampled. int32
        action_logps: Log-probabilities under the sampling distribution, in nats. Where
            a whole action was chosen, its log-probability on the first token, else 0.
        finish: Reason that sampling ended.
        weights_seq_no: Version of the weights that sampled the first token.
        module_id: The policy (RLModule id) that sampled it.
        seconds: Wall time from submission to the last token.
        env_t: Environment step in which it was taken, from 0; agents that act at the
            same time share it.
        invalid: Whether the environment parsed no action from it.
        choice: The other admissible actions, if it was chosen from them as a whole.
        version_changes: Updates of the weights in the middle of the turn: index of the
            first token that the new weights sampled, and their version.
        conversation: Number of the conversation among the agent's. ``extends`` refers
            to the ids of this conversation.
        images: The prompt's pictures: digests, and places in ``prompt_ids``.
        allowed: Bits of the tokens that each sampled one was chosen from, if a nucleus
            mask restricted them. uint8 [T, ceil(V / 8)]
    """

    prompt_ids: np.ndarray
    extends: bool
    action_ids: np.ndarray
    action_logps: np.ndarray
    finish: FinishReason
    weights_seq_no: int = 0
    module_id: str = "default_policy"
    seconds: float = 0.0
    env_t: int = 0
    invalid: bool = False
    choice: Choice | None = None
    version_changes: VersionChanges = ()
    conversation: int = 0
    images: tuple[PictureRef, ...] = ()
    allowed: np.ndarray | None = None

    @property
    def token_versions(self) -> np.ndarray:
        """Version of the weights that sampled each token. int64 [T]

        An action without tokens counts as one.
        """
        count = max(1, len(self.action_ids))
        return token_versions(self.weights_seq_no, self.version_changes, count)


@dataclasses.dataclass(slots=True)
class Candidate:
    """A reply that was sampled at a turn and not played.

    Attributes:
        turn: Its token record.
        text: Its text, as a conversation would keep it.
        action: Its text, as an environment would receive it.
    """

    turn: Turn
    text: str = ""
    action: str = ""


MIXTURE_ENVIRONMENT = "mixture_environment"
"""Option of ``reset`` with the name of an environment in a mixture."""


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """One rollout to sample: its instance, its group and its number in the group.

    Rollouts of a group share ``seed`` and ``options``; they differ in ``rollout``,
    which seeds the sampling of tokens. ``assignment`` names each agent's policy where
    that differs between tasks (self-play). ``max_turns`` bounds this episode beside the
    run's own limit (curricula). ``place`` is where a fork begins; None: at the prompt.
    ``prompt_text`` gives texts before the first message of its agents.
    """

    group_id: int
    rollout: int
    seed: int
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    assignment: dict[str, str] = dataclasses.field(default_factory=dict)
    max_turns: int | None = None
    place: Place | None = None
    prompt_text: TextSource | None = None

    @property
    def environment(self) -> str | None:
        """Name of the task's environment in a mixture; None without a mixture."""
        return self.options.get(MIXTURE_ENVIRONMENT)

    def with_texts(self, source: TextSource | None) -> Task:
        """Return the task with the texts and the options of a source."""
        options = self.options if source is None else {**self.options, **source.options}
        return dataclasses.replace(self, options=options, prompt_text=source)


@dataclasses.dataclass(slots=True)
class TurnResult:
    """The environment's response to one model turn.

    Attributes:
        observation: Text of the next user message (shown even when the episode ends,
            so that transcripts are complete).
        reward: Reward of this turn; must be finite.
        terminated: The task is over (solved, failed, lost).
        truncated: The environment cuts the episode short for another reason.
        success: Whether the task was solved, where that is defined.
        metrics: Numbers to average over episodes, e.g. ``{"boxes_placed": 1.0}``.
        images: Pictures of the observation, uint8 [height, width, 3]: one for each
            ``<image>`` in its text, in order (docs/pictures.md).
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    success: bool | None = None
    metrics: dict[str, float] | None = None
    images: Sequence[np.ndarray] = ()


@dataclasses.dataclass(slots=True)
class Prompt:
    """Tokens to append before the next turn is sampled.

    Attributes:
        ids: The new tokens if ``extends``, else the whole prompt.
        extends: Whether the conversation's ids so far are kept.
        images: Pictures: digests, and places in ``ids``.
    """

    ids: list[int]
    extends: bool
    images: tuple[PictureRef, ...] = ()
