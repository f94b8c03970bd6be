"""Runs on a CUDA machine what has only been run on CPUs, and prints tables.

Run:  python scripts/gpu.py --out build/gpu
      python scripts/gpu.py --only device_tests engine
      python scripts/gpu.py --device standin --sizes small --only losses update

Each part is a process with a time limit, and stands alone: what it needs and lacks is
named in its outcome, and the others run. Nothing is downloaded, and the package need
not be installed. ``docs/gpu.md`` describes the parts.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "gpu"
DEVICES = ("cuda", "standin", "cpu")
SKIPPED = 3
"""Exit status of a part that names what it lacks."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A script of ``benchmarks/gpu``.

    Attributes:
        title: Heading of its table.
        script: File name.
        seconds: Its time limit.
        options: Further arguments.
    """

    title: str
    script: str
    seconds: int
    options: tuple[str, ...] = ()


PARTS = {
    "machine": Part("Machine and versions", "machine.py", 60),
    "losses": Part("Losses in float64, against the CPU", "losses.py", 60),
    "optimizer": Part("Steps of the optimiser", "optimizer.py", 90),
    "engine": Part("Torch engine", "engine.py", 240),
    "update": Part("Updates: speed, and memory against the plan", "update.py", 360),
    "packing": Part("Packed rows and flash attention", "packing.py", 120),
    "device_tests": Part("tests/device", "device_tests.py", 390),
    "training": Part("Iterations with the torch engine", "training.py", 180),
    "vllm_engine": Part("vLLM alone", "engine.py", 240, ("--engine", "vllm")),
    "vllm": Part(
        "Iterations with vLLM in the process", "training.py", 240, ("--engine", "vllm")
    ),
    "vllm_actor": Part(
        "Iterations with vLLM in an actor",
        "training.py",
        240,
        ("--engine", "vllm_actor"),
    ),
    "weights_ipc": Part(
        "Weights to vLLM over CUDA IPC",
        "training.py",
        300,
        ("--engine", "vllm_actor", "--weight_sync", "ipc"),
    ),
    "weights_nccl": Part(
        "Weights to vLLM over NCCL",
        "training.py",
        300,
        ("--engine", "vllm_actor", "--weight_sync", "nccl"),
    ),
    "examples": Part("Tuned examples", "examples.py", 180),
}
MINUTES = 50


def main(argv: list[str] | None = None) -> int:
    """Run the chosen parts; return 1 if one failed."""
    args = parse(argv)
    if args.list:
        for name, part in PARTS.items():
            say(f"{name:14} {part.seconds:4} s  {part.title}")
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * args.minutes
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="rllib_llm_gpu_", dir=args.work) as work:
        for name in args.only:
            left = min(PARTS[name].seconds, end - time.monotonic())
            results[name] = run(name, args, Path(work), left)
            say(outcome_line(name, results[name]))
            write(args.out, results)
    say(f"\nTables: {args.out / 'tables.md'}")
    return int(any(r["outcome"] in ("failed", "timed out") for r in results.values()))


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", choices=DEVICES, default="cuda")
    parser.add_argument(
        "--sizes", choices=("real", "small"), default="real", help="sizes of the models"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all parts")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--work", type=Path, help="folder for models of up to 10 GB")
    parser.add_argument("--list", action="store_true", help="list the parts")
    return parser.parse_args(argv)


def run(
    name: str, args: argparse.Namespace, work: Path, seconds: float
) -> dict[str, Any]:
    """Run one part in a process of its own; return its outcome and its rows."""
    part, file = PARTS[name], args.out / f"{name}.json"
    file.unlink(missing_ok=True)
    if seconds <= 0:
        reason = f"the {args.minutes:g} minutes are over"
        return {"outcome": "skipped", "reason": reason, "seconds": 0.0, "rows": []}
    command = [sys.executable, str(FOLDER / part.script), *part.options]
    command += ["--device", args.device, "--sizes", args.sizes]
    command += ["--work", str(work), "--json", str(file)]
    start = time.monotonic()
    log = args.out / f"{name}.log"
    with log.open("w") as stream:
        status = wait(
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment(work),
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ),
            seconds,
        )
    found = json.loads(file.read_text()) if file.exists() else {"rows": []}
    found["seconds"] = round(time.monotonic() - start, 1)
    names = {0: "ok", SKIPPED: "skipped", None: "timed out"}
    found["outcome"] = names.get(status, "failed")
    if status is None:
        found["reason"] = f"after {seconds:.0f} s; {log}"
    elif found["outcome"] == "failed":
        lines = log.read_text(errors="replace").strip().splitlines()
        found["reason"] = f"{lines[-1][:160] if lines else f'status {status}'}; {log}"
    return found


def wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return the exit status; None if the process group was ended at its limit."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Its children as well: Ray's processes would hold the device's memory.
        if process.poll() is None or group_exists(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def group_exists(group: int) -> bool:
    """Return whether a process group has members."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def environment(work: Path) -> dict[str, str]:
    """Return the variables of a part: the checkout's package, and no network."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "RLLIB_LLM_CACHE": str(work / "cache"),
    }


# Results ------------------------------------------------------------------------------


def outcome_line(name: str, result: dict[str, Any]) -> str:
    """Return one line about a part."""
    reason = result.get("reason") or f"{len(result['rows'])} rows"
    return f"{name:14} {result['outcome']:10} {result['seconds']:6.1f} s  {reason}"


def write(folder: Path, results: dict[str, dict[str, Any]]) -> None:
    """Write ``results.json`` and ``tables.md``."""
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    parts = ["\n".join(outcomes(results))]
    for name, result in results.items():
        if result["rows"]:
            parts.append(f"## {PARTS[name].title}")
            parts.append("\n".join(table(result["rows"])))
    (folder / "tables.md").write_text("\n\n".join(parts) + "\n")


def outcomes(results: dict[str, dict[str, Any]]) -> list[str]:
    """Return a table of the parts' outcomes."""
    keys = ("outcome", "seconds", "reason")
    rows = [{"part": n, **{k: r.get(k, "") for k in keys}} for n, r in results.items()]
    return table(rows)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table; a column for each key of any row."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    lines = [keys, ["---"] * len(keys)]
    lines += [[cell(row.get(key, "")) for key in keys] for row in rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def cell(value: Any) -> str:
    """Return a value as a table's cell."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
