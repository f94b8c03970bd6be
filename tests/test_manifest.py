"""Manifests: complete and damaged folders, atomic builds."""

from __future__ import annotations

import json

import pytest

from rllib_llm.errors import CheckpointError
from rllib_llm.manifest import (
    MANIFEST_FILE,
    built_whole,
    find_damage,
    remove_partial,
    require_whole,
    write_manifest,
)


@pytest.fixture
def folder(tmp_path):
    """Return a folder of two files and their manifest."""
    with built_whole(tmp_path / "folder") as work:
        (work / "below").mkdir()
        (work / "below" / "a.bin").write_bytes(b"0123")
        (work / "b.json").write_text("{}")
    return tmp_path / "folder"


def test_a_whole_folder_has_no_damage(folder, tmp_path):
    assert find_damage(folder) is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder"]
    (folder / "more").write_text("whatever was added later")
    require_whole(folder)


def test_changes_of_equal_size_need_digests(folder):
    (folder / "below" / "a.bin").write_bytes(b"0124")
    assert find_damage(folder, digests=False) is None
    assert find_damage(folder) == "below/a.bin has other content than was written"
    with pytest.raises(CheckpointError, match=r"below/a\.bin has other content"):
        require_whole(folder)
    write_manifest(folder)
    require_whole(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 9, "files": {}}', "nul"])
def test_a_manifest_of_nonsense_is_damage(folder, text):
    (folder / MANIFEST_FILE).write_text(text)
    assert find_damage(folder) == "manifest.json is not readable"


def test_names_that_lead_elsewhere_are_files_that_are_missing(folder):
    listed = json.loads((folder / MANIFEST_FILE).read_text())
    listed["files"]["below"] = {"size": 4, "sha256": ""}
    (folder / MANIFEST_FILE).write_text(json.dumps(listed))
    assert find_damage(folder) == "below is missing"


def test_a_failed_build_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="full"), built_whole(tmp_path / "x") as work:
        (work / "part").write_text("1")
        raise OSError("full")
    assert not list(tmp_path.iterdir())


def test_partial_folders_of_others_stay(tmp_path):
    for name in ("x.partial-1", "xy.partial-1", "x"):
        (tmp_path / name).mkdir()
    remove_partial(tmp_path / "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x", "xy.partial-1"]
