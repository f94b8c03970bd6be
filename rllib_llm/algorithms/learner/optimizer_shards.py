"""Optimisers of sharded Learners in files that all Learners write together."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.fs
import torch

from rllib_llm.distributed import all_reduce_sum, world_size
from rllib_llm.errors import CheckpointError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

    from rllib_llm.algorithms.learner.llm_learner import LLMLearnerMixin

FOLDER = "optimizer_shards"  # in the folder of a LearnerGroup
_STEP = "step"  # one number for each parameter; the rest has the parameter's shape


def shards_in(path: str | Path, filesystem: FileSystem | None) -> str | None:
    """Return the folder of shards in that of a LearnerGroup, None if there is none.

    Args:
        path: The LearnerGroup's folder.
        filesystem: Its pyarrow file system; None: ``path`` is a URI or a local path.

    Raises:
        CheckpointError: If it is not on a disk, from which each Learner reads a part.
    """
    path = str(path)
    if filesystem is None:
        filesystem, path = pyarrow.fs.FileSystem.from_uri(path)
    folder = f"{path}/{FOLDER}"
    if filesystem.get_file_info(folder).type == pyarrow.fs.FileType.NotFound:
        return None
    if not isinstance(filesystem, pyarrow.fs.LocalFileSystem):
        raise CheckpointError(
            f"The optimisers in {folder} were saved with checkpoint_format='sharded', "
            f"which Learners read from a disk only, not from {filesystem.type_name}. "
            "Copy the checkpoint into a folder that all machines have."
        )
    return folder


@dataclasses.dataclass(frozen=True)
class SaveShards:
    """A call on all Learners: write the optimisers' tensors, each its own part.

    The format is that of ``torch.distributed.checkpoint``.
    """

    folder: str

    def __call__(self, learner: LLMLearnerMixin) -> None:
        import torch.distributed.checkpoint as dcp

        self._require_common_folder(torch.device(learner._device))
        tensors = {
            f"{name}/{index}/{key}": value
            for name, optimizer in learner._named_optimizers.items()
            for index, state in optimizer.state_dict()["state"].items()
            for key, value in state.items()
        }
        dcp.save(tensors, checkpoint_id=self.folder)

    def _require_common_folder(self, device: torch.device) -> None:
        # All agree: a Learner that writes would wait for one that has raised.
        is_missing = not Path(self.folder).parent.is_dir()
        (missing,) = all_reduce_sum([float(is_missing)], device)
        if missing:
            raise CheckpointError(
                f"{missing:g} of {world_size()} Learners do not see the folder of the "
                f"checkpoint, {Path(self.folder).parent}, in which "
                "learners.sharding_kwargs checkpoint_format='sharded' lets each of "
                "them write its part. Put the folder on a disk that all machines have "
                "(rllib-llm train writes to TMPDIR first), or set "
                "checkpoint_format='full'."
            )


@dataclasses.dataclass(frozen=True)
class LoadShards:
    """A call on all Learners: read the parts that each of them holds.

    Their number may differ from that of the Learners that wrote.
    """

    folder: str

    def __call__(self, learner: LLMLearnerMixin) -> None:
        import torch.distributed.checkpoint as dcp

        reader = dcp.FileSystemReader(self.folder)
        saved = reader.read_metadata().state_dict_metadata
        parameters = {
            name: [p for group in optimizer.param_groups for p in group["params"]]
            for name, optimizer in learner._named_optimizers.items()
        }
        tensors = {}
        for key in saved:
            name, index, kind = key.rsplit("/", 2)
            parameter = parameters[name][int(index)].detach()
            tensors[key] = (
                torch.zeros(())
                if kind == _STEP
                else torch.zeros_like(parameter, dtype=torch.float32)
            )
        with warnings.catch_warnings():
            # One Learner alone is meant to read everything.
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            dcp.load(tensors, storage_reader=reader, no_dist=world_size() == 1)
        for name, optimizer in learner._named_optimizers.items():
            state: dict[int, dict[str, torch.Tensor]] = {}
            for key, value in tensors.items():
                owner, index, kind = key.rsplit("/", 2)
                if owner == name:
                    state.setdefault(int(index), {})[kind] = value
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
