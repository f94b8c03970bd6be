"""The package's part of a checkpoint, as one of RLlib's Checkpointables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.fs
from ray.rllib.utils.annotations import override
from ray.rllib.utils.checkpoints import Checkpointable

from rllib_llm import json_state
from rllib_llm.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from pyarrow.fs import FileSystem

    from rllib_llm.algorithms.driver.checkpointing import CheckpointedAlgorithm

PACKAGE_STATE = "llm"  # component, and folder of a checkpoint
STATE_FILE = "state.json"


class PackageState(Checkpointable):
    """Task cursor, components, league and alarms of one algorithm, written as JSON.

    JSON instead of pickle, so that reading a checkpoint executes nothing.

    Args:
        algorithm: Object with ``package_state`` and ``set_package_state``.
    """

    def __init__(self, algorithm: CheckpointedAlgorithm) -> None:
        self._algorithm = algorithm

    @override(Checkpointable)
    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return self._algorithm.package_state()

    @override(Checkpointable)
    def set_state(self, state: dict[str, Any]) -> None:
        self._algorithm.set_package_state(state)

    @override(Checkpointable)
    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (), {}

    @override(Checkpointable)
    def save_to_path(
        self,
        path: str | Path | None = None,
        *,
        state: Any = None,
        filesystem: FileSystem | None = None,
        **_: Any,
    ) -> str:
        """Write ``state.json`` and nothing else."""
        target = filesystem or pyarrow.fs.LocalFileSystem()
        target.create_dir(str(path), recursive=True)
        text = json_state.dumps(state or self.get_state(), "state")
        with target.open_output_stream(f"{path}/{STATE_FILE}") as file:
            file.write(text.encode("ascii"))
        return str(path)

    @override(Checkpointable)
    def restore_from_path(
        self,
        path: str | Path | None,
        *,
        component: str | None = None,
        filesystem: FileSystem | None = None,
        **_: Any,
    ) -> None:
        """Restore the state that :meth:`save_to_path` wrote.

        Raises:
            CheckpointError: If the file is damaged.
        """
        source = filesystem or pyarrow.fs.LocalFileSystem()
        with source.open_input_stream(f"{path}/{STATE_FILE}") as file:
            text = file.read().decode("ascii")
        try:
            state = json_state.loads(text)
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path}/{STATE_FILE} is damaged: {error}. Use another checkpoint."
            ) from error
        self.set_state(state)
