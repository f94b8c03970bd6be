"""Conversion of parameters to the states that RLlib transfers and writes to disk.

RLlib converts states to numpy, which has no bfloat16 and raises an error for such
tensors. They are therefore transferred as their bits (uint16).
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.fs
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rllib_llm.distributed import gathered, is_shard, shard_like
from rllib_llm.errors import CheckpointError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

FILE = "module_state.safetensors"  # in the module folders of checkpoints
_BF16 = "@bf16"


def pack(
    tensors: Mapping[str, torch.Tensor], *, dtype: str | None = None, copy: bool = True
) -> dict[str, np.ndarray]:
    """Return tensors as numpy arrays; bfloat16 as uint16 under a marked name.

    Shards are gathered tensor by tensor: all Learners must call this, and the first one
    returns them; the others return what is not sharded.

    Args:
        tensors: Tensors by name.
        dtype: Torch data type to convert floating-point tensors to; None keeps theirs.
        copy: Copy tensors that are in host memory already; a view would follow later
            in-place optimiser steps.
    """
    packed = {}
    for name, tensor in tensors.items():
        is_converted = dtype is not None and tensor.is_floating_point()
        target = getattr(torch, str(dtype)) if is_converted else tensor.dtype
        whole: torch.Tensor | None = tensor.detach()
        if is_shard(tensor):
            # Converted first: fewer bytes are gathered.
            whole = gathered(tensor.detach().to(target))
        if whole is None:
            continue
        # One copy, also from an accelerator.
        moved = whole.to("cpu", target, copy=copy).contiguous()
        if moved.dtype == torch.bfloat16:
            packed[name + _BF16] = moved.view(torch.uint16).numpy()
        else:
            packed[name] = moved.numpy()
    return packed


def unpack(state: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Return the tensors that :func:`pack` converted."""
    tensors = {}
    for name, value in state.items():
        # Arrays from Ray's object store are read-only, which torch warns about.
        array = np.asarray(value)
        tensor = torch.as_tensor(array if array.flags.writeable else array.copy())
        if name.endswith(_BF16):
            name, tensor = name.removesuffix(_BF16), tensor.view(torch.bfloat16)
        tensors[name] = tensor
    return tensors


def save(packed: Mapping[str, np.ndarray], path: Path) -> None:
    """Write the result of :func:`pack` as a safetensors file, which holds no code."""
    tensors = {name: t.contiguous() for name, t in unpack(packed).items()}
    path.touch()
    access = path.stat().st_mode
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(access)  # safetensors writes 0600


def load(path: Path) -> dict[str, np.ndarray]:
    """Return the packed state that :func:`save` wrote.

    Raises:
        CheckpointError: If the file is missing or damaged.
    """
    try:
        return pack(load_file(path), copy=False)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"The weights of a policy cannot be read from {path}: {error}. Use another "
            "checkpoint of the run."
        ) from error


@contextlib.contextmanager
def written_to(folder: str, filesystem: FileSystem) -> Iterator[Path]:
    """Yield a local folder whose content is copied to ``folder`` after the block.

    Args:
        folder: An existing folder of ``filesystem``.
        filesystem: A pyarrow file system.
    """
    if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory() as local:
        yield Path(local)
        pyarrow.fs.copy_files(local, folder, destination_filesystem=filesystem)


@contextlib.contextmanager
def read_from(file: str, filesystem: FileSystem) -> Iterator[Path]:
    """Yield a local copy of a file of a pyarrow file system, or the file itself."""
    if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
        yield Path(file)
        return
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder, Path(file).name)
        pyarrow.fs.copy_files(file, str(local), source_filesystem=filesystem)
        yield local


def copy_into(
    targets: Mapping[str, torch.Tensor],
    source: Mapping[str, torch.Tensor],
    what: str,
    *,
    optional: tuple[str, ...] = (),
) -> None:
    """Copy ``source`` into ``targets`` in place after checking names and shapes.

    Args:
        targets: Parameters by name.
        source: Their new values.
        what: Owner of the parameters, for the message.
        optional: Name prefixes of parts that ``source`` may lack completely.

    Raises:
        CheckpointError: If a name is additional or missing, or a shape differs; then
            no tensor has been changed.
    """
    for name in [*targets, *source]:
        ours, theirs = targets.get(name), source.get(name)
        if theirs is None and _is_left_out(name, source, optional):
            continue
        if ours is None or theirs is None or ours.shape != theirs.shape:
            raise CheckpointError(
                f"The state of another model was given to {what}: {name!r} has "
                f"{_shape(theirs)} there and {_shape(ours)} here. Use the checkpoint "
                "with the language_model settings of its run."
            )
    with torch.no_grad():
        for name, value in source.items():
            targets[name].copy_(shard_like(value, targets[name]))


def _is_left_out(
    name: str, source: Mapping[str, torch.Tensor], optional: tuple[str, ...]
) -> bool:
    part = next((p for p in optional if name.startswith(p)), None)
    return part is not None and not any(n.startswith(part) for n in source)


def _shape(tensor: torch.Tensor | None) -> str:
    return "nothing" if tensor is None else f"shape {tuple(tensor.shape)}"


def fingerprint(parameters: Iterable[torch.Tensor], count: int = 256) -> np.ndarray:
    """Return one number per tensor that identifies a base model. float32 [N]

    Args:
        parameters: Tensors in a fixed order.
        count: Number of leading elements to read of each tensor.
    """
    return np.array(
        [float(p.detach().flatten()[:count].double().abs().sum()) for p in parameters],
        np.float32,
    )


def check_fingerprint(ours: np.ndarray, theirs: np.ndarray, what: str) -> None:
    """Check that adapters belong to the base model.

    Raises:
        CheckpointError: If the fingerprints differ by more than a change of dtype.
    """
    # The tolerance admits the same base in float32 and in bfloat16.
    theirs = np.asarray(theirs)
    if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=1e-2):
        raise CheckpointError(
            f"The adapters given to {what} were trained on another base model. Use the "
            "language_model.model of their run."
        )
