"""Game files of TextWorld: generated once, compiled, stored in the cache."""

from __future__ import annotations

import functools
import os
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from rllib_llm.cache import cache_dir
from rllib_llm.envs.text_env import in_split
from rllib_llm.errors import ConfigError, MissingExtraError, did_you_mean

# Settings of each challenge, besides its seed.
CHALLENGES: dict[str, dict[str, Any]] = {
    "coin_collector": {"level": 5},
    "treasure_hunter": {"level": 5},
    "cooking": {
        **dict.fromkeys(("recipe", "take", "go"), 1),
        **dict.fromkeys(("open", "cook", "cut", "drop"), False),
    },
    "simple": {"rewards": "sparse", "goal": "brief"},
}
_MOST_DRAWS = 200
# TextWorld parses with one parser per process, which two threads must not use at once.
# Held by one thread more than once: starting a game may generate it.
PARSER = threading.RLock()


def settings_of(
    challenge: str, level: int | None, options: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the settings of a challenge.

    Raises:
        ConfigError: If the challenge or an option does not exist.
    """
    if challenge not in CHALLENGES:
        hint = did_you_mean(str(challenge), CHALLENGES)
        raise ConfigError(f"Unknown TextWorld challenge={challenge!r}. {hint}")
    defaults = CHALLENGES[challenge]
    given = dict(options or {})
    if level is not None:
        given["level"] = level
    for name in given:
        if name not in defaults:
            raise ConfigError(
                f"The challenge {challenge!r} has no option {name!r}. "
                + did_you_mean(name, defaults)
            )
    return {**defaults, **given}


def game_file(challenge: str, settings: dict[str, Any], split: str, index: int) -> Path:
    """Return the file of a game, generating it if the cache lacks it.

    Args:
        challenge: A key of ``CHALLENGES``.
        settings: Result of :func:`settings_of`.
        split: "train" or "test"; the hash of the game belongs to it.
        index: Index of the game in its split.

    Raises:
        ConfigError: If TextWorld cannot generate it.
    """
    words = [f"{k}={v}" for k, v in sorted(settings.items())]
    key = re.sub(r"[^\w=.,-]", "", ",".join([challenge, *words]))
    # Other versions may generate other games from the same seed.
    folder = cache_dir() / "textworld" / version() / key
    path = folder / f"{split}-{index}.z8"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")), PARSER:
        if not path.exists():
            _write(challenge, settings, split, index, path)
    return path


def import_textworld() -> Any:
    """Import TextWorld.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        import textworld
    except ModuleNotFoundError as error:
        if error.name not in ("textworld", "jericho"):
            raise
        raise MissingExtraError.for_extra("textworld", "textworld") from error
    return textworld


@functools.cache
def version() -> str:
    """Return TextWorld's version."""
    return import_textworld().__version__


def _write(
    challenge: str, settings: dict[str, Any], split: str, index: int, path: Path
) -> None:
    """Draw a game of the split, compile it, and move its files to their place."""
    from textworld.generator import compile_game

    rng = np.random.default_rng((index, split == "test"))
    for _ in range(_MOST_DRAWS):
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            game, options = _make(challenge, settings, split, int(rng.integers(2**31)))
            if not in_split(_signature(game), split):
                continue
            options.path = os.path.join(folder, path.name)
            compile_game(game, options)
            # Readers take the existence of the .z8 file for completeness: move it last.
            for suffix in (".json", ".z8"):
                made = Path(options.path).with_suffix(suffix)
                made.replace(path.with_suffix(suffix))
            return
    raise ConfigError(
        f"challenge={challenge!r} with {settings!r} returned no game of the split "
        f"{split!r} in {_MOST_DRAWS} draws, because it has too few. Raise its level."
    )


def _make(
    challenge: str, settings: dict[str, Any], split: str, seed: int
) -> tuple[Any, Any]:
    from textworld import GameOptions
    from textworld.challenges import CHALLENGES as MAKERS

    options = GameOptions()
    options.seeds = seed
    given = dict(settings)
    if challenge == "cooking":  # its held-out games have other ingredients
        given |= {"split": split, "recipe_seed": 1 + seed}
    if challenge == "simple":
        given["test"] = split == "test"
    make = MAKERS[f"tw-{challenge}"][1]
    try:
        return make(given, options), options
    except (AssertionError, ValueError) as error:
        raise ConfigError(
            f"TextWorld cannot make challenge={challenge!r} with {settings!r}: "
            f"{error}. Correct the options."
        ) from error


def _signature(game: Any) -> str:
    names = sorted(str(info.name) for info in game.infos.values())
    facts = sorted(map(str, game.world.facts))
    return "\n".join([*names, *facts, *map(str, game.metadata["walkthrough"])])
