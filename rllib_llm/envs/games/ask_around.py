"""Ask around: an asker looks for a thing of which one of several people knows."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from rllib_llm.data.added_texts import with_texts
from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv, Outcome
from rllib_llm.envs.parsing import last_match, require_float, require_int
from rllib_llm.envs.registry import register_text_env

ASKER = "asker_0"
PEOPLE = ("ann_0", "bob_0", "cid_0", "dan_0")
THINGS = ("mug", "hat", "key", "map", "pen")
PLACES = ("attic", "cellar", "hall", "porch", "shed")
UNKNOWN = "?"

Action = tuple[str, str]  # "ask" and an AgentID, or "tell" and a place


@register_text_env("ask_around-v0")
class AskAround(MultiAgentTextEnv):
    """Find out where a thing is by asking people. Return 1 to all who took part.

    Each thing has one owner, who alone knows where it is. Owners are the same in all
    episodes of a world, places are drawn anew in each. The asker writes what it lacks
    and whom it asks, ``mug=? ask bob``, and at last the place, ``mug=attic``. A person
    joins when it is asked and reads what it knows. Episodes of both splits are drawn
    alike. Private facts and the unknown that is written down are after iAgents
    (arXiv:2406.14928), of which only a summary was read.
    """

    invalid_action = "end"
    max_turns = 16
    format_hint = "Please write e.g. 'mug=? ask bob' or 'mug=attic'."
    _place = re.compile(rf"\b({'|'.join(THINGS)})=({'|'.join(PLACES)}\b|\?)")
    _asks = re.compile(
        rf"\b({'|'.join(THINGS)})=(?:({'|'.join(PLACES)})\b|\? ask ([a-z]+)\b)"
    )

    def __init__(self, env_config: dict[str, Any] | None = None):
        super().__init__(env_config)
        self.late_agents = tuple(self.possible_agents[1:])

    def agent_names(self, people: int = 4, **_: Any) -> list[str]:
        """Return the asker and so many people."""
        return [ASKER, *PEOPLE[: require_int("people", people, 2, len(PEOPLE))]]

    def start(
        self,
        rng: np.random.Generator,
        people: int = 4,
        things: int = 4,
        questions: int = 2,
        world: int | None = None,
        shown: float = 1.0,
    ) -> None:
        """Draw the thing, its owner, and where things are.

        Args:
            rng: Generator of the instance.
            people: Number of people, from 2 to 4.
            things: Number of things, from 2 to 5, divided evenly among the people.
            questions: Most questions; one more ends the game, from 1 to 4.
            world: Seed of the owners, >= 0; None: every episode has owners of its own.
            shown: Probability that the asker's first message has what the owner said
                about the thing when it was at another place, in the form in which a run
                adds texts, in [0, 1].
        """
        self.most = require_int("questions", questions, 1, 4)
        names = THINGS[: require_int("things", things, 2, len(THINGS))]
        of_world = rng
        if world is not None:
            of_world = np.random.default_rng(require_int("world", world, 0, 2**31 - 1))
        order = of_world.permutation(self.possible_agents[1:])
        owners = of_world.permutation(np.resize(order, len(names)))
        self.owners = dict(zip(names, map(str, owners), strict=True))
        places = rng.choice(PLACES, size=len(names))
        self.places = dict(zip(names, map(str, places), strict=True))
        self.thing = str(rng.choice(names))
        earlier = str(rng.choice([p for p in PLACES if p != self.places[self.thing]]))
        self.is_shown = bool(rng.random() < require_float("shown", shown, 0.0, 1.0))
        self.note = answer_text(self.owners[self.thing], self.thing, earlier)
        self.asked: list[str] = []
        self.answers: list[str] = []

    def next_agent(self) -> str:
        """Return the asker, or the person that it has asked."""
        return self.asked[-1] if len(self.asked) > len(self.answers) else ASKER

    def prompt_for(self, agent: str) -> str:
        """Return the task or the last answer; to a person what it knows."""
        if agent != self.next_agent():
            return ""
        if agent == ASKER:
            if self.answers:
                return answer_text(self.asked[-1], self.thing, self.answers[-1])
            return with_texts([self.note] * self.is_shown, f"Find: {self.thing}.")
        facts = [f"{t}={p}" for t, p in self.places.items() if self.owners[t] == agent]
        return f"You know {' '.join(facts) or 'nothing'}. Where is {self.thing}?"

    def parse(self, agent: str, text: str) -> Action | None:
        """Return whom the asker asks, or the place that an agent tells."""
        if agent != ASKER:
            match = last_match(self._place, text)
            is_right = match is not None and match[1] == self.thing
            return ("tell", match[2]) if match and is_right else None
        match = last_match(self._asks, text)
        if match is None or match[1] != self.thing:
            return None
        if match[2]:
            return "tell", match[2]
        person = f"{match[3]}_0"
        return ("ask", person) if person in self.late_agents else None

    def apply(self, agent: str, action: Action) -> Outcome | None:
        """Pass a question or an answer on, or compare the place."""
        kind, word = action
        if agent != ASKER:
            self.answers.append(word)
            return None
        if kind == "ask" and len(self.asked) < self.most:
            self.asked.append(word)
            if word not in self.agents:
                self.join(word)
            return None
        is_right = word == self.places[self.thing]
        return Outcome(
            dict.fromkeys(self.agents, float(is_right)),
            terminated=True,
            success=is_right,
            metrics={"questions": float(len(self.asked))},
        )

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Ask the owner if a note names it, else anyone new; tell what is known."""
        if agent != ASKER:
            knows = self.owners[self.thing] == agent
            return f"{self.thing}={self.places[self.thing] if knows else UNKNOWN}"
        places = [place for place in self.answers if place != UNKNOWN]
        if places:
            return f"{self.thing}={places[-1]}"
        if len(self.asked) == self.most:
            return f"{self.thing}={rng.choice(PLACES)}"
        person = self.owners[self.thing]
        if not self.is_shown or person in self.asked:
            left = [p for p in self.late_agents if p not in self.asked]
            person = str(rng.choice(left or self.late_agents))
        return question_text(self.thing, person)

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Ask anyone, or tell any place."""
        if agent == ASKER and rng.random() < 0.5:
            return question_text(self.thing, str(rng.choice(self.late_agents)))
        return f"{self.thing}={rng.choice(PLACES)}"


def answer_text(person: str, thing: str, place: str) -> str:
    """Return what the asker reads of an answer, e.g. ``"bob says mug=attic."``."""
    return f"{person.removesuffix('_0')} says {thing}={place}."


def question_text(thing: str, person: str) -> str:
    """Return a question, e.g. ``"mug=? ask bob"``."""
    return f"{thing}={UNKNOWN} ask {person.removesuffix('_0')}"
