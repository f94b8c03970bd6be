"""A replay buffer of whole episodes: contents on disk, an index in memory."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any

import numpy as np

from rllib_llm import json_state
from rllib_llm.data.episode_data import num_tokens, task_of
from rllib_llm.data.episode_records import (
    episode_record,
    mean_advantage_size,
    recorded_episode,
)
from rllib_llm.seeding import stable_seed

DRAWS = ("uniform", "recency", "task_balanced", "priority")
_COPY_BYTES = 1 << 20


@dataclasses.dataclass
class StoredEpisode:
    """Index entry of an episode.

    Attributes:
        offset: Place of its line in the file.
        size: Bytes of the line.
        iteration: Iteration that sampled it.
        tokens: Tokens of its conversations.
        task: The task, equal for all rollouts of the same instance.
        priority: Mean magnitude of its advantages.
    """

    offset: int
    size: int
    iteration: int
    tokens: int
    task: str
    priority: float


class EpisodeStore:
    """The newest episodes of a run, up to a number of tokens.

    RLlib's EpisodeReplayBuffer cuts episodes into windows of time steps, which lose
    their advantages; here an episode stays whole. Each takes one line of a temporary
    file and about 100 bytes in memory.

    Args:
        capacity_tokens: Largest number of tokens; the oldest episodes leave first.
        max_age: Iterations after which an episode leaves; None: never.
        draw: How episodes are chosen: "uniform", "recency" (the newest),
            "task_balanced" (equally many of each task) or "priority" (with a
            probability proportional to ``priority ** alpha``).
        alpha: Exponent of priorities, >= 0 (Schaul et al. 2016, arXiv:1511.05952).
        seed: Determines what is drawn, together with the iteration.
    """

    def __init__(
        self,
        *,
        capacity_tokens: int,
        max_age: int | None = None,
        draw: str = "uniform",
        alpha: float = 1.0,
        seed: int = 0,
    ):
        self.capacity_tokens, self.max_age = capacity_tokens, max_age
        self.draw_by, self.alpha, self.seed = draw, alpha, seed
        self.entries: list[StoredEpisode] = []
        self._file = _new_file()
        self._end = 0

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.entries)

    @property
    def num_tokens(self) -> int:
        """Tokens of all episodes."""
        return sum(entry.tokens for entry in self.entries)

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return self._end

    def add(self, episodes: Iterable[Any], iteration: int) -> None:
        """Append episodes with advantages, and drop the oldest above the capacity."""
        for episode in episodes:
            line = json_state.dumps(episode_record(episode), "episode").encode() + b"\n"
            task = task_of(episode)
            options = json_state.dumps(task.options, "options")
            self.entries.append(
                StoredEpisode(
                    offset=self._append(line),
                    size=len(line),
                    iteration=iteration,
                    tokens=num_tokens(episode),
                    task=f"{task.seed} {options}",
                    priority=mean_advantage_size(episode),
                )
            )
        excess = self.num_tokens - self.capacity_tokens
        first = 0
        while excess > 0:
            excess -= self.entries[first].tokens
            first += 1
        self._keep(self.entries[first:])

    def expire(self, iteration: int) -> None:
        """Drop the episodes that are older than ``max_age``."""
        if self.max_age is not None:
            oldest = iteration - self.max_age
            self._keep([e for e in self.entries if e.iteration >= oldest])

    def draw(
        self, count: int, iteration: int, usable: Callable[[Any], bool] | None = None
    ) -> tuple[list[Any], list[int]]:
        """Return episodes without repetition, in the order in which they came.

        Args:
            count: Number of episodes; fewer if the store has fewer.
            iteration: The iteration that they are for.
            usable: Whether an episode can be used; others are replaced. It may change
                the episode.

        Returns:
            The episodes and the age of each in iterations.
        """
        chosen: list[tuple[int, Any]] = []
        for index in self._order(iteration):
            if len(chosen) == count:
                break
            episode = self._read(self.entries[index])
            if usable is None or usable(episode):
                chosen.append((index, episode))
        chosen.sort(key=lambda each: each[0])
        ages = [iteration - self.entries[index].iteration for index, _ in chosen]
        return [episode for _, episode in chosen], ages

    def _order(self, iteration: int) -> list[int]:
        """Return all entries, the first to be drawn first."""
        rng = np.random.default_rng(stable_seed(self.seed, "replay", iteration))
        order = rng.permutation(len(self.entries)).tolist()
        if self.draw_by == "recency":
            # Stable: the permutation decides within an iteration.
            return sorted(order, key=lambda i: -self.entries[i].iteration)
        if self.draw_by == "task_balanced":
            rounds: dict[str, int] = {}
            turn = {}
            for index in order:
                task = self.entries[index].task
                rounds[task] = turn[index] = rounds.get(task, -1) + 1
            return sorted(order, key=turn.__getitem__)
        if self.draw_by == "priority":
            sizes = np.array([e.priority for e in self.entries], np.float64)
            # Exponential clocks with these rates: the order of successive draws without
            # replacement. An episode of priority 0 comes last.
            with np.errstate(divide="ignore"):
                clocks = rng.exponential(size=len(sizes)) / sizes**self.alpha
            return np.argsort(clocks, kind="stable").tolist()
        return order

    # The file ------------------------------------------------------------------------

    def _append(self, line: bytes) -> int:
        offset = self._end
        self._file.seek(offset)
        self._file.write(line)
        self._end += len(line)
        return offset

    def _read(self, entry: StoredEpisode) -> Any:
        self._file.seek(entry.offset)
        return recorded_episode(json_state.loads(self._file.read(entry.size).decode()))

    def _keep(self, entries: list[StoredEpisode]) -> None:
        self.entries = entries
        live = sum(entry.size for entry in entries)
        # Rewritten when more than half of it is unused: each byte is moved at most
        # about once.
        if self._end > max(2 * live, _COPY_BYTES):
            self._rewrite()

    def _rewrite(self) -> None:
        old, self._end = self._file, 0
        self._file = _new_file()
        for entry in self.entries:
            old.seek(entry.offset)
            entry.offset = self._append(old.read(entry.size))
        old.close()

    # State ---------------------------------------------------------------------------

    def get_index(self) -> list[dict[str, Any]]:
        """Return the index, after unused bytes have been removed from the file."""
        self._rewrite()
        return [dataclasses.asdict(entry) for entry in self.entries]

    def set_index(self, index: Sequence[dict[str, Any]]) -> None:
        """Restore :meth:`get_index`'s result, before the file's content."""
        self.entries = [StoredEpisode(**entry) for entry in index]

    def write_lines(self, target: Any) -> None:
        """Copy the file into an open one, without holding it in memory."""
        self._file.seek(0)
        shutil.copyfileobj(self._file, target, _COPY_BYTES)

    def read_lines(self, source: Any) -> None:
        """Replace the file's content with that of an open one."""
        self._file.seek(0)
        self._file.truncate()
        shutil.copyfileobj(source, self._file, _COPY_BYTES)
        self._end = self._file.tell()


def _new_file() -> IO[bytes]:
    # Without a name: it disappears with the process, however that ends.
    return tempfile.TemporaryFile(prefix="rllib_llm_replay_")
