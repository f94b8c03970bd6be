"""Comparing mathematical answers by their meaning, with math-verify.

It reads LaTeX and numbers into SymPy and may take forever doing so. It runs in a
process of its own, which is killed when it takes too long; its own time limits use
signals, which fail in the threads that environments run in.
"""

from __future__ import annotations

import importlib.util
import json
import select
import subprocess
import sys
import threading
from typing import Any

from rllib_llm.errors import MissingExtraError, RLlibLLMError

_START_S = 120.0
_MAX_CHARS = 2_000
_MEMORY_BYTES = 2 << 30


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
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

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
        with self._lock:
            for _ in range(2):
                verdict = self._ask(json.dumps([given, gold]))
                if verdict != "":
                    break
            else:
                raise MathGraderError(
                    "The worker of math-verify ended twice. See that the machine has "
                    "memory left; its error stands above."
                )
        if verdict is None:
            return False  # took too long
        if (found := json.loads(verdict)) is None:
            raise ValueError(f"gold={gold!r} is no answer that math-verify reads.")
        return found

    def close(self) -> None:
        """End the worker; the next call starts it again."""
        with self._lock:
            self._stop()

    def _ask(self, line: str) -> str | None:
        """Return the worker's line; None after the time limit, "" if it died."""
        if self._process is None:
            self._start()
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            said = self._line(self.timeout_s)
        except BrokenPipeError:
            said = ""
        if not said:
            self._stop()
        return said

    def _line(self, patience_s: float) -> str | None:
        # The worker writes whole lines, one per question.
        ready = select.select([self._process.stdout], [], [], patience_s)[0]
        return self._process.stdout.readline() if ready else None

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rllib_llm.graders.math_worker", str(_MEMORY_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if self._line(_START_S) != "ready\n":
            self._stop()
            raise MathGraderError("The worker of math-verify did not start.")

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None

    def __reduce__(self) -> tuple[Any, ...]:
        return MathGrader, (self.timeout_s,)
