"""Learning of rllib_llm and TRL on the variant ``game`` of the standing workload.

Run:    python benchmarks/standing_learning.py tiny --lrs 1e-4 1e-3 --seeds 0 1 2
        python benchmarks/standing_learning.py smollm --minibatch 32 --lrs 5e-4 ...
        python benchmarks/standing_learning.py tiny --peer-python PYTHON ...  (TRL)
Table:  python benchmarks/standing_learning.py tiny --table

Both start from the same folder, the model after SFT, and play the same game in 64
episodes per update; of smollm 32 (``--minibatch 32``), and both train LoRA adapters on
a base in bfloat16. A run ends when the mean success of the last 10 updates reaches the
target, or when it has spent ``--max-seconds``. CPU seconds are those of the process
that trains, without loading. Every run is stored in
benchmarks/results/standing_learning/.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from standing import Peer, model_folder, part_of
from standing_game import form_of
from standing_workload import standing_config

from rllib_llm.cli.session import quiet_loggers

RESULTS = Path(__file__).parent / "results" / "standing_learning"
WINDOW = 10  # updates over which success is averaged
PRECISION: dict[str, dict[str, Any]] = {
    "tiny": {"dtype": "float32"},
    "small": {"dtype": "float32"},
    "smollm": {
        "dtype": "bfloat16",
        "lora": {"rank": 16, "alpha": 32, "target_modules": ["q_proj", "v_proj"]},
    },
}
# Success, CPU seconds and sampled tokens of one update.
Update = tuple[float, float, int]


def main() -> None:
    """Run one contender, or print the table of all runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=("tiny", "small", "smollm"))
    parser.add_argument("--peer-python", help="Python of an environment with TRL")
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--max-seconds", type=float, default=float("inf"))
    parser.add_argument("--lrs", type=float, nargs="+", default=[3e-4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--minibatch", type=int, default=64)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    quiet_loggers()
    torch.set_num_threads(1)
    if args.table:
        print_table(args.size, args.target)
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = "trl" if args.peer_python else "rllib_llm"
    for lr in args.lrs:
        for seed in args.seeds:
            path = RESULTS / f"{name}_{args.size}_{args.minibatch}_{lr:g}_{seed}.json"
            run = {
                "contender": name,
                "size": args.size,
                "minibatch": args.minibatch,
                "lr": lr,
                "seed": seed,
                "updates": learn(args, lr, seed),
            }
            path.write_text(json.dumps(run) + "\n")
            print(path.stem, reached(run, args.target), flush=True)


def learn(args: argparse.Namespace, lr: float, seed: int) -> list[Update]:
    """Train to the target or a limit; return one record per update."""
    update, stop = (peer if args.peer_python else ours)(args, lr, seed)
    rows: list[Update] = []
    while len(rows) < args.updates:
        rows.append(update())
        print(len(rows), rows[-1], flush=True)
        recent = [row[0] for row in rows[-WINDOW:]]
        if len(recent) == WINDOW and np.mean(recent) >= args.target:
            break
        if sum(row[1] for row in rows) >= args.max_seconds:
            break
    stop()
    return rows


def ours(
    args: argparse.Namespace, lr: float, seed: int
) -> tuple[Callable[[], Update], Callable[[], Any]]:
    """Return functions that make one update of this package, and that stop it."""
    settings = {"groups": groups_of(args), "seed": seed, **PRECISION[args.size]}
    config = standing_config(args.size, "game", **settings)
    config.training(lr=lr, minibatch_size=args.minibatch)
    algo = config.build_algo()

    def update() -> Update:
        start = time.process_time()
        found = algo.train()["env_runners"]
        seconds = time.process_time() - start
        tokens = int(found["num_completion_tokens"])
        return round(float(found["success_rate"]), 6), round(seconds, 3), tokens

    return update, algo.stop


def peer(
    args: argparse.Namespace, lr: float, seed: int
) -> tuple[Callable[[], Update], Callable[[], Any]]:
    """Return functions that make one update of TRL, and that stop it."""
    trl = Peer(
        args.peer_python,
        model_folder(args.size, "game"),
        mode="rollout_func",
        variant="game",
        learning_rate=lr,
        minibatch=args.minibatch,
        seed=seed,
        form=form_of(args.size),
        part=part_of(args.size),
        groups=groups_of(args),
        dtype=PRECISION[args.size]["dtype"],
        lora=json.dumps(PRECISION[args.size].get("lora")),
    )

    def update() -> Update:
        found = trl.measure()
        return round(found.success, 6), round(found.total_s, 3), int(found.sampled)

    return update, trl.stop


def groups_of(args: argparse.Namespace) -> int:
    """Return the groups of 8 episodes per update."""
    return max(args.minibatch, 32 if args.size == "smollm" else 64) // 8


def reached(run: dict[str, Any], target: float) -> tuple[int, float, int] | None:
    """Return updates, CPU seconds and tokens to the target, or None."""
    success, seconds, tokens = zip(*run["updates"], strict=True)
    for end in range(WINDOW, len(success) + 1):
        if statistics.fmean(success[end - WINDOW : end]) >= target:
            return end, sum(seconds[:end]), sum(tokens[:end])
    return None


def print_table(size: str, target: float) -> None:
    """Print one row per contender and setting: each seed, and the medians."""
    print(
        f"| contender | minibatch | lr | updates to {target}, by seed | CPU-s, by seed "
        "| sampled tokens, by seed | CPU-s, median | tokens, median |\n"
        + "|---" * 8
        + "|"
    )
    runs: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        run = json.loads(path.read_text())
        if run["size"] == size:
            key = (run["contender"], run["minibatch"], run["lr"])
            runs.setdefault(key, []).append(run)
    for (name, minibatch, lr), group in sorted(runs.items()):
        ends = [reached(run, target) for run in group]
        shown = zip(*(end or ("-",) * 3 for end in ends), strict=True)
        cells = [name, str(minibatch), f"{lr:g}"]
        cells += [", ".join(map(_show, column)) for column in shown]
        for index in (1, 2):  # runs that do not reach the target are the slowest
            values = [end[index] if end else np.inf for end in ends]
            cells.append(_show(statistics.median(values)))
        print(f"| {' | '.join(cells)} |")


def _show(value: Any) -> str:
    if isinstance(value, str) or value == np.inf:
        return "-"
    return f"{value:,.0f}"


if __name__ == "__main__":
    main()
