"""Settings of ``data``: files in place of the expert or of sampled episodes."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

from annotated_types import Interval
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_llm.algorithms.config.check_pictures import reads_text_alone
from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)
from rllib_llm.algorithms.config.rllib_kinds import Schedule
from rllib_llm.algorithms.config.schedules import value_at
from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import Parser, parse_row
from rllib_llm.offline.ray_data_rows import read_by_ray_data
from rllib_llm.offline.removed_texts import check_removed
from rllib_llm.offline.row_file import RowFile, RowsToCome, SharedRows, open_rows
from rllib_llm.offline.stage_files import PREFIX, paths_by_entry
from rllib_llm.schema import NonNegativeFloat, NonNegativeInt, PositiveFloat

if TYPE_CHECKING:
    from rllib_llm.algorithms.grpo.grpo import GRPOConfig
    from rllib_llm.types import LLMConfig

logger = logging.getLogger("rllib_llm")

# Returns have any sign; every number setting has a range.
Return = Annotated[float, Interval(ge=-1e6, le=1e6)]


class DataSettings(DeclaredSettings):
    """Settings of ``data``."""

    if TYPE_CHECKING:  # a state that LLMConfigMixin declares
        earlier_stages: dict[str, str | None]

    data = fluent_method("Train on the rows of data files.", prefix="data_")

    data_files: str | list[str] | None = setting(
        None,
        """Data files with one conversation or saved episode (SFT), or one preference
        pair (Pref, RewardModel) or labelled conversation (Pref), per row: paths,
        patterns with ``*``, ``hf://datasets/OWNER/NAME/FILE``, or ``stage:NAME`` for
        the episodes that an earlier stage saved. None: the expert's episodes (SFT), or
        sampled episodes.""",
    )

    data_shares: list[PositiveFloat] | None = setting(
        None,
        """Share of the rows that are read from each entry of ``files``, in their order,
        e.g. [0.2, 0.8]; they sum to 1. None: every row comes equally often.""",
    )
    data_min_return: Return | None = setting(
        None,
        "Smallest return of the saved episodes that are read; None: all are.",
    )

    data_remove: str | None = setting(
        None,
        """Regular expression of a text that is left out of the prompts, e.g. a hint
        that helped to write a reply. Such rows are rendered anew. None: all stay.""",
    )

    data_read_method: str | None = setting(
        None,
        """Function of ``ray.data`` that reads each entry of ``files``, e.g.
        ``read_parquet`` or ``read_json``, for what Ray Data reaches and a path does not
        (``s3://``, ``gs://``, tables); RLlib's ``input_read_method``. None: files are
        read without Ray Data.""",
    )
    data_read_method_kwargs: dict[str, Any] = setting(
        {}, "Other arguments of that function, e.g. ``filesystem`` or ``columns``."
    )

    def offline_data(
        self,
        *,
        input_: str | list[str],
        input_read_method: str = "read_parquet",
        input_read_method_kwargs: dict[str, Any] | None = None,
        **others: object,
    ) -> Any:
        """Set ``data.files`` and their reader by RLlib's words for offline data.

        Args:
            input_: Paths or URIs, for the reader.
            input_read_method: Function of ``ray.data``.
            input_read_method_kwargs: Its other arguments.
            **others: RLlib's other settings of offline data; none is supported.

        Raises:
            ConfigError: For other settings of RLlib's.
        """
        if others:
            raise ConfigError(
                f"offline_data({', '.join(others)}) would have no effect: rows become "
                "whole conversations or episodes, not batches of time steps. Use "
                "input_, input_read_method and input_read_method_kwargs, and to write "
                "episodes rollouts.save_episodes."
            )
        self.data(
            files=input_,
            read_method=input_read_method,
            read_method_kwargs=input_read_method_kwargs or {},
        )
        return self

    def stored_rows(self, parse: Parser) -> RowFile | SharedRows | None:
        """Return the rows of ``data_files``; None if there are no files.

        Raises:
            ConfigError: A file or a row cannot be used.
        """
        self._check_shares()
        if self.data_files is None:
            return None
        if self.data_remove is not None:
            check_removed(self.data_remove)
        entries = self._paths_by_entry()
        if entries is None:
            return RowsToCome()
        rows = self._opened(entries, parse)
        if self.data_remove is not None and not rows.has_removed:
            self._report_unmatched()
        config = cast("LLMConfig", self)
        if rows.has_pictures and reads_text_alone(config):
            raise ConfigError(
                f"data.files={self.data_files!r} have rows with pictures, but "
                f"language_model.model={config.lm_model!r} reads text alone. Use "
                "'tiny-vlm' or a vision-language model, or files without pictures."
            )
        return rows

    def _paths_by_entry(self) -> list[list[str]] | None:
        """Return the paths of each entry; None if a stage has not run yet."""
        assert self.data_files is not None
        method, kwargs = self.data_read_method, self.data_read_method_kwargs
        if method is None:
            if kwargs:
                raise ConfigError(
                    f"data.read_method_kwargs={kwargs!r} would have no effect: "
                    "data.read_method is None. Give the function, or leave it out."
                )
            return paths_by_entry(self.data_files, self.earlier_stages)
        files = self.data_files
        entries = [files] if isinstance(files, str) else files
        staged = [entry for entry in entries if entry.startswith(PREFIX)]
        if staged:
            raise ConfigError(
                f"data.read_method={method!r} does not read {staged[0]!r}: episodes of "
                "a stage are files of this run. Leave data.read_method out."
            )
        return [[read_by_ray_data(entry, method, kwargs)] for entry in entries]

    def _report_unmatched(self) -> None:
        """Refuse a pattern without a match; of a stage's episodes only warn.

        An earlier stage may have kept none that has the text.
        """
        problem = (
            f"data.remove={self.data_remove!r} matches no prompt in "
            f"data.files={self.data_files!r}."
        )
        files = self.data_files
        entries = [files] if isinstance(files, str) else files or []
        if not any(entry.startswith(PREFIX) for entry in entries):
            raise ConfigError(f"{problem} Correct it, or leave it out.")
        logger.warning("%s All prompts stay as they are.", problem)

    def _opened(
        self, entries: Sequence[Sequence[str]], parse: Parser
    ) -> RowFile | SharedRows:
        how = (parse, self.data_min_return, self.data_remove)
        if self.data_shares is None:
            return open_rows([path for paths in entries for path in paths], *how)
        parts = [open_rows(paths, *how) for paths in entries]
        return SharedRows(parts, self.data_shares)

    def _check_shares(self) -> None:
        shares, files = self.data_shares, self.data_files
        if files is None:
            for name in (
                "shares",
                "min_return",
                "remove",
                "read_method",
                "read_method_kwargs",
            ):
                given = getattr(self, f"data_{name}")
                if given not in (None, {}):
                    raise ConfigError(
                        f"data.{name}={given} would have no effect: data.files is "
                        "None. Give files, or leave it out."
                    )
            return
        if shares is None:
            return
        count = 1 if isinstance(files, str) else len(files)
        if len(shares) != count:
            raise ConfigError(
                f"data.shares={shares}: {len(shares)} shares for {count} entries of "
                "data.files. Give one for each."
            )
        if not math.isclose(sum(shares), 1.0, abs_tol=1e-6):
            raise ConfigError(
                f"data.shares={shares} must sum to 1, not {sum(shares):g}. Write "
                f"{[round(share / sum(shares), 3) for share in shares]}."
            )


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
        names = (
            "data_files",
            "data_coeff",
            "data_shares",
            "data_min_return",
            "data_remove",
            "data_read_method",
            "data_read_method_kwargs",
        )
        refuse_without_effect(config, names, why)
        return
    if config.stored_rows(parse_row) is None:
        raise ConfigError(
            f"data.episodes_per_iteration={config.data_episodes_per_iteration} needs "
            "data.files, with a conversation per row."
        )
    if DEFAULT_MODULE_ID not in config.trained_module_ids:
        raise ConfigError(
            f"data.files is imitated by the policy {DEFAULT_MODULE_ID!r}, which is not "
            "trained here. Name a trained policy so, or leave data out."
        )
