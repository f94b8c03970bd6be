"""Comparison of mathematical answers by their meaning, with math-verify.

math-verify parses LaTeX and numbers into SymPy, which may never terminate. It runs in
a separate process, which is killed at a time limit.
"""

from __future__ import annotations

import importlib.util
import json
from typing import Any

from rllib_llm.errors import MissingExtraError, RLlibLLMError
from rllib_llm.graders.line_worker import LineWorker

_MAX_CHARS = 2_000


class MathGraderError(RLlibLLMError):
    """The worker failed twice; the answer is neither right nor wrong."""


class MathGrader:
    """Decides whether two mathematical answers are equivalent.

    Uses one worker process, started at the first call and again after a time limit;
    threads queue for it. Pickling keeps the settings only.

    Args:
        timeout_s: Wall time of one comparison, > 0 s; beyond it the answer is wrong.

    Raises:
        MissingExtraError: Without math-verify (extra ``math``).
    """

    def __init__(self, timeout_s: float = 5.0):
        if not timeout_s > 0:
            raise ValueError(f"timeout_s={timeout_s} must be > 0 seconds.")
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtraError.for_extra("math-verify", "math")
        self.timeout_s = timeout_s
        self._worker = LineWorker("rllib_llm.graders.math_worker", MathGraderError)

    def match(self, given: str, gold: str) -> bool:
        r"""Return whether an answer is equivalent to the right one.

        Args:
            given: The model's answer: LaTeX between dollar signs or in ``\boxed``, or a
                plain number. Answers beyond 2,000 characters are wrong.
            gold: The right answer, in the same forms.

        Raises:
            ValueError: If math-verify cannot parse ``gold``.
            MathGraderError: If the worker failed twice.
        """
        if len(given) > _MAX_CHARS:
            return False
        reply = self._worker.ask(json.dumps([given, gold]), self.timeout_s)
        if reply is None:
            return False  # time limit
        if (is_equal := json.loads(reply)) is None:
            raise ValueError(
                f"math-verify cannot parse gold={gold!r}. Write it as LaTeX between "
                "dollar signs, or as a plain number."
            )
        return is_equal

    def close(self) -> None:
        """Stop the worker; the next call starts a new one."""
        self._worker.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return MathGrader, (self.timeout_s,)
