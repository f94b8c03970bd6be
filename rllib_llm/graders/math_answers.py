"""Comparing mathematical answers by their meaning, with math-verify.

It reads LaTeX and numbers into SymPy and may take forever doing so. It runs in a
process of its own, which is killed when it takes too long.
"""

from __future__ import annotations

import importlib.util
import json
from typing import Any

from rllib_llm.errors import MissingExtraError, RLlibLLMError
from rllib_llm.graders.line_worker import LineWorker

_MAX_CHARS = 2_000


class MathGraderError(RLlibLLMError):
    """The worker failed twice; nothing is said of the answer."""


class MathGrader:
    """Says whether two mathematical answers mean the same.

    One worker process, started at the first call and again after a time limit; threads
    take turns. It pickles as its settings.

    Args:
        timeout_s: Wall time of one comparison, > 0 s; what takes longer is not equal.

    Raises:
        MissingExtraError: Without math-verify (extra ``math``).
    """

    def __init__(self, timeout_s: float = 5.0):
        if not timeout_s > 0:
            raise ValueError(f"timeout_s={timeout_s} must be > 0, in seconds.")
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtraError.for_extra("math-verify", "math")
        self.timeout_s = timeout_s
        self._worker = LineWorker("rllib_llm.graders.math_worker", MathGraderError)

    def match(self, given: str, gold: str) -> bool:
        r"""Say whether an answer means the same as the right one.

        Args:
            given: The model's answer: LaTeX between dollar signs or in ``\boxed``, or a
                plain number. Beyond 2,000 characters it is wrong.
            gold: The right answer, in the same forms.

        Raises:
            ValueError: If ``gold`` cannot be read.
            MathGraderError: If the worker failed twice.
        """
        if len(given) > _MAX_CHARS:
            return False
        verdict = self._worker.ask(json.dumps([given, gold]), self.timeout_s)
        if verdict is None:
            return False  # took too long
        if (found := json.loads(verdict)) is None:
            raise ValueError(f"gold={gold!r} is no answer that math-verify reads.")
        return found

    def close(self) -> None:
        """End the worker; the next call starts it again."""
        self._worker.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return MathGrader, (self.timeout_s,)
