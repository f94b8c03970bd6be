"""A long run whose processes and nodes are killed, beside one that is left alone.

Run:     python benchmarks/soak.py --iterations 500 --every 10
Writes:  benchmarks/results/soak.json

A Ray cluster of four nodes on this machine: the head, two for EnvRunners, one for the
Learner. ``rllib-llm train`` trains ``guess_number_grpo`` on it, with checkpoints and
Tune's restarts. Each time the run has made ``--every`` iterations, an EnvRunner, the
Learner or a node with an EnvRunner is killed; another node then joins. At the end every
iteration must be in the results once, with all its episodes, and evaluation tells what
the policy has learned.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
# In the usual folder it would be the default cluster of all processes.
os.environ.setdefault("RAY_TMPDIR", tempfile.mkdtemp(prefix="ray"))

import psutil
from ray.cluster_utils import Cluster

RESULTS = Path(__file__).parent / "results" / "soak.json"
TITLES = {"env_runner": "ray::LLMEnvRunner", "learner": "ray::_WrappedExecutable"}
SETTINGS = [
    "env_runners.num_env_runners=2",
    "learners.num_learners=1",
    "resources.placement={env_runners: samplers, learners: trainers}",
    "resources.wait_for_nodes_s=120",
    "fault_tolerance.delay_between_env_runner_restarts_s=1",
    "fault_tolerance.env_runner_health_probe_timeout_s=5",
    "fault_tolerance.min_healthy_timeout_s=120",
    "tune.checkpoint_frequency=5",
    "tune.max_failures=1000",
    "training.lr=1e-4",
]
SAMPLERS = {"num_cpus": 1, "resources": {"samplers": 1}}
TRAINERS = {"num_cpus": 1, "resources": {"trainers": 1}}
HANGS_S = 300.0  # without a new row


class Machines:
    """The cluster and the processes on it."""

    def __init__(self) -> None:
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": 0}
        )
        self.samplers = [self.cluster.add_node(**SAMPLERS) for _ in range(2)]
        self.cluster.add_node(**TRAINERS)

    def kill(self, kind: str) -> bool:
        """Kill a process or node of a kind; False if none is there just now."""
        if kind == "node":
            self.cluster.remove_node(self.samplers.pop(0), allow_graceful=False)
            self.samplers.append(self.cluster.add_node(**SAMPLERS))
            return True
        victims = [p for p in descendants() if title(p).startswith(TITLES[kind])]
        if not victims:
            return False
        random.choice(victims).send_signal(signal.SIGKILL)
        return True


def descendants() -> list[psutil.Process]:
    """Return the processes that this one started, directly or not."""
    return psutil.Process().children(recursive=True)


def title(process: psutil.Process) -> str:
    """Return a process's title; empty if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def train(machines: Machines, storage: Path, every: int, iterations: int) -> Any:
    """Run to the end, and kill something after each ``every`` iterations if not 0."""
    command = [sys.executable, "-m", "rllib_llm", "train", "guess_number_grpo"]
    command += [*SETTINGS, f"stop.training_iteration={iterations}"]
    command += ["evaluation.evaluation_interval=50", "--storage", str(storage)]
    process = subprocess.Popen(
        command,
        env={**os.environ, "RAY_ADDRESS": machines.cluster.address},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    kills, started, seen, changed = [], time.monotonic(), 0, time.monotonic()
    while process.poll() is None:
        time.sleep(0.2)
        newest = max((row["training_iteration"] for row in rows(storage)), default=0)
        if newest != seen:
            seen, changed = newest, time.monotonic()
        if time.monotonic() - changed > HANGS_S:
            process.kill()
            raise SystemExit(f"No new iteration within {HANGS_S:g} s after {seen}.")
        if every and seen // every > len(kills) and seen < iterations:
            kind = random.choice(["env_runner", "learner", "node"])
            if machines.kill(kind):
                kills.append({"iteration": seen, "kind": kind})
                print(kills[-1], f"{time.monotonic() - started:.0f} s", flush=True)
    if process.returncode:
        raise SystemExit(process.stderr.read()[-3000:] if process.stderr else "")
    return kills, time.monotonic() - started


def rows(storage: Path) -> list[dict[str, Any]]:
    """Return the results of all iterations that were written whole."""
    found = []
    for path in storage.glob("*/*/result.json"):
        for line in path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # the last line is being written
    return found


def summary(kills: list[Any], seconds: float, storage: Path) -> dict[str, Any]:
    """Return what a run's results say."""
    found = rows(storage)
    evaluated = [r["evaluation"]["env_runners"] for r in found if r.get("evaluation")]
    return {
        "iterations": [row["training_iteration"] for row in found],
        "episodes": sorted({row["env_runners"]["num_episodes"] for row in found}),
        "lost": sum(row["num_episodes_lost"] for row in found),
        "retried": sum(row["num_groups_retried"] for row in found),
        "success": [row["success_rate"] for row in evaluated],
        "kills": kills,
        "seconds": seconds,
    }


def main() -> None:
    """Run both, print one line for each and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--storage", type=Path, required=True)
    args = parser.parse_args()
    random.seed(0)
    found = {}
    for name, every in (("killed", args.every), ("alone", 0)):
        machines, storage = Machines(), args.storage / name
        run = summary(*train(machines, storage, every, args.iterations), storage)
        machines.cluster.shutdown()
        assert run["iterations"] == list(range(1, args.iterations + 1)), run
        kinds = [kill["kind"] for kill in run["kills"]]
        counts = {kind: kinds.count(kind) for kind in (*TITLES, "node")}
        print(name, counts, {k: run[k] for k in ("episodes", "lost", "retried")})
        print(f"{run['seconds']:.0f} s, held-out success {run['success']}", flush=True)
        found[name] = run
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
