"""Speed of the sandbox on small programs: latency, throughput, CPU time.

    python benchmarks/sandbox.py [--calls 400] [--backends fork_server monty]

Prints a table in Markdown. "CPU" counts this process, the server and the programs; on a
busy machine it is more reliable than the wall times. The last row starts a Python
interpreter for each program without isolation, to show the time of a subprocess.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from rllib_llm.sandbox import Sandbox, probe

PROGRAM = "print(6 * 7)"


def main() -> None:
    """Measure the installed backends and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--backends", nargs="+", default=probe()["backends"])
    args = parser.parse_args()
    print("| backend | threads | p50, ms | p95, ms | calls/s | CPU, ms a call |")
    print("|---|---|---|---|---|---|")
    for backend in args.backends:
        for threads in (1, 4):
            measure(backend, args.calls, threads, partial(Sandbox, backend))
    measure("subprocess, nothing isolated", args.calls // 10, 1, Subprocess)


class Subprocess:
    """Starts an interpreter for each program."""

    def run(self, code: str) -> None:
        """Run a program."""
        subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True)

    def close(self) -> None:
        """Do nothing."""


def measure(name: str, calls: int, threads: int, make: Callable[[], object]) -> None:
    """Print one row.

    Args:
        name: First cell of the row.
        calls: Number of programs.
        threads: Number of threads that run them.
        make: Factory of the sandbox.
    """
    runner = make()
    runner.run(PROGRAM)  # starts what is to be started

    def timed(_: int) -> float:
        began = time.perf_counter()
        runner.run(PROGRAM)
        return time.perf_counter() - began

    cpu, began = cpu_seconds(), time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        ms = np.array(list(pool.map(timed, range(calls)))) * 1000
    wall = time.perf_counter() - began
    runner.close()  # and waits, so that the CPU time of its processes counts here
    cpu = (cpu_seconds() - cpu) * 1000 / calls
    p50, p95 = np.percentile(ms, [50, 95])
    times = f"{p50:.1f} | {p95:.1f} | {calls / wall:.0f} | {cpu:.1f}"
    print(f"| {name} | {threads} | {times} |")


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, who))


if __name__ == "__main__":
    main()
