"""Checkpoints of a trial, by number and completeness."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path

from rllib_llm.manifest import find_damage

CHECKPOINT_FILE = "rllib_checkpoint.json"
_NUMBERED = re.compile(r"checkpoint_(\d+)")
MODULES = "learner_group/learner/rl_module"

logger = logging.getLogger("rllib_llm")


def newest_checkpoint(trial: Path) -> Path | None:
    """Return the trial's whole checkpoint with the highest number, if any."""
    return newest_whole(trial.glob("checkpoint_*"))


def newest_whole(candidates: Iterable[Path]) -> Path | None:
    """Return the whole checkpoint with the highest number; log damaged newer ones."""
    numbered = [(number_of(c), c.parent.name, c) for c in candidates]
    damaged: list[str] = []
    for _, _, checkpoint in sorted(n for n in numbered if n[0] is not None)[::-1]:
        damage = find_damage(checkpoint)
        if damage is None:
            for text in damaged:
                logger.warning("%s; using %s instead.", text, checkpoint)
            return checkpoint
        damaged.append(f"The checkpoint {checkpoint} is damaged: {damage}")
    return None


def number_of(checkpoint: Path) -> int | None:
    """Return the number in the name of a checkpoint folder, or None."""
    match = _NUMBERED.fullmatch(checkpoint.name)
    return int(match[1]) if match else None


def is_complete(checkpoint: Path) -> bool:
    """Return True if a checkpoint agrees with its manifest, byte by byte.

    Tune copies checkpoints file by file, so a killed run may leave part of one.
    """
    return find_damage(checkpoint) is None
