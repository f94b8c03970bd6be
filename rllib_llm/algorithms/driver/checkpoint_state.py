"""The package's own part of a checkpoint, as one of RLlib's Checkpointables."""

from __future__ import annotations

from typing import Any

import pyarrow.fs
from ray.rllib.utils.annotations import override
from ray.rllib.utils.checkpoints import Checkpointable

from rllib_llm import json_state
from rllib_llm.errors import CheckpointError

OWN_STATE = "llm"  # component, and folder of a checkpoint
STATE_FILE = "state.json"


class OwnState(Checkpointable):
    """Task cursor, memories of pieces, league and alarms of one algorithm.

    Written as JSON, so that reading it executes nothing.

    Args:
        algorithm: Has ``own_state`` and ``set_own_state``.
    """

    def __init__(self, algorithm: Any) -> None:
        self._algorithm = algorithm

    @override(Checkpointable)
    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return self._algorithm.own_state()

    @override(Checkpointable)
    def set_state(self, state: dict[str, Any]) -> None:
        self._algorithm.set_own_state(state)

    @override(Checkpointable)
    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (), {}

    @override(Checkpointable)
    def save_to_path(
        self, path: Any = None, *, state: Any = None, filesystem: Any = None, **_: Any
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
        path: Any,
        *,
        component: str | None = None,
        filesystem: Any = None,
        **_: Any,
    ) -> None:
        """Bring back what :meth:`save_to_path` wrote.

        Raises:
            CheckpointError: If it is damaged.
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
