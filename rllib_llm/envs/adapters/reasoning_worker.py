"""Worker process that scores answers with reasoning-gym's own scorers.

``python -m rllib_llm.envs.adapters.reasoning_worker MEMORY_BYTES`` reads JSON lines
``[task, settings, instance, answer]``, settings and instance as pickles in base64, and
writes the score, or ``null`` if the scorer fails on the answer.
"""

from __future__ import annotations

import base64
import functools
import json
import pickle
from typing import Any

from rllib_llm.graders.line_server import serve


def main() -> None:
    """Serve until standard input ends."""
    import reasoning_gym

    @functools.lru_cache(maxsize=8)
    def scorer(task: str, settings: str) -> Any:
        given = {**_unpacked(settings), "seed": 0, "size": 1}
        return reasoning_gym.create_dataset(task, **given).score_answer

    def score(line: str) -> str:
        task, settings, instance, answer = json.loads(line)
        judge = scorer(task, settings)
        given = _unpacked(instance)
        try:
            return json.dumps(float(judge(answer, given)))
        except Exception:  # scorers raise many kinds of errors on invalid answers
            return "null"

    serve(score)


def _unpacked(text: str) -> dict[str, Any]:
    # Safe: the parent process made these pickles, not the model.
    return pickle.loads(base64.b64decode(text))


if __name__ == "__main__":
    main()
