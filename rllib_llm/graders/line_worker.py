"""A process that answers lines with lines, and is killed when it takes too long.

For libraries that grade what a model wrote and may never come to an end. Their own
time limits use signals, which fail in the threads that environments run in.
"""

from __future__ import annotations

import select
import subprocess
import sys
import threading

from rllib_llm.errors import RLlibLLMError

_START_S = 120.0
_MEMORY_BYTES = 2 << 30


class LineWorker:
    """Runs ``python -m MODULE MEMORY_BYTES``, which says ``ready``, then answers.

    It is started at the first question, and again after a time limit; threads take
    turns.

    Args:
        module: Its ``main`` writes one line for each line it reads
            (:func:`serve` does).
        error: Raised when the worker does not start, or dies twice on one question.
    """

    def __init__(self, module: str, error: type[RLlibLLMError]):
        self._module = module
        self._error = error
        self._lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None

    def ask(self, question: str, timeout_s: float) -> str | None:
        """Return the answer to one line; None if it took longer than ``timeout_s``.

        Raises:
            RLlibLLMError: Of the class given, if the worker failed twice.
        """
        with self._lock:
            for _ in range(2):
                answer = self._ask(question, timeout_s)
                if answer != "":
                    return answer
        raise self._error(
            f"The worker {self._module} ended twice. See that the machine has memory "
            "left; its error stands above."
        )

    def close(self) -> None:
        """End the process; the next question starts it again."""
        with self._lock:
            self._stop()

    def _ask(self, question: str, timeout_s: float) -> str | None:
        """Return the worker's line; None after the time limit, "" if it died."""
        if self.process is None:
            self._start()
        try:
            self.process.stdin.write(question + "\n")
            self.process.stdin.flush()
            said = self._line(timeout_s)
        except BrokenPipeError:
            said = ""
        if not said:
            self._stop()
        return said

    def _line(self, patience_s: float) -> str | None:
        # The worker writes whole lines, one per question.
        ready = select.select([self.process.stdout], [], [], patience_s)[0]
        return self.process.stdout.readline() if ready else None

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", self._module, str(_MEMORY_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if self._line(_START_S) != "ready\n":
            self._stop()
            raise self._error(f"The worker {self._module} did not start.")

    def _stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        self.process = None
