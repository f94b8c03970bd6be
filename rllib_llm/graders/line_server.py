"""Server side of :class:`~rllib_llm.graders.line_worker.LineWorker`."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable


def serve(answer: Callable[[str], str]) -> None:
    """Limit this process, then answer lines until standard input ends.

    The first command-line argument is the memory limit, in bytes.

    Args:
        answer: Maps a line to its answer, which is one line, too.
    """
    memory = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # Libraries may print; their output must not mix with the results.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("ready", file=results, flush=True)
    for line in sys.stdin:
        print(answer(line), file=results, flush=True)
