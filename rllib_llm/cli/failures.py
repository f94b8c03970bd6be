"""Find the first real error under the layers that Ray and Tune wrap around it."""

from __future__ import annotations

import errno
import pickle
import re
import shutil
import traceback
from pathlib import Path

from rllib_llm import errors

_NAMED = re.compile(r"^(?:rllib_llm\.errors\.)(\w+): (.*)", re.MULTILINE | re.DOTALL)

_FULL = (errno.ENOSPC, errno.EDQUOT)
_SAID = "No space left on device"
_ALMOST_NOTHING = 2**20  # bytes


def root_cause(error: BaseException) -> BaseException:
    """Return the error that started it: ours if there is one, else the innermost."""
    chain = list(_chain(error))
    for link in chain:
        if isinstance(link, errors.RLlibLLMError) and not hasattr(link, "cause"):
            return link
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
    """Read one of our errors out of a printed remote traceback."""
    found = _NAMED.search(text)
    if found is None or not hasattr(errors, found[1]):
        return None
    message = found[2].split("\n\n")[0].strip()
    return getattr(errors, found[1])(message)


def describe(error: BaseException) -> str:
    """Return what to print last: one of our messages as it is, else with its origin."""
    cause = root_cause(error)
    if isinstance(cause, errors.RLlibLLMError):
        return f"{type(cause).__name__}: {cause}"
    frames = traceback.extract_tb(cause.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(cause).__name__}: {_last_paragraph(str(cause))}{where}"


def describe_full_disk(error: BaseException, folder: Path) -> str | None:
    """Return what to print if a full disk explains an error, else None.

    Tune's own files are empty then, and reading them fails with an error of its own.

    Args:
        error: What was raised.
        folder: Parent of run folders, or a folder below which they come to be.
    """
    folder = next(f for f in (folder, *folder.parents) if f.is_dir())
    free = shutil.disk_usage(folder).free
    chain = list(_chain(error))
    says_so = any(getattr(e, "errno", None) in _FULL or _SAID in str(e) for e in chain)
    unread = any(isinstance(e, EOFError | pickle.UnpicklingError) for e in chain)
    if not says_so and not (unread and free < _ALMOST_NOTHING):
        return None
    return (
        f"The disk is full: {free / 2**20:.1f} MiB are free in {folder}. Checkpoints "
        "that were complete are kept. Free some space, or keep fewer checkpoints "
        "(tune.num_to_keep), then go on with rllib-llm train --resume RUN."
    )


def _last_paragraph(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return "\n".join(lines[-3:])
