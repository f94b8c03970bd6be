"""Reward of a reward model: a sequence classifier with one score."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import MissingInfo, Trajectory
from rllib_llm.data.types import Message
from rllib_llm.errors import ConfigError, ModelError, RLlibLLMError
from rllib_llm.schema import PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from rllib_llm.connectors.chat import ChatRenderer
    from rllib_llm.modules.classifiers import Classifier

logger = logging.getLogger("rllib_llm")


@component(
    "reward", "scored", paper="Ouyang et al. 2022, arXiv:2203.02155, step 3 (PPO)"
)
class Scored:
    """Return the score that a reward model gives to the conversation.

    The model is a sequence classifier of transformers with one label: what
    ``rllib-llm export`` writes of a RewardModel run, or a folder of TRL's RewardTrainer
    and others. It reads the messages by its own chat template and tokenizer, and
    computes once per iteration, in batches, in the driver's process.

    Args:
        model: The folder, or a hub id.
        per: "trajectory": the score of the whole conversation, in the last turn.
            "turn": each turn's reward is by how much it raises the score of the
            conversation up to its end; they sum to that of the whole.
        normalize: Subtract the mean and divide by the standard deviation of the scores
            in training, which the folder's config.json holds.
        mean: The mean to subtract, in place of the folder's; needs ``normalize``.
        std: The standard deviation to divide by, > 0; needs ``normalize``.
        clip: Bound of the absolute value of a score, after ``normalize``; None: none.
        too_long: Treatment of conversations longer than ``max_tokens``: "error" ends
            the run, "cut" leaves out their first tokens, with a warning.
        max_tokens: Longest conversation in tokens; None: the model's positions.
        batch_tokens: Most token positions of a forward pass.
        dtype: Data type of the weights.
        device: Device to compute on, e.g. "cuda:0"; None: an accelerator, if any.
    """

    def __init__(
        self,
        *,
        model: str,
        per: Literal["trajectory", "turn"] = "trajectory",
        normalize: bool = False,
        mean: float | None = None,
        std: PositiveFloat | None = None,
        clip: PositiveFloat | None = None,
        too_long: Literal["error", "cut"] = "error",
        max_tokens: PositiveInt | None = None,
        batch_tokens: PositiveInt = 8192,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str | None = None,
    ) -> None:
        self._model, self._per, self._clip = model, per, clip
        self._too_long, self._max_tokens = too_long, max_tokens
        self._batch_tokens, self._dtype, self._device = batch_tokens, dtype, device
        try:
            config = _config(model)
            _renderer(model)
        except (ModelError, RLlibLLMError) as error:
            raise ConfigError(f"reward 'scored': {error}") from error
        self._shift, self._scale = _normalization(config, model, normalize, mean, std)

    def of_all(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        """Return the reward of each turn of each trajectory. N lists of [H]"""
        rows: list[list[int]] = []
        counts = []
        for trajectory in trajectories:
            prefixes = self._prefixes(trajectory)
            counts.append(len(prefixes))
            rows += map(self._fitting, prefixes)
        scores = self._normalized(self._classifier.scores(rows, self._batch_tokens))
        rewards = []
        for trajectory, of_one in zip(
            trajectories, np.split(scores, np.cumsum(counts)[:-1]), strict=True
        ):
            if self._per == "turn":
                rewards.append(np.diff(of_one, prepend=0.0).tolist())
            else:
                rewards.append([0.0] * (len(trajectory) - 1) + of_one.tolist())
        return rewards

    def __call__(self, trajectory: Trajectory) -> list[float]:
        """Return the reward of each turn. [H]"""
        return self.of_all([trajectory])[0]

    @property
    def _classifier(self) -> Classifier:
        from rllib_llm.modules.classifiers import open_classifier

        return open_classifier(self._model, self._dtype, self._device)

    def _prefixes(self, trajectory: Trajectory) -> list[list[int]]:
        """Return the conversations to score as tokens: the whole, or at every turn."""
        if not len(trajectory):
            return []
        messages = trajectory.messages
        ends = [i + 1 for i, m in enumerate(messages) if m["role"] == "assistant"]
        if not ends:
            raise MissingInfo("The trajectory has no messages to score.")
        if self._per == "trajectory":
            ends = ends[-1:]
        elif len(ends) != len(trajectory):
            raise ConfigError(
                f"reward 'scored': per='turn' needs one conversation with a reply per "
                f"turn, but {len(trajectory)} turns have {len(ends)}. Use "
                "per='trajectory'."
            )
        renderer = _renderer(self._model)
        return [renderer.conversation(_readable(messages[:e], renderer)) for e in ends]

    def _fitting(self, ids: list[int]) -> list[int]:
        """Return a conversation's last tokens, as many as the model can read."""
        longest = self._max_tokens or self._classifier.longest or len(ids)
        if len(ids) <= longest:
            return ids
        if self._too_long == "error":
            raise ConfigError(
                f"reward 'scored': a conversation has {len(ids)} tokens, more than the "
                f"{longest} that {self._model!r} reads. Set too_long='cut', or lower "
                "generation.max_context_tokens."
            )
        logger.warning(
            "reward 'scored': the first %d of %d tokens of a conversation are cut.",
            len(ids) - longest,
            len(ids),
        )
        return ids[-longest:]

    def _normalized(self, scores: np.ndarray) -> np.ndarray:
        scores = (scores - self._shift) / self._scale
        return scores if self._clip is None else scores.clip(-self._clip, self._clip)


def _normalization(
    config: Any, model: str, normalize: bool, mean: float | None, std: float | None
) -> tuple[float, float]:
    """Return what to subtract from scores, and what to divide them by."""
    from rllib_llm.modules.classifiers import MEAN, STD

    if not normalize:
        if mean is not None or std is not None:
            raise ConfigError(
                "reward 'scored': mean and std have no effect without normalize=True."
            )
        return 0.0, 1.0
    shift = getattr(config, MEAN, None) if mean is None else mean
    scale = getattr(config, STD, None) if std is None else std
    if shift is None or scale is None or not (math.isfinite(shift) and scale > 0):
        raise ConfigError(
            f"reward 'scored': the config of {model!r} has no {MEAN} and {STD} > 0, "
            "which exports of RewardModel runs have. Set mean and std."
        )
    return float(shift), float(scale)


@functools.lru_cache(maxsize=4)
def _config(model: str) -> Any:
    from rllib_llm.modules.classifiers import check_classifier_folder

    return check_classifier_folder(model)


@functools.lru_cache(maxsize=4)
def _renderer(model: str) -> ChatRenderer:
    from rllib_llm.connectors.chat import ChatRenderer
    from rllib_llm.modules.loading import load_tokenizer

    return ChatRenderer(load_tokenizer(model), history="rerender")


def _readable(messages: Sequence[Message], renderer: ChatRenderer) -> list[Message]:
    """Return the messages in roles that the template has."""
    if renderer.tool_format is not None:
        return list(messages)
    return [{**m, "role": "user"} if m["role"] == "tool" else m for m in messages]
