"""Worker process of MathGrader, which compares answers with math-verify.

``python -m rllib_llm.graders.math_worker MEMORY_BYTES`` reads JSON lines ``[given,
gold]`` and writes ``true`` or ``false`` for each, ``null`` if the gold answer cannot be
parsed.
"""

from __future__ import annotations

import json
from typing import Any

from rllib_llm.graders.line_server import serve


def main() -> None:
    """Serve until standard input ends."""
    from math_verify import parse, verify

    # math-verify's time limits use signals and fail in threads; the caller kills this
    # process instead.
    def is_same(wanted: list[Any], given: str) -> bool:
        answer = parse(given, parsing_timeout=None)
        return bool(answer) and bool(verify(wanted, answer, timeout_seconds=None))

    def compare(line: str) -> str:
        given, gold = json.loads(line)
        wanted = parse(gold, parsing_timeout=None)
        if not wanted:
            return json.dumps(None)
        try:
            return json.dumps(is_same(wanted, given))
        except Exception:  # SymPy raises many kinds of errors on other texts
            return json.dumps(False)

    if not is_same(parse("1/2", parsing_timeout=None), "0.5"):
        raise RuntimeError(
            "math-verify does not work here: it finds 0.5 and 1/2 different. Reinstall "
            "the extra 'math'."
        )
    serve(compare)


if __name__ == "__main__":
    main()
