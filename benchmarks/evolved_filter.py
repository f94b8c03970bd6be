"""Imitation of own functions chosen by several filters (docs/saved_episodes.md).

Run:     python benchmarks/evolved_filter.py all initial evolved success --seeds 0 1 2
Table:   python benchmarks/evolved_filter.py --table
Writes:  benchmarks/results/evolved_filter/<filter>_seed<n>.json: the records of
         benchmarks/examples.py for the preset evosyn. "all" keeps what is sampled,
         "initial" uses the strategy that does not evolve, and "success" knows which
         functions are right. All filters of a seed read the same episodes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from examples import run

from rllib_llm.cli.session import quiet_loggers

RESULTS = Path(__file__).parent / "results" / "evolved_filter"
FILTERS = {
    "all": "[]",
    "initial": "{name: evolved, children: 0}",
    "evolved": "evolved",
    "success": "success",
}
SHOWN = ("kept", "right")


def last_means(record: dict[str, Any], name: str) -> dict[str, float]:
    """Return means of the filter's numbers over the second half of the iterations."""
    rows = [row["evolved"] for row in record.get("filters", [])]
    rows = rows[len(rows) // 2 :]
    keys = ("agreement", *SHOWN)
    means = {}
    for key in [f"{k}_{name}" for k in keys] + ["right_all"]:
        values = [float(row[key]) for row in rows if key in row]
        means[key] = float(np.mean(values)) if values else float("nan")
    return means


def print_table() -> None:
    """Print one row per filter and seed."""
    for path in sorted(RESULTS.glob("*.json")):
        record = json.loads(path.read_text())
        found = last_means(record, path.stem.partition("_")[0])
        before, after = (record[k]["success"] for k in ("before", "after"))
        print(path.stem, f"{before:.3f} {after:.3f}", found)


def main() -> None:
    """Run the filters, or print the table of all results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("filters", nargs="*", choices=[*FILTERS, []])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--held-out", type=int, default=400)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print_table()
        return
    quiet_loggers()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for name in args.filters:
            spec = f"stages.write.rollouts.save_where={FILTERS[name]}"
            record = run("evosyn", seed, args.held_out, [spec])
            path = RESULTS / f"{name}_seed{seed}.json"
            path.write_text(json.dumps(record, indent=1) + "\n")
            ends = [record[k]["success"] for k in ("before", "after")]
            print(name, seed, *ends, record["sft"], record["rl"], flush=True)


if __name__ == "__main__":
    main()
