"""Whole datasets of the hub and of local folders, read by the library ``datasets``.

The rows of a split are written once into the cache as JSON Lines, so that they are read
by offset as those of a data file.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING

from rllib_llm.envs.dataset.row_files import (
    HUB,
    DataFile,
    absolute_path,
    dataset_cache,
    write_once,
    write_rows,
)
from rllib_llm.errors import ConfigError, MissingExtraError, summarize

if TYPE_CHECKING:
    from datasets import Dataset, DatasetBuilder

_HUB_REPOSITORY = re.compile(
    r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>[^/]+))?/?"
)
_BATCH = 1024
_VERSION = 1  # increase when rows are written in another form


def is_repository(path: str) -> bool:
    """Return whether a path names a dataset of the hub, or a local folder."""
    if path.startswith(HUB):
        return _HUB_REPOSITORY.fullmatch(path) is not None
    return Path(absolute_path(path)).is_dir()


def repository_file(path: str, split: str | None, config_name: str | None) -> DataFile:
    """Return a split of a dataset as a JSON Lines file in the cache.

    Args:
        path: ``hf://datasets/OWNER/NAME``, ``hf://datasets/OWNER/NAME@REVISION`` or a
            local folder in a layout that ``datasets`` reads.
        split: Name of a split, also with a slice (``train[:80%]``) or several
            (``train+validation``); None: ``train``, or the only one.
        config_name: Name of the dataset's configuration; None: the default one.

    Raises:
        ConfigError: The dataset, the configuration or the split does not exist, or a
            file of it cannot be read.
        MissingExtraError: The package ``datasets`` is not installed.
    """
    if path.startswith(HUB):
        return _hub_file(path, split, config_name)
    folder = Path(absolute_path(path)).resolve()
    if folder == folder.parent:
        raise ConfigError(
            f"path={path!r} is the root of the file system. Give the folder of a "
            "dataset, or files."
        )
    return _written(path, folder, _builder(path, str(folder), None, config_name), split)


@lru_cache(maxsize=64)  # the hub is asked once per process
def _hub_file(path: str, split: str | None, config_name: str | None) -> DataFile:
    match = _HUB_REPOSITORY.fullmatch(path)
    assert match is not None  # is_repository() holds
    builder = _builder(path, match["repo"], match["revision"], config_name)
    return _written(path, None, builder, split)


def _library() -> ModuleType:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError.for_extra("datasets", "datasets") from error
    return datasets


def _builder(
    path: str, name: str, revision: str | None, config: str | None
) -> DatasetBuilder:
    """Return what reads a dataset; nothing is downloaded but its description."""
    library = _library()
    if path.startswith(HUB) and Path(name).is_dir():
        raise ConfigError(
            f"path={path!r}: the library datasets would read the folder {name!r} of "
            "the working folder instead. Give the folder's path, or work in another."
        )
    try:
        builder = library.load_dataset_builder(name, config, revision=revision)
    except _errors(library) as error:
        if isinstance(error, ValueError):
            _check_config(path, library, name, revision, config)
        raise ConfigError(
            f"path={path!r} cannot be read as a dataset: {summarize(error)}. Check the "
            "name, the files, the network and, for a private dataset, HF_TOKEN; or "
            "give files, e.g. 'FOLDER/*.jsonl'."
        ) from error
    # Without a network the library falls back to whatever it has in its cache.
    if revision is not None and type(builder).__name__ == "Cache":
        raise ConfigError(
            f"path={path!r}: the hub cannot be reached, and the copy in the cache may "
            f"be of another revision than {revision!r}. Remove '@{revision}', or give "
            "files."
        )
    return builder


def _check_config(
    path: str, library: ModuleType, name: str, revision: str | None, config: str | None
) -> None:
    """Raise ConfigError with the configurations if one of them must be named."""
    configs = library.get_dataset_config_names(name, revision=revision)
    if config is not None and config not in configs:
        raise ConfigError(
            f"config_name={config!r}: {path!r} has no such configuration. Set it to "
            f"one of {', '.join(configs)}."
        )
    if config is None and len(configs) > 1:
        raise ConfigError(
            f"path={path!r} has several configurations. Set config_name to one of "
            f"{', '.join(configs)}."
        )


def _written(
    path: str, folder: Path | None, builder: DatasetBuilder, split: str | None
) -> DataFile:
    """Return the file of a split's rows, which is written if it does not exist."""
    # The folder of the library's own cache has a hash of the dataset's files.
    key = repr((builder.cache_dir, split, _VERSION)).encode()
    digest = hashlib.blake2b(key, digest_size=12).hexdigest()
    target = dataset_cache() / f"{builder.dataset_name}-{digest}.jsonl"
    if not target.is_file():
        rows = _rows(path, builder, split)
        write_once(target, lambda out: _write(rows, out))
    name = path if split is None else f"{path} ({split})"
    return DataFile(target, name, folder)


def _rows(path: str, builder: DatasetBuilder, split: str | None) -> Dataset:
    """Return the rows of a split, as the library's Dataset of Arrow tables."""
    library = _library()
    try:
        builder.download_and_prepare()
    except _errors(library) as error:
        raise ConfigError(
            f"path={path!r}: {summarize(error)}. Correct the files of the dataset."
        ) from error
    split = _checked_split(path, split, list(builder.info.splits))
    try:
        # Arrow's values are the stored ones: pictures as bytes or paths, not decoded.
        return builder.as_dataset(split=split).with_format("arrow")
    except _errors(library) as error:
        raise ConfigError(
            f"split={split!r} of {path!r} cannot be read: {summarize(error)}."
        ) from error


def _checked_split(path: str, split: str | None, names: list[str]) -> str:
    """Return the split to read.

    Raises:
        ConfigError: It does not exist, or none is given and there are several.
    """
    if split is None:
        if "train" in names or len(names) == 1:
            return "train" if "train" in names else names[0]
        raise ConfigError(
            f"path={path!r} has no split 'train'. Set split to one of "
            f"{', '.join(names)}."
        )
    for part in split.split("+"):
        name = part.partition("[")[0].strip()
        if name not in names and name != "all":
            raise ConfigError(
                f"split={split!r}: {path!r} has no split {name!r}. Set it to one of "
                f"{', '.join(names)}, also with a slice as in '{names[0]}[:80%]'."
            )
    return split


def _write(rows: Dataset, out: IO[str]) -> None:
    for batch in rows.iter(batch_size=_BATCH):
        write_rows(batch.to_pylist(), out)


def _errors(library: ModuleType) -> tuple[type[BaseException], ...]:
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    return (
        library.exceptions.DatasetsError,
        HfHubHTTPError,
        HFValidationError,
        OSError,
        ValueError,
        RuntimeError,  # datasets with a script, which is not run
    )
