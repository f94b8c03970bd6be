"""A newcomer's first quarter of an hour: the README's own lines, run as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.ray
def test_the_readmes_own_environment_is_trained_evaluated_and_viewed(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```bash newcomer\n(.*?)```", readme, re.DOTALL)
    commands = Path(sys.executable).parent
    env = os.environ | {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "RLLIB_LLM_CACHE": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=900,  # "in 15 minutes on 2 cores"
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    source = (tmp_path / "riddles.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 60
    written = json.loads((tmp_path / "riddles.json").read_text(encoding="utf-8"))
    (result,) = written["evaluations"]
    assert result["success"]["mean"] > 0.8
    page = (tmp_path / "riddles.html").read_text(encoding="utf-8")
    assert "riddles" in page and "<script" in page
