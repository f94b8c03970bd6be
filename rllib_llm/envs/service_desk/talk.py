"""``service_talk-v0``: the service desk whose customer is a language model."""

from __future__ import annotations

import copy
import re

import numpy as np

from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv, Outcome
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.service_desk.customer import Customer
from rllib_llm.envs.service_desk.env import ServiceDesk

DESK, CUSTOMER = "desk_0", "customer_0"
_MAX_CHARS = 200
_LEAVES = re.compile(r"\bbye\b", re.IGNORECASE)
_AGREES = re.compile(r"\byes\b", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,9}")


class SpokenCustomer(Customer):
    """A customer whose replies come from outside; what they contain is what is given.

    Attributes:
        words: The next reply.
    """

    words = ""

    def reply(self, text: str) -> str:
        """Return ``words`` as the reply to the desk, and note what they give away."""
        request, words = self.request, self.words
        is_question = "?" in text
        if not is_question:
            request.mentioned |= set(re.findall(r"\w+", text.lower()))
        self.name_given |= self.name in words
        request.detail_given |= bool(request.detail) and request.detail in words
        asked_about = {int(n) for n in _NUMBER.findall(text)}
        if is_question and request.number in asked_about and _AGREES.search(words):
            self.yes_to.add(request.number)
        request.insisted |= "exception" in words.lower()
        later = self.requests[self._current + 1 :]
        if later and later[0].asked in words:
            self._current += 1
        self.has_left = bool(_LEAVES.search(words))
        return words

    def scripted_reply(self, text: str) -> str:
        """Return the scripted customer's reply, without a change of state."""
        script = Customer(self.name, copy.deepcopy(self.requests), self.stubborn)
        script._current = self._current
        return script.reply(text)

    def card(self) -> str:
        """Return what the customer knows about itself, for its first turn."""
        wishes = " ".join(
            f"{r.asked}{f' Say {r.detail} if you are asked.' if r.detail else ''}"
            for r in self.requests
        )
        insists = " Insist once after a refusal." if self.stubborn else ""
        return f"You are {self.name}. {wishes}{insists} Say Bye after the last result."


@register_text_env("service_talk-v0")
class ServiceTalk(MultiAgentTextEnv):
    """Serve a customer that a language model plays. Return 1 for the desk as there.

    Tools, policy, tasks and reward are those of ``service_desk-v0``. The customer reads
    who it is and what it wants, and leaves by saying "Bye". It has no reward, as the
    simulated users of tau-bench (Yao et al. 2024, arXiv:2406.12045); train the desk
    alone by ``policies_to_train``.
    """

    possible_agents = [DESK, CUSTOMER]
    max_turns = 24
    format_hint = ServiceDesk.format_hint

    def start(
        self,
        rng: np.random.Generator,
        rules: int = 2,
        requests: int = 1,
        orders: int = 2,
        forbidden: float = 0.4,
        stubborn: float = 0.5,
        short: bool = False,
    ) -> None:
        """Draw orders and a customer.

        Args:
            rng: Generator of everything.
            rules: As those of ``service_desk-v0``, all of them.
            requests: See there.
            orders: See there.
            forbidden: See there.
            stubborn: See there.
            short: See there.
        """
        options = {
            **{"rules": rules, "requests": requests, "orders": orders},
            **{"forbidden": forbidden, "stubborn": stubborn, "short": short},
        }
        # The limit on turns is that of this game.
        self.inner = ServiceDesk({**options, "max_turns": 10 * self.max_turns})
        self.seen, _ = self.inner.reset(
            seed=int(rng.integers(2**31)), options={"split": self.split}
        )
        script = self.inner.customer
        self.customer = SpokenCustomer(script.name, script.requests, script.stubborn)
        self.inner.customer = self.customer
        self.statement: str | None = None  # of the desk, not answered yet
        self.has_card = False

    def next_agent(self) -> str:
        """Return the customer after words to it, else the desk."""
        return DESK if self.statement is None else CUSTOMER

    def prompt_for(self, agent: str) -> str:
        """Return what the tools or the customer replied, or the desk's words."""
        if agent == DESK:
            return self.seen
        if self.statement is None:
            return ""
        if self.has_card:
            return self.statement
        self.has_card = True
        return f"{self.customer.card()}\nDesk: {self.statement}"

    def parse(self, agent: str, text: str) -> tuple[str, str] | None:
        """Return "tools" or "words", and the text; that of the customer is cut."""
        if agent == CUSTOMER:
            words = text.strip()[:_MAX_CHARS]
            return ("words", words) if words else None
        action = self.inner.parse(text)
        if action is None:
            return None
        return ("words", action) if isinstance(action, str) else ("tools", text)

    def apply(self, agent: str, action: tuple[str, str]) -> Outcome | None:
        """Call tools, or pass words on."""
        kind, text = action
        if kind == "tools":
            return self._play(text)
        if agent == DESK:
            self.statement = text
            return None
        self.customer.words, statement = text, str(self.statement)
        self.statement = None
        return self._play(statement)

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return the expert's turn of ``service_desk-v0``, or the script's reply."""
        if agent == CUSTOMER:
            return self.customer.scripted_reply(str(self.statement))
        return self.inner.expert_action(rng)

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return any turn of the desk, or any of the customer's usual words."""
        if agent == DESK:
            return self.inner.random_action(rng)
        usual = ["Please go on.", "Bye.", "Yes.", f"I am {self.customer.name}."]
        return str(rng.choice(usual))

    def _play(self, text: str) -> Outcome | None:
        """Play a turn of the desk in the inner environment."""
        self.seen, reward, ended, cut, info = self.inner.step(text)
        if not (ended or cut):
            return None
        metrics = {"violations": float(len(info["violations"]))}
        return Outcome(
            {DESK: float(reward)},
            terminated=True,
            success=bool(reward),
            metrics=metrics,
        )
