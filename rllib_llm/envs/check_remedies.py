"""What checks say: where something was raised, and what authors can change."""

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
    """A finding that training survives."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Remedies:
    """What the author of one kind of environment can change, in sentences.

    Attributes:
        errors: Where reset or step raise.
        ending: Where episodes do not end.
        randomness: Where a seed does not decide the episode.
        garbage: Where text of a model makes step raise.
    """

    errors: str
    ending: str
    randomness: str
    garbage: str


_ENDING = "Set max_turns, and leave step() to {base} or return truncated=True there."
_RNG = (
    "Everything random must come from the rng given to start(); keep it, and use "
    "neither the modules random and np.random nor state shared between instances or "
    "episodes."
)
_PARSE = "let parse() return None for text it cannot read, and check ranges before use."

TEXT_ENV = Remedies(
    errors="Mend start(), reply() or apply(), or the scripted policy.",
    ending=_ENDING.format(base="TextEnv"),
    randomness=_RNG,
    garbage=_PARSE,
)
GAME = dataclasses.replace(
    TEXT_ENV,
    errors="Mend start(), prompt_for() or apply(), or the scripted policy.",
    ending=_ENDING.format(base="MultiAgentTextEnv"),
)
FOREIGN_GAME = Remedies(
    errors="Mend reset(), step() or observe(), or the scripted policy.",
    ending="Terminate or truncate every agent after some turns.",
    randomness=(
        "Everything random must come from a generator of the environment's own that "
        "reset(seed=...) seeds; use neither the modules random and np.random nor "
        "state shared between instances or episodes."
    ),
    garbage="let step() take any text, and treat what it cannot read as a bad action.",
)


def described(error: BaseException) -> str:
    """Return an exception in words: type, message, and the lines that led to it.

    Frames are shown from the first one that belongs neither to this package nor to a
    library; where there is none, the last one.
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
