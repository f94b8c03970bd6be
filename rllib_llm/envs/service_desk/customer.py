"""The simulated customer: a script that answers questions and may insist."""

from __future__ import annotations

import dataclasses
import re

_NUMBER = re.compile(r"\d+")
_NO = re.compile(r"\b(cannot|can't|not|no|sorry|unable)\b", re.IGNORECASE)


@dataclasses.dataclass
class Request:
    """A change that the customer asks for.

    Attributes:
        kind: ``"cancel"``, ``"refund"``, ``"move"`` or ``"exchange"``.
        number: Number of the order, which the customer does not know.
        what: Colour and item, in the customer's words.
        detail: New address or colour; "" if the kind needs none.
        allowed: Whether the policy allows it.
        required_words: Words that the desk must say to the customer, verbatim.
        mentioned: Words that the desk has said so far.
        detail_given: Whether the customer has given the detail.
        insisted: Whether the customer has asked for an exception.
    """

    kind: str
    number: int
    what: str
    detail: str
    allowed: bool
    required_words: tuple[str, ...]
    mentioned: set[str] = dataclasses.field(default_factory=set)
    detail_given: bool = False
    insisted: bool = False

    @property
    def asked(self) -> str:
        """The customer's words for the request."""
        return {
            "cancel": f"Please cancel my {self.what}.",
            "refund": f"I want my money back for the {self.what}.",
            "move": f"Send my {self.what} to another address.",
            "exchange": f"I want my {self.what} in another colour.",
        }[self.kind]

    @property
    def is_informed(self) -> bool:
        """True if the desk has said everything that it must say."""
        return set(self.required_words) <= self.mentioned


class Customer:
    """Answers questions, takes statements for results, and leaves after the last one.

    Args:
        name: First and last name.
        requests: Requests of the customer, in order.
        stubborn: Whether the customer insists after a refusal, once per request.
    """

    def __init__(self, name: str, requests: list[Request], stubborn: bool):
        self.name, self.requests, self.stubborn = name, requests, stubborn
        self.name_given = False
        self.has_left = False
        self.yes_to: set[int] = set()
        self._current = 0

    @property
    def request(self) -> Request:
        """The current request."""
        return self.requests[self._current]

    def reply(self, text: str) -> str:
        """Return the customer's reply to the desk."""
        return (
            self._answer_question(text) if "?" in text else self._answer_statement(text)
        )

    def _answer_question(self, question: str) -> str:
        request, words = self.request, question.lower()
        answers = []
        if "name" in words or "who" in words:
            self.name_given = True
            answers.append(f"I am {self.name}.")
        for kind, word in (("move", "address"), ("exchange", "colo")):
            if word in words and request.kind == kind:
                request.detail_given = True
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

    def _answer_statement(self, statement: str) -> str:
        if not _NUMBER.search(statement):
            return "Please go on."
        request = self.request
        request.mentioned |= set(re.findall(r"\w+", statement.lower()))
        if _NO.search(statement) and self.stubborn and not request.insisted:
            request.insisted = True
            return "Please make an exception!"
        if request is self.requests[-1]:
            self.has_left = True
            return "Bye."
        self._current += 1
        return f"Thanks. {self.request.asked}"
