"""Rows that a reader of Ray Data finds, as JSON Lines on this machine."""

from __future__ import annotations

import atexit
import functools
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from rllib_llm.envs.dataset.row_files import absolute_path, write_once, write_rows
from rllib_llm.errors import ConfigError, did_you_mean, summarize

PREFIX = "read_"


def check_read_method(name: str) -> None:
    """Raise ConfigError unless ``ray.data`` has this reader."""
    import ray.data

    readers = [each for each in dir(ray.data) if each.startswith(PREFIX)]
    if name not in readers:
        raise ConfigError(
            f"data.read_method={name!r} is no reader of ray.data. "
            f"{did_you_mean(name, readers)} Choose one of {', '.join(readers)}."
        )


def read_by_ray_data(source: str, method: str, kwargs: Mapping[str, Any]) -> str:
    """Read a source by Ray Data, in its order, and return a file with its rows.

    The file lasts as long as this process, in which a source is read once: numbers of
    rows, which checkpoints hold, then mean the same rows whenever they are read.

    Args:
        source: First argument of the reader: a path, pattern, URI or name of a table.
        method: Name of a function of ``ray.data``.
        kwargs: Its other arguments.

    Raises:
        ConfigError: The reader does not exist, or cannot read the source.
    """
    check_read_method(method)
    key = (source, method, repr(sorted(kwargs.items())))
    files = _files_of_process()
    if key not in files.paths:
        path = Path(files.folder) / f"{len(files.paths)}.jsonl"
        # Tune has left the working folder; what is no path there stays as it is.
        local = absolute_path(source)
        where = local if os.path.exists(local) else source
        write_once(path, functools.partial(_write, where, method, kwargs))
        files.paths[key] = str(path)
    return files.paths[key]


class _Files:
    """Files of this process by what they were read from."""

    def __init__(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="rllib_llm_rows_")
        atexit.register(folder.cleanup)
        self.folder = folder.name
        self.paths: dict[tuple[str, str, str], str] = {}


@functools.cache
def _files_of_process() -> _Files:
    return _Files()


def _write(source: str, method: str, kwargs: Mapping[str, Any], out: IO[str]) -> None:
    import pyarrow
    import ray.data
    from ray.exceptions import RayError

    options = ray.data.DataContext.get_current().execution_options
    kept, options.preserve_order = options.preserve_order, True
    try:
        rows = getattr(ray.data, method)(source, **kwargs)
        for table in rows.iter_batches(batch_size=1024, batch_format="pyarrow"):
            write_rows(table.to_pylist(), out)
    except (
        RayError,
        OSError,
        ValueError,
        TypeError,
        ImportError,
        pyarrow.ArrowException,
    ) as error:
        # Without their values, among which may be keys of a store.
        arguments = "".join(f", {name}=..." for name in kwargs)
        raise ConfigError(
            f"data.files={source!r}: ray.data.{method}({source!r}{arguments}) failed: "
            f"{summarize(error)}. Correct data.files, data.read_method or "
            "data.read_method_kwargs."
        ) from error
    finally:
        options.preserve_order = kept
