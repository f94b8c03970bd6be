"""Runs ``tests/device`` on the device, with the sync debug mode of CUDA."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from part import ROOT, Part, run

# One file for a quick run of this script on the stand-in.
SMALL = ("tests/device/test_engine.py", "-k", "plain")


def main(part: Part) -> None:
    """Write one row per failed test and one of the numbers."""
    if part.device_name == "cpu":
        part.skip("the CPU is not an accelerator: use --device standin")
    tests = SMALL if part.is_small else ("tests/device",)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={
            **os.environ,
            "RLLIB_LLM_TEST_DEVICE": part.device_name,
            # Chosen at random sizes by default. With ":16:8", cuBLAS of CUDA 13.0 wrote
            # past its workspace on an H200, over other tensors.
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(done.stdout, flush=True)
    for line in re.findall(r"^(?:FAILED|ERROR) .*", done.stdout, re.MULTILINE):
        part.row(result=line[:200])
    part.row(result=done.stdout.strip().splitlines()[-1].strip("= "))
    if done.returncode:
        raise SystemExit(f"pytest ended with status {done.returncode}.")


if __name__ == "__main__":
    run(main, "pytest", "torch", "ray", "gymnasium")
