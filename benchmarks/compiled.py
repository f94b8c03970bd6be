"""Update time of the Learner's transformer layers with and without torch.compile.

Run:  OMP_NUM_THREADS=1 python benchmarks/compiled.py tiny [small]

The update of the standing workload, in CPU seconds, measured alternately; the first
update of the compiled model contains the compilation.
"""

from __future__ import annotations

import argparse
import os
import statistics

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from standing import Measured, Ours
from standing_workload import standing_config

from rllib_llm.cli.session import quiet_loggers

NAMES = {"plain": None, "inductor": "inductor"}


def main() -> None:
    """Print one row per size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="+", choices=("tiny", "small"))
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    quiet_loggers()
    torch.set_num_threads(1)
    print(
        "| model | first update, CPU-s | update, CPU-s | relative to plain |\n"
        "|---|---|---|---|"
    )
    for size in args.sizes:
        runs: dict[str, list[Measured]] = {name: [] for name in NAMES}
        ours = {}
        for name, backend in NAMES.items():
            config = standing_config(size).language_model(compile=backend)
            config.training(lr=1e-6, drop_zero_variance_groups=False)
            ours[name] = Ours(config)
            runs[name].append(ours[name].measure())
        for _ in range(args.repeats):
            for name, contender in ours.items():
                runs[name].append(contender.measure())
        plain = [m.update_s / m.sequence for m in runs["plain"][1:]]
        for name, found in runs.items():
            rates = [m.update_s / m.sequence for m in found[1:]]
            pairs = zip(rates, plain, strict=True)
            ratio = statistics.median(a / b for a, b in pairs)
            middle = statistics.median(m.update_s for m in found[1:])
            cells = [f"{size}, {name}", f"{found[0].update_s:.1f}"]
            print(f"| {' | '.join(cells)} | {middle:.2f} | {ratio:.2f} |", flush=True)
        for contender in ours.values():
            contender.algo.stop()


if __name__ == "__main__":
    main()
