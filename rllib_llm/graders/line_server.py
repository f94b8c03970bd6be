"""The other end of :class:`~rllib_llm.graders.line_worker.LineWorker`."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable


def serve(answer: Callable[[str], str]) -> None:
    """Limit this process, then answer lines until standard input ends.

    The first argument of the program is its most memory, in bytes.

    Args:
        answer: Makes the answer to a line, a line itself.
    """
    memory = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # Libraries may print; only results belong on the pipe.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("ready", file=results, flush=True)
    for line in sys.stdin:
        print(answer(line), file=results, flush=True)
