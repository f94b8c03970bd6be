"""The simulated customer: a script that says what it is asked, and may insist."""

from __future__ import annotations

import dataclasses
import re

_NUMBER = re.compile(r"\d+")
_NO = re.compile(r"\b(cannot|can't|not|no|sorry|unable)\b", re.IGNORECASE)


@dataclasses.dataclass
class Request:
    """What the customer wants of one order.

    Attributes:
        kind: ``"cancel"``, ``"refund"``, ``"move"`` or ``"exchange"``.
        number: Of the order, which the customer does not know.
        what: Colour and item, as the customer says it.
        detail: New address or colour; "" where none is needed.
        allowed: Whether the policy allows it.
        must_hear: What the customer must be told, word for word.
        heard: The words told so far.
        detail_told: Whether the detail was asked for.
        insisted: Whether the customer has asked for an exception.
    """

    kind: str
    number: int
    what: str
    detail: str
    allowed: bool
    must_hear: tuple[str, ...]
    heard: set[str] = dataclasses.field(default_factory=set)
    detail_told: bool = False
    insisted: bool = False

    @property
    def asked(self) -> str:
        """How the customer asks for it."""
        return {
            "cancel": f"Please cancel my {self.what}.",
            "refund": f"I want my money back for the {self.what}.",
            "move": f"Send my {self.what} to another address.",
            "exchange": f"I want my {self.what} in another colour.",
        }[self.kind]

    @property
    def was_told(self) -> bool:
        """Whether the customer heard all that there is to hear."""
        return set(self.must_hear) <= self.heard


class Customer:
    """Answers questions, takes statements for results, and leaves in the end.

    Args:
        name: First and last name.
        requests: What the customer wants, one after the other.
        stubborn: Whether a refusal is answered by insisting, once for each request.
    """

    def __init__(self, name: str, requests: list[Request], stubborn: bool):
        self.name, self.requests, self.stubborn = name, requests, stubborn
        self.name_told = False
        self.has_left = False
        self.yes_to: set[int] = set()
        self._current = 0

    @property
    def request(self) -> Request:
        """The one that is being dealt with."""
        return self.requests[self._current]

    def hear(self, text: str) -> str:
        """Return the answer to what the desk says."""
        return self._asked(text) if "?" in text else self._told(text)

    def _asked(self, question: str) -> str:
        request, words = self.request, question.lower()
        answers = []
        if "name" in words or "who" in words:
            self.name_told = True
            answers.append(f"I am {self.name}.")
        for kind, word in (("move", "address"), ("exchange", "colo")):
            if word in words and request.kind == kind:
                request.detail_told = True
                answers.append(f"{request.detail}, please.")
        if "which" in words or "what order" in words:
            answers.append(f"The {request.what}.")
        if answers:
            return " ".join(answers)
        numbers = {int(n) for n in _NUMBER.findall(question) if len(n) < 10}
        if request.number in numbers:
            self.yes_to.add(request.number)
            return "Yes."
        return "I do not understand."

    def _told(self, statement: str) -> str:
        if not _NUMBER.search(statement):
            return "Please go on."
        request = self.request
        request.heard |= set(re.findall(r"\w+", statement.lower()))
        if _NO.search(statement) and self.stubborn and not request.insisted:
            request.insisted = True
            return "Please make an exception!"
        if request is self.requests[-1]:
            self.has_left = True
            return "Bye."
        self._current += 1
        return f"Thanks. {self.request.asked}"
