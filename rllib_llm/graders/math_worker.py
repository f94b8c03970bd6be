"""The worker of MathGrader: compares answers with math-verify, one line at a time.

``python -m rllib_llm.graders.math_worker MEMORY_BYTES`` reads JSON lines ``[given,
gold]`` and writes ``true`` or ``false`` for each, ``null`` where the gold answer cannot
be read.
"""

from __future__ import annotations

import json
from typing import Any

from rllib_llm.graders.line_server import serve


def main() -> None:
    """Serve until standard input ends."""
    from math_verify import parse, verify

    # Its own time limits use signals and fail in threads; the caller kills instead.
    def is_same(wanted: list[Any], given: str) -> bool:
        found = parse(given, parsing_timeout=None)
        return bool(found) and bool(verify(wanted, found, timeout_seconds=None))

    def compare(line: str) -> str:
        given, gold = json.loads(line)
        wanted = parse(gold, parsing_timeout=None)
        if not wanted:
            return json.dumps(None)
        try:
            return json.dumps(is_same(wanted, given))
        except Exception:  # SymPy fails in many ways on texts that are no mathematics
            return json.dumps(False)

    if not is_same(parse("1/2", parsing_timeout=None), "0.5"):
        raise RuntimeError("math-verify does not work: it takes 0.5 for other than 1/2")
    serve(compare)


if __name__ == "__main__":
    main()
