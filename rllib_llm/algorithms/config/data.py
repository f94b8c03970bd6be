"""Settings of ``data``: files in place of the expert or of sampled episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)
from rllib_llm.algorithms.config.rllib_kinds import Schedule
from rllib_llm.algorithms.config.schedules import value_at
from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import Parser, parse_conversation
from rllib_llm.offline.row_file import RowFile, open_rows
from rllib_llm.schema import NonNegativeFloat, NonNegativeInt

if TYPE_CHECKING:
    from rllib_llm.algorithms.grpo.grpo import GRPOConfig


class DataSettings(DeclaredSettings):
    """Settings of ``data``."""

    data = fluent_method("Train on the rows of data files.", prefix="data_")

    data_files: str | list[str] | None = setting(
        None,
        """Data files with one conversation (SFT), or one preference pair (Pref,
        RewardModel) or labelled conversation (Pref), per row: paths, patterns with
        ``*``, or ``hf://datasets/OWNER/NAME/FILE``. None: the expert's episodes (SFT),
        or sampled episodes.""",
    )

    def stored_rows(self, parse: Parser) -> RowFile | None:
        """Return the rows of ``data_files``; None if there are no files.

        Raises:
            ConfigError: A file or a row cannot be used.
        """
        return None if self.data_files is None else open_rows(self.data_files, parse)


class MixedDataSettings(DataSettings):
    """Settings of ``data`` for files beside sampled episodes."""

    data = fluent_method("Imitate the rows of data files, too.", prefix="data_")

    data_episodes_per_iteration: NonNegativeInt = setting(
        0, "Conversations of ``files`` that join each update; 0: none."
    )
    data_coeff: NonNegativeFloat | Schedule = setting(
        1.0,
        """Weight of their mean negative log-likelihood beside the loss of sampled
        tokens: a number, or pairs ``[[0, value], [update, value], ...]``, interpolated
        linearly.""",
    )

    @property
    def mixes_files(self) -> bool:
        """True if conversations of files join the updates."""
        return bool(self.data_episodes_per_iteration)

    def data_coeff_at(self, update: int) -> float:
        """Return the weight of the files' loss in an update, from 0."""
        return value_at(self.data_coeff, update)


def validate_mixed_data(config: GRPOConfig) -> None:
    """Check the settings of ``data`` of an algorithm that samples, and the files.

    Raises:
        ConfigError: If a setting is wrong or has no effect, or a row cannot be used.
    """
    if not config.mixes_files:
        why = "no rows join the updates. Set data.episodes_per_iteration."
        refuse_without_effect(config, ("data_files", "data_coeff"), why)
        return
    if config.stored_rows(parse_conversation) is None:
        raise ConfigError(
            f"data.episodes_per_iteration={config.data_episodes_per_iteration} needs "
            "data.files, with a conversation per row."
        )
    if DEFAULT_MODULE_ID not in config.trained_module_ids:
        raise ConfigError(
            f"data.files is imitated by the policy {DEFAULT_MODULE_ID!r}, which is not "
            "trained here. Name a trained policy so, or leave data out."
        )
