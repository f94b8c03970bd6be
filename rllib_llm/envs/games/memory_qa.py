"""Memory QA: a manager keeps a memory of what it hears, an answerer reads it."""

from __future__ import annotations

import re

import numpy as np

from rllib_llm.data.text_operations import TextOperation, read_operations
from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv, Outcome
from rllib_llm.envs.parsing import last_match, require_bool, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import in_split

MANAGER, ANSWERER = "manager_0", "answerer_0"
PEOPLE = ("ann", "bob", "cleo", "dan", "eve")
THINGS = ("tea", "milk", "rice", "fish", "cake", "corn", "figs", "soup")
CHATTER = ("It rains.", "Good morning.", "The bus is late.")


def fact_text(person: str, thing: str) -> str:
    """Return the text of a fact, e.g. ``"ann likes tea."``."""
    return f"{person} likes {thing}."


@register_text_env("memory_qa-v0")
class MemoryQA(MultiAgentTextEnv):
    """Keep what may be asked in a memory of few texts; answer from it. Return 1 each.

    The manager hears one sentence a turn, facts, later changes of facts, and chatter,
    and answers with operations on the memory: ``ADD: text``, ``UPDATE 1: text``,
    ``DELETE 1`` or ``NOOP``. Then the answerer reads the memory and a question. Both
    get 1 if its answer is right. The task after Memory-R1 (arXiv:2508.19828), of which
    only a summary was read.
    """

    possible_agents = [MANAGER, ANSWERER]
    max_turns = 24
    format_hint = "Please answer with ADD: text, UPDATE 1: text, DELETE 1 or NOOP."
    _noop = re.compile(r"\bNOOP\b", re.IGNORECASE)
    _thing = re.compile(rf"\b({'|'.join(THINGS)})\b", re.IGNORECASE)

    def start(
        self,
        rng: np.random.Generator,
        facts: int = 2,
        changes: int = 1,
        chatter: int = 1,
        size: int = 3,
        held_out: bool = False,
    ) -> None:
        """Draw what is heard, and the question.

        Args:
            rng: Generator of the instance.
            facts: People of whom a fact is heard, from 1 to 5.
            changes: Number of facts that change, from 0 to ``facts``.
            chatter: Number of sentences that nobody asks about, from 0 to 3.
            size: Most texts of the memory, from 1 to 8; others are not added.
            held_out: Whether the hash of what is heard and of the question decides the
                split; otherwise both splits are drawn alike.
        """
        require_int("facts", facts, 1, len(PEOPLE))
        require_int("changes", changes, 0, facts)
        require_int("chatter", chatter, 0, len(CHATTER))
        self.size = require_int("size", size, 1, 8)
        require_bool("held_out", held_out)
        while True:
            self._draw(rng, facts, changes, chatter)
            key = f"{self.sentences} {self.person}"
            if not held_out or in_split(key, self.split):
                break
        self.memory: list[str] = []
        self.counts = {"add": 0, "update": 0, "delete": 0}

    def _draw(
        self, rng: np.random.Generator, facts: int, changes: int, chatter: int
    ) -> None:
        """Draw the sentences and the person of the question."""
        people = rng.permutation(PEOPLE)[:facts]
        things = rng.permutation(THINGS)
        first = [(str(p), str(t)) for p, t in zip(people, things, strict=False)]
        later = [(str(p), str(rng.choice(things[facts:]))) for p in people[:changes]]
        sentences: list[tuple[str, str] | str] = [*first, *later]
        for text in rng.permutation(CHATTER)[:chatter]:
            sentences.insert(int(rng.integers(len(sentences) + 1)), str(text))
        self.sentences, self.likes = sentences, dict([*first, *later])
        self.person = str(rng.choice(people))

    def next_agent(self) -> str:
        """Return the manager while there is something to hear."""
        return MANAGER if self.sentences else ANSWERER

    def prompt_for(self, agent: str) -> str:
        """Return the memory, and the next sentence or the question."""
        texts = [f"{i}. {text}" for i, text in enumerate(self.memory, 1)]
        memory = "\n".join(["Memory:", *(texts or ["empty"])])
        if agent == ANSWERER:
            return "" if self.sentences else f"{memory}\nWhat does {self.person} like?"
        return f"{memory}\nNew: {self._sentence()}" if self.sentences else ""

    def parse(self, agent: str, text: str) -> list[TextOperation] | str | None:
        """Return the manager's operations, or the answerer's thing."""
        if agent == ANSWERER:
            match = last_match(self._thing, text)
            return match.group(1).lower() if match else None
        operations = read_operations(text, len(self.memory))
        return operations if operations or self._noop.search(text) else None

    def apply(self, agent: str, action: list[TextOperation] | str) -> Outcome | None:
        """Change the memory, or grade the answer."""
        if isinstance(action, str):
            right = action == self.likes[self.person]
            return Outcome(
                {MANAGER: float(right), ANSWERER: float(right)},
                terminated=True,
                success=right,
                metrics={
                    "texts": float(len(self.memory)),
                    **{f"{kind}_count": float(n) for kind, n in self.counts.items()},
                },
            )
        self._change(action)
        del self.sentences[0]
        return None

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Add new facts, update changed ones, ignore chatter; answer from memory."""
        if agent == ANSWERER:
            matching = [t for t in self.memory if t.startswith(f"{self.person} ")]
            match = self._thing.search(matching[-1]) if matching else None
            return match.group(1) if match else str(rng.choice(THINGS))
        new = self.sentences[0]
        if isinstance(new, str):
            return "NOOP"
        text = fact_text(*new)
        for number, old in enumerate(self.memory, 1):
            if old.startswith(f"{new[0]} "):
                return f"UPDATE {number}: {text}"
        return f"ADD: {text}"

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return any operation on the sentence, or any thing."""
        if agent == ANSWERER:
            return str(rng.choice(THINGS))
        choices = ["NOOP", f"ADD: {self._sentence()}"]
        if self.memory:
            number = int(rng.integers(len(self.memory))) + 1
            choices += [f"UPDATE {number}: {self._sentence()}", f"DELETE {number}"]
        return str(rng.choice(choices))

    def _sentence(self) -> str:
        new = self.sentences[0]
        return new if isinstance(new, str) else fact_text(*new)

    def _change(self, operations: list[TextOperation]) -> None:
        """Apply operations, whose numbers are those of the memory before them."""
        texts: list[str | None] = list(self.memory)
        added: list[str] = []
        for operation in operations:
            if operation.kind == "add":
                added.append(operation.text)
            elif operation.kind == "update":
                texts[operation.number - 1] = operation.text
            else:
                texts[operation.number - 1] = None
            self.counts[operation.kind] += 1
        kept = [text for text in texts if text is not None]
        self.memory = [*kept, *added][: max(self.size, len(kept))]
