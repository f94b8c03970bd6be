"""Checkpoints of an algorithm: RLlib's, with the package's state and a manifest."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.driver.checkpoint_state import PACKAGE_STATE, PackageState
from rllib_llm.algorithms.driver.learner_group import LLMLearnerGroup
from rllib_llm.callbacks.result_keys import ITERATION
from rllib_llm.manifest import require_whole, write_manifest
from rllib_llm.modules.checkpointed_module import HF_FOLDER
from rllib_llm.modules.loading import model_folders_offered
from rllib_llm.monitoring.alarms.algorithm_mixin import GUARD_KEY, GuardedAlgorithm

if TYPE_CHECKING:
    from rllib_llm.env_runner.task_groups import TaskSource

_TASKS_KEY = "llm_tasks"
_MODULES_FOLDER = Path("learner_group", "learner", "rl_module")


class CheckpointedAlgorithm(GuardedAlgorithm):
    """Mixin that adds the package's state to checkpoints and verifies their files.

    Put it before the Algorithm class in the bases.
    """

    _task_source: TaskSource

    @override(Algorithm)
    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        return [
            *super().get_checkpointable_components(),
            (PACKAGE_STATE, PackageState(self)),
        ]

    @override(Algorithm)
    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        state = super().get_state(components, not_components=not_components, **kwargs)
        if self._check_component(PACKAGE_STATE, components, not_components):
            state[PACKAGE_STATE] = self.package_state()
        return state

    @override(Algorithm)
    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        # RLlib also restores parts of a state, e.g. RLModules alone.
        if PACKAGE_STATE in state:
            self.set_package_state(state[PACKAGE_STATE])

    def package_state(self) -> dict[str, Any]:
        """Return the state that the package adds to RLlib's (see json_state.py)."""
        return {
            ITERATION: self.training_iteration,
            _TASKS_KEY: self._task_source.get_state(),
            GUARD_KEY: self.guard.get_state(),
            **self.driver_state(),
        }

    def set_package_state(self, state: dict[str, Any]) -> None:
        """Restore :meth:`package_state`'s result."""
        self._task_source.set_state(state[_TASKS_KEY])
        self.guard.set_state(state[GUARD_KEY])
        self.set_driver_state(state)

    @override(Algorithm)
    def save_to_path(self, *args: Any, **kwargs: Any) -> str:
        """Write a checkpoint and, last, its manifest (local file systems only)."""
        with self._saving():
            written = super().save_to_path(*args, **kwargs)
        if Path(written).is_dir():
            # Last: a checkpoint without a manifest was interrupted.
            write_manifest(Path(written))
        return written

    def _saving(self) -> contextlib.AbstractContextManager[None]:
        group = self.learner_group
        if isinstance(group, LLMLearnerGroup):
            return group.saving_a_checkpoint()
        return contextlib.nullcontext()

    @override(Algorithm)
    def restore_from_path(self, path: str | Path, *args: Any, **kwargs: Any) -> None:
        """Restore a checkpoint and send its weights to all EnvRunners.

        Raises:
            CheckpointError: If the checkpoint differs from its manifest.
        """
        # A single component's folder has no manifest of its own.
        if kwargs.get("component") is None and Path(path).is_dir():
            require_whole(Path(path))
        super().restore_from_path(path, *args, **kwargs)
        self.sync_all_weights()

    @classmethod
    @override(Algorithm)
    def from_checkpoint(cls, path: str | Path, *args: Any, **kwargs: Any) -> Any:
        """Rebuild the algorithm from a checkpoint in any folder.

        A checkpoint contains the model's config and tokenizer, so it loads on machines
        without the prepared model (not under LoRA, which needs the base model).
        """
        # A ray.tune.Checkpoint has a path too.
        folder = Path(getattr(path, "path", path))
        if folder.is_dir():
            require_whole(folder)
        modules = folder / _MODULES_FOLDER
        folders = modules.iterdir() if modules.is_dir() else ()
        with model_folders_offered({f.name: f / HF_FOLDER for f in folders}):
            return super().from_checkpoint(path, *args, **kwargs)
