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
    question, the memory and the next part, so the earlier ones may be forgotten.
    Entities that questions of the test split begin with begin none of the training
    split.
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
            rng: Decides both.
            parts: Parts of the document, in [1, 64].
            sentences: Sentences of each part, in [1, 64].
            hops: Facts that the question goes over, in [1, 4].
            distance: Parts from one of them to the next in the document, at least.
            order: "forward", as they are needed, or "any".
            memory_words: Longest memory, in [1, 1000]; what is beyond is cut off.
            repeat: Whether each message repeats the question and the memory.
            world: Seed of the facts, >= 0.

        Raises:
            ConfigError: If the facts do not fit, or the turns do not suffice.
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
        """Read the last memory or, after the last part, the last answer."""
        match = last_match(self._pattern, completion)
        wanted = "memory" if self.read < len(self.parts) else "answer"
        if match is None or match.group(1) != wanted:
            return None
        return match.group(2).strip() or None

    def reply(self, action: str) -> TurnResult:
        """Keep the memory and show what follows, or judge the answer."""
        if self.read < len(self.parts):
            self.memory = " ".join(action.split()[: self.memory_words])
            self.read += 1
            return TurnResult(self._message(), success=False)
        is_right = action.strip(" .").lower() == self.chain[-1].value.lower()
        said = "Correct!" if is_right else "That is wrong."
        return TurnResult(
            said,
            float(is_right),
            terminated=True,
            success=is_right,
            metrics={"kept": len(self._kept()) / len(self.chain)},
        )

    def more_info(self) -> dict[str, Any]:
        """Return what was needed, and which of it the memory holds."""
        return {
            "gold_answers": [self.chain[-1].value],
            "gold_documents": [fact.text for fact in self.chain],
            "documents": self._kept(),
        }

    def expert_action(self, rng: np.random.Generator) -> str:
        """Keep the needed facts that were read, then answer."""
        if self.read == len(self.parts):
            return f"<answer>{self.chain[-1].value}</answer>"
        shown = " ".join(self.parts[: self.read + 1])
        needed = [fact.text for fact in self.chain if fact.text in shown]
        return f"<memory>{' '.join(needed) or 'nothing'}</memory>"

    def random_action(self, rng: np.random.Generator) -> str:
        """Keep any fact, or answer with the value of one."""
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
        """Return the needed facts of which the memory names both ends."""
        words = {word.strip(".,;:") for word in self.memory.split()}
        return [f.text for f in self.chain if {f.entity, f.value} <= words]

    def _check_room(self, parts: int, hops: int, distance: int) -> None:
        if (hops - 1) * distance >= parts:
            raise ConfigError(
                f"parts={parts} is too few for hops={hops} facts, each in a part at "
                f"least distance={distance} after the one before. Give at least "
                f"{(hops - 1) * distance + 1} parts."
            )
        if parts + 1 > self.max_turns:
            raise ConfigError(
                f"parts={parts} and an answer need {parts + 1} turns, but max_turns="
                f"{self.max_turns}. Raise max_turns in env_config."
            )

    def _draw(self, rng: np.random.Generator, hops: int) -> list[facts.Fact]:
        """Draw a chain of different facts that begins with an entity of the split."""
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
        """Return the parts: needed facts, others, and then sentences on cities."""
        hops = len(self.chain)
        # Any gaps of at least ``distance``: draw without them, then widen.
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
