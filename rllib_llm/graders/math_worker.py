"""The worker of MathGrader: compares answers with math-verify, one line at a time.

``python -m rllib_llm.graders.math_worker MEMORY_BYTES`` reads JSON lines ``[given,
gold]`` and writes ``true`` or ``false`` for each, ``null`` where the gold answer cannot
be read.
"""

from __future__ import annotations

import json
import os
import resource
import sys


def main() -> None:
    """Serve until standard input ends."""
    from math_verify import parse, verify

    memory = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # Libraries may print; only results belong on the pipe.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("ready", file=results, flush=True)
    for line in sys.stdin:
        given, gold = json.loads(line)
        # Its own time limits use signals and fail in threads; the caller kills instead.
        wanted = parse(gold, parsing_timeout=None)
        if not wanted:
            verdict = None
        else:
            found = parse(given, parsing_timeout=None)
            verdict = bool(found) and verify(wanted, found, timeout_seconds=None)
        print(json.dumps(verdict), file=results, flush=True)


if __name__ == "__main__":
    main()
