"""Root causes of errors that Ray and Tune have wrapped."""

from __future__ import annotations

import errno
import pickle
import re
import shutil
import traceback
from pathlib import Path

from rllib_llm import errors

# An error of the package in a printed remote traceback.
_NAMED = re.compile(r"^(?:rllib_llm\.errors\.)(\w+): (.*)", re.MULTILINE | re.DOTALL)

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_MESSAGE = "No space left on device"
_ALMOST_NOTHING = 2**20  # bytes


def root_cause(error: BaseException) -> BaseException:
    """Return the package's error in the chain if there is one, else the innermost."""
    chain = list(_chain(error))
    for link in chain:
        if isinstance(link, errors.RLlibLLMError) and not hasattr(link, "cause"):
            return link
    # An error from another process may survive only as text in a traceback.
    for link in chain:
        named = _named_in(str(link))
        if named is not None:
            return named
    return chain[-1]


def _chain(error: BaseException | None) -> list[BaseException]:
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        cause = getattr(error, "cause", None)  # RayTaskError
        error = cause if isinstance(cause, BaseException) else error.__cause__
    return chain


def _named_in(text: str) -> errors.RLlibLLMError | None:
    """Return the package's error printed in a remote traceback, if any."""
    match = _NAMED.search(text)
    if match is None or not hasattr(errors, match[1]):
        return None
    message = match[2].split("\n\n")[0].strip()
    return getattr(errors, match[1])(message)


def describe(error: BaseException) -> str:
    """Return the message of the root cause; of a foreign error, with its origin."""
    cause = root_cause(error)
    if isinstance(cause, errors.RLlibLLMError):
        return f"{type(cause).__name__}: {cause}"
    frames = traceback.extract_tb(cause.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(cause).__name__}: {_last_paragraph(str(cause))}{where}"


def describe_full_disk(error: BaseException, folder: Path) -> str | None:
    """Return the message if a full disk explains an error, else None.

    On a full disk Tune's files may be empty, so that reading them raises another error.

    Args:
        error: The error.
        folder: The folder of results; it need not exist yet.
    """
    folder = next(f for f in (folder, *folder.parents) if f.is_dir())
    free = shutil.disk_usage(folder).free
    chain = list(_chain(error))
    is_reported = any(
        getattr(e, "errno", None) in _FULL or _FULL_MESSAGE in str(e) for e in chain
    )
    is_unreadable = any(isinstance(e, EOFError | pickle.UnpicklingError) for e in chain)
    if not is_reported and not (is_unreadable and free < _ALMOST_NOTHING):
        return None
    return (
        f"The disk is full: {free / 2**20:.1f} MiB are free in {folder}. Complete "
        "checkpoints are kept. Free some space, or keep fewer checkpoints "
        "(tune.num_to_keep), then run rllib-llm train --resume RUN."
    )


def _last_paragraph(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return "\n".join(lines[-3:])
