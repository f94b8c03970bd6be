"""Folders that are whole or recognised as damaged: manifests and atomic builds."""

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
    """Write name, size and SHA-256 digest of every file below ``folder``.

    Call it last: a folder without a manifest counts as incomplete.
    """
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    listed = {
        path.relative_to(folder).as_posix(): {
            "size": path.stat().st_size,
            "sha256": _digest(path),
        }
        for path in files
        if path != folder / MANIFEST_FILE
    }
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
        digests: Read every file; otherwise names and sizes alone are compared.
    """
    try:
        listed = _read(folder / MANIFEST_FILE)
        for name, expected in listed.items():
            found = _difference(folder / name, expected, digests=digests)
            if found is not None:
                return f"{name} {found}"
    except FileNotFoundError:  # also: deleted while it is read
        return f"{MANIFEST_FILE}, which is written last, is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST_FILE} is not readable"
    return None


def require_whole(checkpoint: Path) -> None:
    """Refuse a checkpoint that is not what its manifest says.

    Raises:
        CheckpointError: Naming the first file that differs.
    """
    damage = find_damage(checkpoint)
    if damage is not None:
        raise CheckpointError(
            f"The checkpoint {checkpoint} is not whole: {damage}. Writing it was "
            "interrupted, or it was changed afterwards. Use an older checkpoint of the "
            "same trial, and delete this folder."
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
    if digests and _digest(path) != expected["sha256"]:
        return "has other content than was written"
    return None


def _digest(path: Path) -> str:
    """Return a file's digest; an unchanged file is read once per process."""
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
        manifest: Complete it with a manifest.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = folder.with_name(f"{folder.name}{_PARTIAL}{uuid.uuid4().hex[:8]}")
    work.mkdir()  # not mkdtemp, which would keep other users out
    try:
        yield work
        _share(work)
        if manifest:
            write_manifest(work)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _share(folder: Path) -> None:
    """Give files the access that new ones get here (safetensors writes 0600)."""
    access = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(access)


def remove_partial(folder: Path) -> None:
    """Delete what killed builds of ``folder`` left; hold its lock meanwhile."""
    for left in folder.parent.glob(f"{folder.name}{_PARTIAL}*"):
        shutil.rmtree(left, ignore_errors=True)
