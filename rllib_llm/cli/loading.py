"""Bring a run's newest checkpoint back to life."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray.rllib.core import COMPONENT_RL_MODULE

from rllib_llm.recipes.runs import RunPaths, find_run, locate_checkpoint
from rllib_llm.recipes.tuning import default_storage


def locate(run: str, storage: Path | None) -> RunPaths:
    """Return where the checkpoint lies that ``run`` names.

    Raises:
        CheckpointError: If there is none.
    """
    return locate_checkpoint(find_run(run, storage or default_storage()))


def load_algorithm(checkpoint: Path) -> Any:
    """Return the algorithm of a checkpoint. Ray must be running."""
    from rllib_llm.algorithms.llm_algorithm import LLMAlgorithm
    from rllib_llm.algorithms.registry import register_trainables

    register_trainables()
    return LLMAlgorithm.from_checkpoint(str(checkpoint))


def local_runner(algo: Any) -> Any:
    """Return an EnvRunner in this process with the Learners' current policy."""
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

    runner = algo.env_runner
    if not isinstance(runner, LLMEnvRunner):  # remote runners, or RLlib's stock one
        runner = LLMEnvRunner(config=algo.config, worker_index=0)
    weights = algo.learner_group.get_weights()
    runner.set_state({COMPONENT_RL_MODULE: weights})
    return runner
