"""Cost per token over the number of episodes, turns, context tokens and EnvRunners.

Run:  python benchmarks/growth.py [--axes episodes turns context runners]

The standing workload (docs/performance.md). The settings of an axis are measured
alternately, so that other load affects all of them equally. Times are CPU seconds,
except for EnvRunners, which run in other processes, and for the latency of the
environment: both are measured in wall time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import ray
import torch
from standing import Measured, Ours
from standing_game import UPPER
from standing_workload import StandingGame, standing_config

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.data.types import TurnResult

# Per axis, what standing_config gets; the first is what the others are compared with.
AXES: dict[str, dict[str, dict[str, int]]] = {
    "episodes": {
        "16": {"groups": 2},
        "64": {"groups": 8},
        "256": {"groups": 32},
    },
    "turns": {
        "2": {"turns": 2},
        "5": {"turns": 5},
        "20": {"turns": 20},
    },
    "context": {
        "256": {"turns": 2, "groups": 2, "filler": 190},
        "1024": {"turns": 2, "groups": 2, "filler": 940},
        "4096": {"turns": 2, "groups": 2, "filler": 4000},
    },
    "runners": {"1": {"runners": 1}, "2": {"runners": 2}},
    "latency": {"0 ms": {"latency_ms": 0}, "50 ms": {"latency_ms": 50}},
}
WALL = ("runners", "latency")


class SlowGame(StandingGame):
    """The number game with exponentially distributed time per turn."""

    def start(
        self,
        rng: np.random.Generator,
        upper: int = UPPER["game"],
        fixed: bool = False,
        filler: int = 0,
        latency_ms: float = 0.0,
    ) -> str:
        """Hide a number."""
        self.delays_s = rng.exponential(latency_ms / 1000, size=self.max_turns)
        return super().start(rng, upper, fixed, filler)

    def reply(self, action: int) -> TurnResult:
        """Wait, then return the reply."""
        time.sleep(self.delays_s[self.turn - 1])
        return super().reply(action)


def main() -> None:
    """Print one table per axis."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--axes", nargs="+", default=list(AXES), choices=list(AXES))
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    quiet_loggers()
    torch.set_num_threads(1)
    # A remote runner imports the workload from here.
    here, path = str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([here, path])}},
    )
    for axis in args.axes:
        print_axis(axis, args.repeats)


def print_axis(axis: str, repeats: int) -> None:
    """Measure the settings of one axis and print their table."""
    clock = time.perf_counter if axis in WALL else time.process_time
    contenders = {value: build(clock, **keys) for value, keys in AXES[axis].items()}
    for ours in contenders.values():
        ours.measure()  # warm-up
    runs: dict[str, list[Measured]] = {value: [] for value in contenders}
    for _ in range(repeats):
        for value, ours in contenders.items():
            runs[value].append(ours.measure())
    for ours in contenders.values():
        ours.algo.stop()
    unit = "s" if axis in WALL else "CPU-s"
    first = next(iter(runs))
    print(
        f"\n| {axis} | rollout: sampled tok / {unit} | against {first} | update: "
        f"sequence tok / {unit} | against {first} | iteration, {unit} | sampled tokens "
        f"| sequence tokens |\n|{'---|' * 8}"
    )
    for value, measured in runs.items():
        cells = [value]
        for rate in (rollout_rate, update_rate):
            pairs = zip(measured, runs[first], strict=True)
            ratio = statistics.median(rate(a) / rate(b) for a, b in pairs)
            middle = statistics.median(rate(m) for m in measured)
            cells += [f"{middle:,.0f}", f"{ratio:.2f}"]
        cells += [f"{statistics.median(m.total_s for m in measured):.2f}"]
        cells += [f"{measured[-1].sampled:,}", f"{measured[-1].sequence:,}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def build(
    clock: Callable[[], float],
    runners: int = 0,
    latency_ms: int | None = None,
    **keys: Any,
) -> Ours:
    """Build an algorithm with ``runners`` remote EnvRunners; 0: in this process.

    With a latency the small model is used, which keeps the engine busy during the
    waits.
    """
    size = "tiny" if latency_ms is None else "small"
    config = standing_config(size, **keys).env_runners(num_env_runners=runners)
    if latency_ms is not None:
        options = {**config.env_config, "latency_ms": latency_ms}
        config.environment(SlowGame, env_config=options)
    return Ours(config, clock)


def rollout_rate(measured: Measured) -> float:
    """Sampled tokens per second of sampling."""
    return measured.sampled / measured.rollout_s


def update_rate(measured: Measured) -> float:
    """Sequence tokens per second of the update."""
    return measured.sequence / measured.update_s


if __name__ == "__main__":
    main()
