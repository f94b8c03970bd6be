"""Bring a run's newest checkpoint back to life."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from rllib_llm.recipes.runs import (
    RunPaths,
    default_storage,
    find_run,
    locate_checkpoint,
)


def locate(run: str, storage: Path | None) -> RunPaths:
    """Return where the checkpoint lies that ``run`` names.

    Raises:
        CheckpointError: If there is none.
    """
    return locate_checkpoint(find_run(run, storage or default_storage()))


def load_algorithm(checkpoint: Path) -> Any:
    """Return the algorithm of a checkpoint, in this process alone. Ray must run.

    Remote EnvRunners and Learners of the training run are left out, so that a large
    run's checkpoint loads on a small machine.
    """
    from rllib_llm.algorithms.llm_algorithm import LLMAlgorithm
    from rllib_llm.algorithms.registry import register_trainables

    register_trainables()
    config = _stored_config(checkpoint)
    config.env_runners(num_env_runners=0)
    config.learners(num_learners=0)
    config.evaluation(evaluation_interval=None, evaluation_num_env_runners=0)
    if not torch.cuda.is_available():
        config.learners(num_gpus_per_learner=0)
    return LLMAlgorithm.from_checkpoint(str(checkpoint), config=config)


def _stored_config(checkpoint: Path) -> Any:
    with (checkpoint / "class_and_ctor_args.pkl").open("rb") as file:
        stored = pickle.load(file)
    args, kwargs = stored["ctor_args_and_kwargs"]
    config = kwargs["config"] if "config" in kwargs else args[0]
    return stored["class"]._as_config(config)
