"""Find the first real error under the layers that Ray and Tune wrap around it."""

from __future__ import annotations

import re
import traceback

from rllib_llm import errors

_NAMED = re.compile(r"^(?:rllib_llm\.errors\.)(\w+): (.*)", re.MULTILINE | re.DOTALL)


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


def _last_paragraph(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return "\n".join(lines[-3:])
