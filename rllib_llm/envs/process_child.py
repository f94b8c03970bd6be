"""Main program of a child process (see ``child_process.py``)."""

from __future__ import annotations

import os
import pickle
import traceback
from typing import Any

from rllib_llm.envs.child_process import EnvProcessError, receive, send


def main() -> None:
    """Build the environment and answer calls until the parent closes the pipe."""
    calls, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Output and input of environments must not mix with the messages.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    maker, env = receive(calls), None
    while maker is not None and (call := receive(calls)) is not None:
        try:
            if env is None:
                env = pickle.loads(maker)()
            method, args, keywords = pickle.loads(call)
            value = getattr(env, method)(*args, **keywords)
            reply = pickle.dumps((value, None, ""))
        except Exception as error:  # any type: the parent raises it
            reply = _failure(error)
        send(replies, reply)
    if env is not None:
        env.close()


def _failure(error: Exception) -> bytes:
    """Return an exception in a form that the parent can raise: itself, or its text."""
    trace = "".join(traceback.format_exception(error))
    try:
        packed = pickle.dumps((None, error, trace))
        pickle.loads(packed)  # some exceptions pickle but do not unpickle
        return packed
    except Exception:  # pickle raises any exception of the object's own methods
        text: Any = f"{type(error).__name__}: {error}"
        return pickle.dumps((None, EnvProcessError(text), trace))


if __name__ == "__main__":
    main()
