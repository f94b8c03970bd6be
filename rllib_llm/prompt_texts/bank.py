"""A bank of texts: entries, operations on them, and retrieval by similarity."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rllib_llm.data.added_texts import HEADING, AddedText
from rllib_llm.retrieval.tfidf import TfIdf

Operation = Literal["add", "update", "delete", "noop"]


@dataclasses.dataclass(slots=True)
class Entry:
    """An entry of a bank.

    Attributes:
        number: Its number, from 1; none is used again.
        key: Text that observations are compared with.
        text: Text that agents read.
        scope: Entries are found in their scope alone; "": everywhere.
        reward: Mean return of the episode that wrote it, if that counts, and of those
            that read it.
        count: Number of these episodes.
        uses: Number of episodes that read it.
    """

    number: int
    key: str
    text: str
    scope: str = ""
    reward: float = 0.0
    count: int = 1
    uses: int = 0

    def count_return(self, episode_return: float) -> None:
        """Add an episode's return to the mean."""
        self.count += 1
        self.reward += (episode_return - self.reward) / self.count


@dataclasses.dataclass(frozen=True)
class Retrieval:
    """Settings of a search in a bank.

    Attributes:
        top_k: Most texts of an episode.
        least_similarity: Similarity above which an entry is a candidate.
        reward_weight: Weight of an entry's reward beside its similarity.
        candidates: Number of the best entries of which duplicates are dropped.
        duplicate: Similarity of two keys from which on they are duplicates; None: only
            equal texts are.
        heading: The line before the texts.
        agents: AgentIDs that read them; None: all.
    """

    top_k: int = 3
    least_similarity: float = 0.0
    reward_weight: float = 0.5
    candidates: int = 30
    duplicate: float | None = 0.95
    heading: str = HEADING
    agents: frozenset[str] | None = None


class RetrievalSource:
    """Base class of sources of texts that a search finds."""

    retrieval: Retrieval

    @property
    def heading(self) -> str:
        """The line before the texts."""
        return self.retrieval.heading

    @property
    def agents(self) -> frozenset[str] | None:
        """AgentIDs that read the texts; None: all."""
        return self.retrieval.agents

    @property
    def options(self) -> dict[str, Any]:
        """No options of the environment."""
        return {}


