"""Settings of ``data``: files in place of the expert or of sampled episodes."""

from __future__ import annotations

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)
from rllib_llm.offline.conversation_files import Parser
from rllib_llm.offline.row_file import RowFile, open_rows


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
