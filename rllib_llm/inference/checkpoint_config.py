"""Loading of a checkpoint's config and policies without the whole algorithm."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from rllib_llm.modules.checkpointed_module import HF_FOLDER
from rllib_llm.modules.loading import model_folders_offered
from rllib_llm.runs.checkpoints import MODULES
from rllib_llm.runs.folders import default_storage, find_run, locate_checkpoint


def local_config(checkpoint: Path, num_gpus: float | None = None) -> Any:
    """Return the config of a checkpoint, limited to this process.

    It has no remote EnvRunners and Learners, so that the checkpoint of a large run
    loads on a small machine.

    Args:
        checkpoint: Folder of the checkpoint.
        num_gpus: GPUs of this process; None: as many as a Learner had.
    """
    with (checkpoint / "class_and_ctor_args.pkl").open("rb") as file:
        stored = pickle.load(file)
    args, kwargs = stored["ctor_args_and_kwargs"]
    config = kwargs["config"] if "config" in kwargs else args[0]
    config = stored["class"]._as_config(config)
    config.env_runners(num_env_runners=0)
    config.learners(num_learners=0)
    config.evaluation(evaluation_interval=None, evaluation_num_env_runners=0)
    if config.weight_sync != "object_store":  # there are no Learners
        config.rollouts(weight_sync="object_store", weight_sync_bucket_mib=None)
    if num_gpus is not None:
        config.learners(num_gpus_per_learner=num_gpus)
    if not torch.cuda.is_available():
        config.learners(num_gpus_per_learner=0, optimizer_offload=False)
    return config


def load_runner(path: str | Path, *, num_gpus: float | None = None) -> Any:
    """Return an EnvRunner in this process with a checkpoint's policies, without Ray.

    Args:
        path: A run, trial or checkpoint folder, or the name of a run.
        num_gpus: GPUs of this process; None: as many as a Learner had.

    Raises:
        CheckpointError: If there is no complete checkpoint.
    """
    from rllib_llm.algorithms.driver.build_vllm_engines import new_actor_name
    from rllib_llm.algorithms.driver.prepared_models import with_models
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

    checkpoint = locate_checkpoint(find_run(path, default_storage())).checkpoint
    config = local_config(checkpoint, num_gpus)
    modules = checkpoint / MODULES
    folders = {f.name: f / HF_FOLDER for f in modules.iterdir() if f.is_dir()}
    with model_folders_offered(folders):
        config = with_models(config)
        config.engine_actor = new_actor_name()
        runner = LLMEnvRunner(config=config, worker_index=0)
        for module_id, module in runner.modules.items():
            module.restore_from_path(modules / module_id)
        for module_id, actor in runner.actors.items():
            actor.module.restore_from_path(modules / module_id)
    runner.set_weights_version(1)  # engines drop what they computed before the restore
    return runner
