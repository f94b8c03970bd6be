"""Read a long document part by part, keep a short memory, answer at the end."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs import facts
from rllib_llm.envs.parsing import last_match, require_bool, require_choice, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.search_qa_geography import geography
from rllib_llm.envs.text_env import TextEnv, in_split
from rllib_llm.errors import ConfigError


@register_text_env("long_document-v0")
class LongDocument(TextEnv):
    """Rewrite a memory after each part of a document, then answer. Return 1 if right.

    The setting of MemAgent (Yu et al. 2025, arXiv:2507.02259): each message shows the
    question, the memory and the next part, so that earlier messages can be dropped.
    Questions of the two splits start at different entities.
    """

    max_turns = 12
    format_hint = (
        "Use <memory>words</memory> for a part, <answer>name</answer> after the last."
    )
    _pattern = re.compile(r"<(memory|answer)>([^<]*)</\1>")

    def start(
        self,
        rng: np.random.Generator,
        parts: int = 3,
        sentences: int = 4,
        hops: int = 1,
        distance: int = 1,
        order: str = "forward",
        memory_words: int = 32,
        repeat: bool = True,
        world: int = 0,
    ) -> str:
        """Write a document and draw a question about it.

        Args:
            rng: Generator of both.
            parts: Number of parts, in [1, 64].
            sentences: Number of sentences per part, in [1, 64].
            hops: Number of facts that the question needs, in [1, 4].
            distance: Minimum number of parts from one of these facts to the next.
            order: Order of these facts: "forward", as they are needed, or "any".
            memory_words: Maximum length of the memory, in words, in [1, 1000]; the
                rest is cut off.
            repeat: Whether each message repeats the question and the memory.
            world: Seed of the facts, >= 0.

        Raises:
            ConfigError: If the facts do not fit, or ``max_turns`` is too small.
        """
        require_int("parts", parts, 1, 64)
        require_int("sentences", sentences, 1, 64)
        require_int("hops", hops, 1, 4)
        require_int("distance", distance, 1, 64)
        require_choice("order", order, ("forward", "any"))
        self.memory_words = require_int("memory_words", memory_words, 1, 1000)
        self.repeats = require_bool("repeat", repeat)
        self.world = facts.world(require_int("world", world, 0, 2**31 - 1))
        self._check_room(parts, hops, distance)
        self.chain = self._draw(rng, hops)
        self.parts = self._write(rng, parts, sentences, distance, order)
        self.memory, self.read = "", 0
        return self._message()

    def parse(self, completion: str) -> str | None:
        """Return the last memory or, after the last part, the last answer."""
        match = last_match(self._pattern, completion)
        wanted = "memory" if self.read < len(self.parts) else "answer"
        if match is None or match.group(1) != wanted:
            return None
        return match.group(2).strip() or None

    def reply(self, action: str) -> TurnResult:
        """Store the memory and show the next part, or rate the answer."""
        if self.read < len(self.parts):
            self.memory = " ".join(action.split()[: self.memory_words])
            self.read += 1
            return TurnResult(self._message(), success=False)
        is_right = action.strip(" .").lower() == self.chain[-1].value.lower()
        text = "Correct!" if is_right else "That is wrong."
        return TurnResult(
            text,
            float(is_right),
            terminated=True,
            success=is_right,
            metrics={"kept": len(self._kept()) / len(self.chain)},
        )

    def more_info(self) -> dict[str, Any]:
        """Return the facts that the question needs, and those in the memory."""
        return {
            "gold_answers": [self.chain[-1].value],
            "gold_documents": [fact.text for fact in self.chain],
            "documents": self._kept(),
        }

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the needed facts read so far, then the answer."""
        if self.read == len(self.parts):
            return f"<answer>{self.chain[-1].value}</answer>"
        shown = " ".join(self.parts[: self.read + 1])
        needed = [fact.text for fact in self.chain if fact.text in shown]
        return f"<memory>{' '.join(needed) or 'nothing'}</memory>"

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any fact, or the value of one as the answer."""
        every = list(self.world.facts.values())
        fact = every[int(rng.integers(len(every)))]
        if self.read == len(self.parts):
            return f"<answer>{fact.value}</answer>"
        return f"<memory>{fact.text}</memory>"

    def _message(self) -> str:
        lines = []
        if self.repeats or not self.read:
            lines.append(facts.question(self.chain))
        if self.repeats and self.read:
            lines.append(f"Memory: {self.memory}")
        if self.read < len(self.parts):
            lines.append(
                f"Part {self.read + 1} of {len(self.parts)}: {self.parts[self.read]}"
            )
        else:
            lines.append("That was all. Answer.")
        return "\n".join(lines)

    def _kept(self) -> list[str]:
        """Return the needed facts whose entity and value are both in the memory."""
        words = {word.strip(".,;:") for word in self.memory.split()}
        return [f.text for f in self.chain if {f.entity, f.value} <= words]

    def _check_room(self, parts: int, hops: int, distance: int) -> None:
        if (hops - 1) * distance >= parts:
            raise ConfigError(
                f"parts={parts} is too small for hops={hops} facts, each in a part at "
                f"least distance={distance} after the one before. Set parts to "
                f"{(hops - 1) * distance + 1} or more."
            )
        if parts + 1 > self.max_turns:
            raise ConfigError(
                f"parts={parts} and an answer need {parts + 1} turns, but max_turns="
                f"{self.max_turns}. Raise max_turns in env_config."
            )

    def _draw(self, rng: np.random.Generator, hops: int) -> list[facts.Fact]:
        """Draw a chain of distinct facts that starts at an entity of the split."""
        every = [e for entities in self.world.entities.values() for e in entities]
        while True:
            entity = every[int(rng.integers(len(every)))]
            chains = [c for c in self.world.chains(entity, hops) if len({*c}) == hops]
            if chains and in_split(entity, self.split):
                return chains[int(rng.integers(len(chains)))]

    def _write(
        self,
        rng: np.random.Generator,
        parts: int,
        sentences: int,
        distance: int,
        order: str,
    ) -> list[str]:
        """Return the parts, from needed facts, other facts, and passages on cities."""
        hops = len(self.chain)
        # Draw positions without the minimum gaps, then widen the gaps: uniform over
        # all valid positions, without rejection.
        spare = parts - (hops - 1) * (distance - 1)
        places = np.sort(rng.choice(spare, hops, replace=False))
        places += np.arange(hops) * (distance - 1)
        if order == "any":
            rng.shuffle(places)
        others = [f.text for f in self.world.facts.values() if f not in self.chain]
        rng.shuffle(others)
        missing = parts * sentences - hops - len(others)
        if missing > 0:
            cities = list(geography().country)
            for i in rng.choice(len(cities), missing, replace=False):
                others.append(geography().passages[cities[i]])
            rng.shuffle(others)
        written = []
        for part in range(parts):
            mine = [
                fact.text
                for fact, place in zip(self.chain, places, strict=True)
                if place == part
            ]
            mine += [others.pop() for _ in range(sentences - len(mine))]
            rng.shuffle(mine)
            written.append(" ".join(mine))
        return written
