"""Loading of a run's newest checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rllib_llm.inference.checkpoint_config import local_config
from rllib_llm.runs.folders import (
    RunPaths,
    default_storage,
    find_run,
    locate_checkpoint,
)


def locate(run: str, storage: Path | None) -> RunPaths:
    """Return the paths of the newest checkpoint of ``run``.

    Raises:
        CheckpointError: The run does not have a complete checkpoint.
    """
    return locate_checkpoint(find_run(run, storage or default_storage()))


def load_algorithm(checkpoint: Path) -> Any:
    """Return the algorithm of a checkpoint, built in this process; Ray must run.

    The remote EnvRunners and Learners of the training run are not created, so that the
    checkpoint of a large run loads on a small machine.
    """
    from rllib_llm.algorithms.algorithm import LLMAlgorithm
    from rllib_llm.algorithms.registry import register_trainables

    register_trainables()
    config = local_config(checkpoint)
    return LLMAlgorithm.from_checkpoint(str(checkpoint), config=config)