@dataclasses.dataclass(frozen=True)
class BankView(RetrievalSource):
    """The entries of a bank as they were when it was made; a TextSource.

    Attributes:
        entries: The entries of one scope.
        retrieval: Settings of the search.
    """

    entries: tuple[Entry, ...]
    retrieval: Retrieval

    @functools.cached_property
    def _index(self) -> TfIdf:
        return TfIdf([entry.key for entry in self.entries])

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields; the index is computed anew in each process."""
        return {"entries": self.entries, "retrieval": self.retrieval}

    def texts_for(self, observation: str) -> list[AddedText]:
        """Return the entries for an observation, best first.

        An entry's score is its similarity plus ``reward_weight`` times its reward; of
        equal ones the newest comes first. Of the ``candidates`` best entries one is
        dropped if a better one has a similar key or the same text; ``top_k`` of the
        others are returned.
        """
        if not self.entries:
            return []
        settings = self.retrieval
        similar = self._index.similarities(observation)
        rewards = np.array([entry.reward for entry in self.entries])
        scores = similar + settings.reward_weight * rewards
        numbers = np.array([entry.number for entry in self.entries])
        # Equal texts have equal cosines up to rounding.
        order = np.lexsort((-numbers, -np.round(scores, 9)))
        order = order[similar[order] > settings.least_similarity]
        kept: list[int] = []
        for index in order[: settings.candidates]:
            if not any(self._are_duplicates(index, other) for other in kept):
                kept.append(int(index))
        chosen = [self.entries[index] for index in kept[: settings.top_k]]
        return [AddedText(entry.number, entry.text) for entry in chosen]

    def _are_duplicates(self, first: int, second: int) -> bool:
        if self.entries[first].text == self.entries[second].text:
            return True
        least = self.retrieval.duplicate
        return least is not None and self._index.between(first, second) >= least


class Bank:
    """Texts that are added, replaced and deleted.

    Args:
        capacity: Most entries; the worst is deleted beyond it.
        similar: Similarity of keys from which on a new text concerns an entry; None:
            only an equal text does.
    """

    def __init__(self, capacity: int, similar: float | None):
        self.capacity, self.similar = capacity, similar
        self.entries: list[Entry] = []
        self._next = 1
        # Scope, key and text of the latest entries that were dropped.
        self._dropped = collections.deque[tuple[str, str, str]](maxlen=capacity)

    def write(
        self,
        key: str,
        text: str,
        episode_return: float,
        scope: str = "",
        *,
        counts: bool = True,
    ) -> Operation:
        """Add a text, or replace that of the entry with the most similar key.

        Args:
            key: First observation of the episode that writes.
            text: The text.
            episode_return: The episode's return.
            scope: Scope of the entry.
            counts: The return is one of the text: the episode did what the text says.

        Returns:
            "add" if no key is similar; "update" if the entry's text differs and its
            mean return is smaller; else "noop", as for a text that was dropped. The
            entry keeps its number.
        """
        if (scope, key, text) in self._dropped:
            return "noop"
        entry = self._concerned(key, text, scope)
        if entry is not None and entry.text == text:
            if counts:
                entry.count_return(episode_return)
            return "noop"
        operation: Operation = "update"
        if entry is None:
            entry, operation = self.add(key, text, episode_return, scope), "add"
        elif episode_return <= entry.reward:
            return "noop"
        else:
            self.update(entry.number, text, episode_return)
        if not counts:
            entry.reward, entry.count = 0.0, 0
        return operation

    def add(self, key: str, text: str, reward: float = 0.0, scope: str = "") -> Entry:
        """Add an entry; beyond the capacity, delete the worst of the others."""
        if len(self.entries) >= self.capacity:
            worst = min(self.entries, key=lambda e: (e.reward, e.uses, e.number))
            self.entries.remove(worst)
        entry = Entry(self._next, key, text, scope, reward)
        self.entries.append(entry)
        self._next += 1
        return entry

    def update(self, number: int, text: str, reward: float = 0.0) -> None:
        """Replace the text of an entry; its statistics begin anew."""
        entry = self.find(number)
        assert entry is not None, f"The bank has no entry {number}."
        entry.text, entry.reward, entry.count, entry.uses = text, reward, 1, 0

    def delete(self, number: int) -> None:
        """Delete an entry."""
        self.entries = [entry for entry in self.entries if entry.number != number]

    def drop(self, below: float, after: int) -> int:
        """Delete the entries that ``after`` episodes or more read in vain.

        The latest ``capacity`` of their texts are not added again for the same key.

        Args:
            below: Mean return below which an entry is deleted.
            after: Fewest episodes that have read it.

        Returns:
            The number of deleted entries.
        """
        bad = [e for e in self.entries if e.uses >= after and e.reward < below]
        for entry in bad:
            self.delete(entry.number)
            self._dropped.append((entry.scope, entry.key, entry.text))
        return len(bad)

    def find(self, number: int) -> Entry | None:
        """Return an entry; None if there is none of that number."""
        return next((e for e in self.entries if e.number == number), None)

    def read(self, numbers: Sequence[int], episode_return: float) -> None:
        """Count an episode that has read these entries, and its return."""
        for number in numbers:
            entry = self.find(number)
            if entry is not None:  # it may have been deleted since
                entry.uses += 1
                entry.count_return(episode_return)

    def view(self, retrieval: Retrieval, scope: str = "") -> BankView:
        """Return a copy of the entries of a scope for a search."""
        entries = [e for e in self.entries if e.scope == scope]
        return BankView(tuple(map(dataclasses.replace, entries)), retrieval)

    def _concerned(self, key: str, text: str, scope: str) -> Entry | None:
        """Return the entry that a new text concerns; None: it is new."""
        entries = [e for e in self.entries if e.scope == scope]
        if self.similar is None:
            return next((e for e in entries if e.text == text), None)
        if not entries:
            return None
        similarities = TfIdf([entry.key for entry in entries]).similarities(key)
        best = int(np.argmax(similarities))
        # Cosines are subject to rounding: an equal key must count as similar.
        return entries[best] if similarities[best] >= self.similar - 1e-9 else None

    def get_state(self) -> dict[str, Any]:
        """Return the entries, and the texts that were dropped."""
        entries = [dataclasses.asdict(entry) for entry in self.entries]
        dropped = [list(each) for each in self._dropped]
        return {"entries": entries, "next": self._next, "dropped": dropped}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`get_state`."""
        self.entries = [Entry(**entry) for entry in state["entries"]]
        self._next = int(state["next"])
        self._dropped.clear()
        self._dropped.extend((s, k, t) for s, k, t in state.get("dropped", ()))
