"""A worker process that answers lines with lines, within a time limit.

For libraries that grade model-written text and may never terminate. Their own time
limits use signals, which only work in the main thread; environments run in others.
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
# Signals of a crash, e.g. of a stack overflow. SIGKILL is not one of them: it comes
# from the kernel's out-of-memory killer, so the text is not to blame.
_CRASHES = frozenset(
    -number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE)
)


class LineWorker:
    """Runs ``python -m MODULE MEMORY_BYTES``, which prints ``ready``, then answers.

    The worker starts at the first question, and again after a time limit. Threads
    queue for it.

    Args:
        module: Module whose ``main`` writes one line for each line it reads, as
            :func:`serve` does.
        error: Raised if the worker does not start, or dies twice on one question.
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
            timeout_s: Wall time for the answer in seconds, without the wait for other
                threads and the start of the worker.

        Returns:
            The worker's line; None if it took longer than ``timeout_s``, or if the
            worker crashed twice on the question.

        Raises:
            RLlibLLMError: The given class, if the worker failed twice otherwise.
        """
        ends: list[int | None] = []
        with self._lock:
            for _ in range(2):
                answer, end = self._ask(question, timeout_s)
                if answer != "":
                    return answer
                ends.append(end)
        first = ends[0]
        if first is not None and _CRASHES.issuperset(ends):
            logger.warning(
                "%s crashed twice (%s) on this text, which counts as wrong: %.200r",
                self._module,
                signal.Signals(-first).name,
                question,
            )
            return None
        raise self._error(
            f"The worker {self._module} ended twice without an answer. Check that the "
            "machine has free memory, and see the worker's error above."
        )

    def close(self) -> None:
        """Stop the process; the next question starts a new one."""
        with self._lock:
            self._stop()

    def _ask(self, question: str, timeout_s: float) -> tuple[str | None, int | None]:
        """Return the worker's line, and its exit status if it ended.

        The line is None after the time limit and "" if the worker ended by itself.
        """
        process = self._start() if self.process is None else self.process
        assert process.stdin is not None  # a pipe
        try:
            process.stdin.write(question + "\n")
            process.stdin.flush()
            reply = _line(process, timeout_s)
        except BrokenPipeError:
            reply = ""
        except BaseException:
            self._stop()  # otherwise the next question would read this answer
            raise
        return reply, None if reply else self._stop(grace_s=1.0 if reply == "" else 0.0)

    def _start(self) -> subprocess.Popen[str]:
        self.process = process = subprocess.Popen(
            [sys.executable, "-m", self._module, str(_MEMORY_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if _line(process, _START_S) != "ready\n":
            self._stop()
            raise self._error(
                f"The worker {self._module} did not start within {_START_S:g} s. See "
                "its error above."
            )
        return process

    def _stop(self, grace_s: float = 0.0) -> int | None:
        """Stop the process after ``grace_s`` and return its exit status."""
        process, self.process = self.process, None
        if process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        process.kill()
        process.communicate()
        return process.returncode


def _line(process: subprocess.Popen[str], patience_s: float) -> str | None:
    """Return the worker's next line, None if there is none in time."""
    assert process.stdout is not None  # a pipe
    # The worker writes whole lines, one per question, so readline cannot block.
    # poll instead of select, which fails on descriptors beyond 1023.
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    return process.stdout.readline() if poll.poll(patience_s * 1000.0) else None
