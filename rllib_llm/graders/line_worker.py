"""A process that answers lines with lines, and is killed when it takes too long.

For libraries that grade what a model wrote and may never come to an end. Their own
time limits use signals, which fail in the threads that environments run in.
"""

from __future__ import annotations

import contextlib
import logging
import select
import signal
import subprocess
import sys
import threading

from rllib_llm.errors import RLlibLLMError

logger = logging.getLogger(__name__)

_START_S = 120.0
_MEMORY_BYTES = 2 << 30
# Signals of a crash, e.g. of a stack overflow. Others come from outside: the kernel's
# out-of-memory killer sends SIGKILL.
_CRASHES = frozenset(
    -number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE)
)


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
        """Return the answer to one line.

        Args:
            question: One line of text.
            timeout_s: Wall time that the answer may take, in seconds; waiting for
                other threads and starting the worker do not count.

        Returns:
            The worker's line; None if it took longer than ``timeout_s``, or if the
            question made the worker crash twice.

        Raises:
            RLlibLLMError: Of the class given, if the worker failed twice otherwise.
        """
        ends = []
        with self._lock:
            for _ in range(2):
                answer, end = self._ask(question, timeout_s)
                if answer != "":
                    return answer
                ends.append(end)
        if _CRASHES.issuperset(ends):
            logger.warning(
                "A text that made %s crash twice (%s) counts as wrong: %.200r",
                self._module,
                signal.Signals(-ends[0]).name,
                question,
            )
            return None
        raise self._error(
            f"The worker {self._module} ended twice. See that the machine has memory "
            "left; its error stands above."
        )

    def close(self) -> None:
        """End the process; the next question starts it again."""
        with self._lock:
            self._stop()

    def _ask(self, question: str, timeout_s: float) -> tuple[str | None, int | None]:
        """Return the worker's line, and its exit status if it ended.

        The line is None after the time limit and "" if the worker ended by itself.
        """
        if self.process is None:
            self._start()
        try:
            self.process.stdin.write(question + "\n")
            self.process.stdin.flush()
            said = self._line(timeout_s)
        except BrokenPipeError:
            said = ""
        except BaseException:
            self._stop()  # lest the next question read the answer to this one
            raise
        return said, None if said else self._stop(grace_s=1.0 if said == "" else 0.0)

    def _line(self, patience_s: float) -> str | None:
        # The worker writes whole lines, one per question. Unlike select, poll takes
        # any number of open files.
        poll = select.poll()
        poll.register(self.process.stdout, select.POLLIN)
        ready = poll.poll(patience_s * 1000.0)
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

    def _stop(self, grace_s: float = 0.0) -> int | None:
        """End the process after ``grace_s`` and return its exit status."""
        process, self.process = self.process, None
        if process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        process.kill()
        process.communicate()
        return process.returncode
