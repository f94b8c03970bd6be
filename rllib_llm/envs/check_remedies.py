"""Texts of check findings: locations of exceptions, and remedies for authors."""

from __future__ import annotations

import dataclasses
import sysconfig
import traceback
from pathlib import Path

_OURS = str(Path(__file__).parents[1])
_LIBRARIES = sysconfig.get_paths()["purelib"]
_STANDARD = sysconfig.get_paths()["stdlib"]
_SHOWN_FRAMES = 6


class Advice(str):
    """A finding that does not break training."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Remedies:
    """Changes that the author of one kind of environment can make, in sentences.

    Attributes:
        errors: If reset or step raises.
        ending: If episodes do not end.
        randomness: If a seed does not determine the episode.
        garbage: If a model's text makes step raise.
    """

    errors: str
    ending: str
    randomness: str
    garbage: str


_ENDING = (
    "Set max_turns, and do not override step() of {base}, or return truncated=True."
)
_RNG = (
    "Draw everything random from the rng given to start(), and keep that rng. Avoid "
    "the modules random and np.random, and state shared between instances or "
    "episodes."
)
_PARSE = "return None from parse() for invalid text, and check ranges before use."

TEXT_ENV = Remedies(
    errors="Correct start(), reply() or apply(), or the scripted policy.",
    ending=_ENDING.format(base="TextEnv"),
    randomness=_RNG,
    garbage=_PARSE,
)
GAME = dataclasses.replace(
    TEXT_ENV,
    errors="Correct start(), prompt_for() or apply(), or the scripted policy.",
    ending=_ENDING.format(base="MultiAgentTextEnv"),
)
FOREIGN_GAME = Remedies(
    errors="Correct reset(), step() or observe(), or the scripted policy.",
    ending="Terminate or truncate every agent after some turns.",
    randomness=(
        "Draw everything random from a generator of the environment that "
        "reset(seed=...) seeds. Avoid the modules random and np.random, and state "
        "shared between instances or episodes."
    ),
    garbage="accept any text in step(), and treat invalid text as a bad action.",
)


def described(error: BaseException) -> str:
    """Return an exception in words: type, message, and the lines that led to it.

    The lines start at the first frame outside of this package and of libraries; without
    such a frame, only the last one is shown.
    """
    name = type(error).__name__
    message = str(error).strip()
    frames = traceback.extract_tb(error.__traceback__)
    first = next((i for i, f in enumerate(frames) if _is_authors(f.filename)), None)
    shown = frames[-1:] if first is None else frames[first:][-_SHOWN_FRAMES:]
    lines = [f"\n      {_place(f)}" for f in shown]
    head = f"{name}: {message}" if message else name
    return head + "".join(lines)


def where_raised(error: BaseException) -> str:
    """Return the line of the library or environment that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return _place(frames[-1]) if frames else ""


def _place(frame: traceback.FrameSummary) -> str:
    return f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"


def _is_authors(filename: str) -> bool:
    libraries = (_OURS, _LIBRARIES, _STANDARD, "<frozen")
    return not filename.startswith(libraries)
