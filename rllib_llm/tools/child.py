"""Main program of the process that runs tools with ``process=True``."""

from __future__ import annotations

import importlib
import json
import operator
import os
from typing import Any, BinaryIO

from rllib_llm.tools.result_text import as_text


def main() -> None:
    """Answer calls, one line each, until the parent closes the pipe."""
    calls, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Output and input of tools must not mix with the lines of the protocol.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for line in calls:
        _send(replies, _answer(json.loads(line), replies))


def _answer(call: dict[str, Any], replies: BinaryIO) -> dict[str, Any]:
    from rllib_llm.tools.tool import ToolUnavailable

    try:
        module = importlib.import_module(call["module"])
        function = operator.attrgetter(call["name"])(module)
    except Exception as error:  # infrastructure: the parent could import it
        why = f"{call['module']} cannot be imported: {type(error).__name__}: {error}"
        return {"error": why, "unavailable": True}
    try:
        _send(replies, {"ready": True})  # the time limit starts after the import
        return {"text": as_text(function(**call["arguments"]))}
    except (ToolUnavailable, ConnectionError) as error:
        return {"error": str(error), "unavailable": True}
    except (Exception, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _send(replies: BinaryIO, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply).encode() + b"\n")
    replies.flush()


if __name__ == "__main__":
    main()
