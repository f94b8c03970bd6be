"""Conversations of data files that join the updates of sampled episodes."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.utils.annotations import override

from rllib_llm.data.episode_data import FILE, episode_data
from rllib_llm.offline.conversation_files import parse_row
from rllib_llm.offline.row_file import RowFile
from rllib_llm.offline.stored_episodes import conversation_episode, units_of_rows
from rllib_llm.rllib_bases import RLlibAlgorithm

_NEXT_ROW = "llm_next_row"


class MixesFiles(RLlibAlgorithm):
    """Mixin of algorithms whose updates rows of files join.

    Put it before the Algorithm class in the bases.

    Attributes:
        next_row: Number of the next row in the endless sequence of the files' rows.
    """

    _rows: RowFile | None = None
    next_row: int = 0

    @override(Algorithm)
    def setup(self, config: Any) -> None:
        if config.mixes_files:
            self._rows = config.stored_rows(parse_row)
        super().setup(config)

    def with_stored(self, episodes: Any) -> list[Any]:
        """Return the episodes to train on, with conversations of files."""
        joined: list[Any] = super().with_stored(episodes)  # type: ignore[misc]
        if self._rows is None:
            return joined
        # A mixin: the Algorithm and the settings come with the other bases.
        algo: Any = self
        count = algo.config.data_episodes_per_iteration
        written = units_of_rows(
            algo, self._rows, conversation_episode, self.next_row, count
        )
        self.next_row += count
        for episode in written:
            episode_data(episode).source = FILE
        return [*joined, *written]

    def driver_state(self) -> dict[str, Any]:
        """Return the state of the driver, with the place in the files."""
        state: dict[str, Any] = super().driver_state()  # type: ignore[misc]
        return state if self._rows is None else {**state, _NEXT_ROW: self.next_row}

    def set_driver_state(self, state: dict[str, Any]) -> None:
        """Restore :meth:`driver_state`'s result."""
        super().set_driver_state(state)  # type: ignore[misc]
        self.next_row = state.get(_NEXT_ROW, 0)
