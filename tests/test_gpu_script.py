"""``scripts/gpu.py``: parts stand alone, keep to their limits and leave tables."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import gpu
import pytest

ROOT = Path(__file__).parents[1]


def run(tmp_path, *options):
    status = gpu.main(["--sizes", "small", "--out", str(tmp_path), *options])
    return status, json.loads((tmp_path / "results.json").read_text())


def part_of(tmp_path, code, seconds=60):
    """Return a part whose script is ``code``."""
    script = tmp_path / "part_of_a_test.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(gpu.FOLDER)!r})\n{code}")
    return gpu.Part("A test", str(script), seconds)


def is_running(pid):
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().split()[2] not in "ZX"


def test_a_part_that_lacks_something_names_it_and_the_next_one_runs(
    tmp_path, monkeypatch
):
    code = "from part import run\nrun(print, 'no_such_module')\n"
    fine = (
        "from part import run\nrun(lambda part: part.row(value=1234.5, text='a|b'))\n"
    )
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    parts = {"a": part_of(tmp_path / "a", code), "b": part_of(tmp_path / "b", fine)}
    monkeypatch.setattr(gpu, "PARTS", parts)
    status, found = run(tmp_path, "--device", "cpu")
    assert status == 0
    assert found["a"]["outcome"] == "skipped"
    assert found["a"]["reason"] == "not installed: no_such_module"
    assert found["b"]["outcome"] == "ok" and found["b"]["rows"][0]["value"] == 1234.5
    tables = (tmp_path / "tables.md").read_text()
    assert "| value | text |" in tables and "| 1,234 | a\\|b |" in tables


def test_a_part_past_its_limit_ends_with_its_processes_and_keeps_its_rows(
    tmp_path, monkeypatch
):
    code = (
        "import subprocess, time\n"
        "from part import run\n"
        "def main(part):\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        "    part.row(child=child.pid)\n"
        "    time.sleep(600)\n"
        "run(main)\n"
    )
    monkeypatch.setattr(gpu, "PARTS", {"slow": part_of(tmp_path, code, seconds=5)})
    status, found = run(tmp_path, "--device", "cpu")
    assert status == 1 and found["slow"]["outcome"] == "timed out"
    (row,) = found["slow"]["rows"]
    end = time.monotonic() + 10
    while is_running(row["child"]):
        assert time.monotonic() < end, "A process of the part still runs."
        time.sleep(0.05)


def test_a_failure_shows_its_last_line_and_the_minutes_bound_all_parts(
    tmp_path, monkeypatch
):
    part = part_of(tmp_path, "raise SystemExit('gap 0.1 is too large')")
    monkeypatch.setattr(gpu, "PARTS", {"bad": part})
    status, found = run(tmp_path, "--device", "cpu")
    assert status == 1 and found["bad"]["outcome"] == "failed"
    assert found["bad"]["reason"].startswith("gap 0.1 is too large")
    status, found = run(tmp_path, "--device", "cpu", "--minutes", "0")
    assert status == 0 and "minutes are over" in found["bad"]["reason"]


def test_limits_are_those_that_the_page_promises():
    assert all(part.seconds <= 600 for part in gpu.PARTS.values())
    assert sum(part.seconds for part in gpu.PARTS.values()) <= 60 * gpu.MINUTES
    page = (ROOT / "docs" / "gpu.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(gpu.PARTS)


def test_cuda_parts_without_cuda_are_skipped_by_name(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    status, found = run(tmp_path, "--only", "optimizer")
    assert status == 0
    assert found["optimizer"]["reason"] == "torch finds no CUDA device"


@pytest.mark.slow
def test_parts_run_on_the_cpu(tmp_path):
    names = ("machine", "losses", "optimizer", "engine", "examples")
    status, found = run(tmp_path, "--device", "cpu", "--only", *names)
    assert status == 0, found
    assert {r["outcome"] for r in found.values()} == {"ok"}, found


@pytest.mark.slow
def test_parts_run_on_the_stand_in(tmp_path):
    names = ("losses", "optimizer", "update", "packing", "training", "device_tests")
    status, found = run(tmp_path, "--device", "standin", "--only", *names)
    assert status == 0, found
    assert {r["outcome"] for r in found.values()} == {"ok"}, found
    for row in found["update"]["rows"]:
        assert 0 < row["built_gib"] <= row["kept_gib"] < row["peak_gib"]
        is_on_device = "optimizer_offload" not in row["settings"]
        assert (row["built_gib"] < row["kept_gib"]) == is_on_device, row
