"""Manifests and atomic builds of folders, to detect damaged ones."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rllib_llm.errors import CheckpointError

MANIFEST_FILE = "manifest.json"
_VERSION = 1
_PARTIAL = ".partial-"
_CHUNK = 2**20  # bytes


def write_manifest(folder: Path) -> None:
    """Write name, size and SHA-256 digest of every file in ``folder``.

    Call it last: a folder without a manifest counts as incomplete.
    """
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    listed = {
        path.relative_to(folder).as_posix(): {
            "size": path.stat().st_size,
            "sha256": file_digest(path),
        }
        for path in files
        if path != folder / MANIFEST_FILE
    }
    # Replaced atomically: a killed process must not leave half a manifest.
    draft = folder / f"{MANIFEST_FILE}.tmp"
    draft.write_text(
        json.dumps({"version": _VERSION, "files": listed}, indent=1), encoding="utf-8"
    )
    draft.replace(folder / MANIFEST_FILE)


def find_damage(folder: Path, *, digests: bool = True) -> str | None:
    """Return the first difference between a folder and its manifest, else None.

    Files that the manifest does not list are ignored.

    Args:
        folder: A folder that :func:`write_manifest` completed.
        digests: Whether to compare digests, which reads every file; otherwise only
            names and sizes.
    """
    try:
        listed = _read(folder / MANIFEST_FILE)
        for name, expected in listed.items():
            difference = _difference(folder / name, expected, digests=digests)
            if difference is not None:
                return f"{name} {difference}"
    except FileNotFoundError:  # also if it is deleted during the check
        return f"{MANIFEST_FILE}, which is written last, is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST_FILE} is not readable"
    return None


def require_whole(checkpoint: Path) -> None:
    """Check that a checkpoint matches its manifest.

    Raises:
        CheckpointError: If a file is missing or differs.
    """
    damage = find_damage(checkpoint)
    if damage is not None:
        raise CheckpointError(
            f"The checkpoint {checkpoint} is not whole: {damage}. Writing it was "
            "interrupted, or it was changed afterwards. Use an older checkpoint of the "
            "same trial and delete this folder."
        )


def _read(path: Path) -> dict[str, Any]:
    manifest = json.loads(path.read_text(encoding="utf-8"))
    if manifest["version"] != _VERSION:
        raise ValueError(f"version {manifest['version']!r}")
    return manifest["files"]


def _difference(path: Path, expected: dict[str, Any], *, digests: bool) -> str | None:
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    if size != expected["size"]:
        return f"has {size} bytes of {expected['size']}"
    if digests and file_digest(path) != expected["sha256"]:
        return "has other content than was written"
    return None


def file_digest(path: Path) -> str:
    """Return a file's SHA-256; an unchanged file is read once per process."""
    stat = path.stat()
    return _digest_of(os.fspath(path), stat.st_size, stat.st_mtime_ns, stat.st_ino)


@functools.lru_cache(maxsize=4096)
def _digest_of(path: str, size: int, mtime_ns: int, inode: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def built_whole(folder: Path, *, manifest: bool = True) -> Iterator[Path]:
    """Yield a new folder that becomes ``folder`` if the block succeeds.

    Args:
        folder: Must not exist, or be empty.
        manifest: Whether to write a manifest.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = folder.with_name(f"{folder.name}{_PARTIAL}{uuid.uuid4().hex[:8]}")
    work.mkdir()  # not mkdtemp, whose folders other users cannot read
    try:
        yield work
        _share(work)
        if manifest:
            write_manifest(work)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _share(folder: Path) -> None:
    """Give files the permissions of new files (safetensors writes 0600)."""
    access = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(access)


def remove_partial(folder: Path) -> None:
    """Delete leftovers of killed builds of ``folder``; the caller holds its lock."""
    for partial in folder.parent.glob(f"{folder.name}{_PARTIAL}*"):
        shutil.rmtree(partial, ignore_errors=True)
