"""Worker process of patterns, which searches texts for regular expressions.

``python -m rllib_llm.graders.pattern_worker MEMORY_BYTES`` reads JSON lines ``[pattern,
text, most]`` and writes the first ``most`` matches as a JSON list of texts.
"""

from __future__ import annotations

import itertools
import json
import re

from rllib_llm.graders.line_server import serve


def main() -> None:
    """Serve until standard input ends."""

    def answer(line: str) -> str:
        pattern, text, most = json.loads(line)
        try:
            matches = itertools.islice(re.finditer(pattern, text, re.DOTALL), most)
            return json.dumps([match[match.re.groups and 1] or "" for match in matches])
        except MemoryError:
            return "[]"

    serve(answer)


if __name__ == "__main__":
    main()
