"""The worker of MathGrader: compares answers with math-verify, one line at a time.

``python -m rllib_llm.graders.math_worker MEMORY_BYTES`` reads JSON lines ``[given,
gold]`` and writes ``true`` or ``false`` for each, ``null`` where the gold answer cannot
be read.
"""

from __future__ import annotations

import json

from rllib_llm.graders.line_server import serve


def main() -> None:
    """Serve until standard input ends."""
    from math_verify import parse, verify

    def compare(line: str) -> str:
        given, gold = json.loads(line)
        # Its own time limits use signals and fail in threads; the caller kills instead.
        wanted = parse(gold, parsing_timeout=None)
        if not wanted:
            return json.dumps(None)
        found = parse(given, parsing_timeout=None)
        return json.dumps(bool(found) and verify(wanted, found, timeout_seconds=None))

    serve(compare)


if __name__ == "__main__":
    main()
