"""Success at several ages of the sampling weights, with and without correction.

Run:     python benchmarks/staleness.py --seeds 0 1 2
Table:   python benchmarks/staleness.py --table (for another learning rate: --lr 3e-4)
Figure:  python benchmarks/staleness.py --plot docs/staleness.png
Writes:  benchmarks/results/staleness/<variant>[_lr<lr>]_seed<n>.json

The recipe ``guess_number_grpo`` at a higher learning rate, with one EnvRunner process.
The script pauses after each update, so that the EnvRunner is as far ahead as it may be
and the age is the bound. ``none`` is what ``validate()`` refuses: PPO's ratio compares
the Learner with itself, and nothing corrects for older weights.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from examples import evaluate

from rllib_llm import GRPO, GRPOConfig
from rllib_llm.cli.session import quiet_loggers
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.recipes import load_recipe

RESULTS = Path(__file__).parent / "results" / "staleness"
CORRECTIONS: dict[str, dict[str, Any]] = {
    "token": {"tis": "token"},
    "ratio": {"tis": None, "old_logps": "engine"},
    "none": {"tis": None},
}
VARIANTS = {
    "0": (0, "token"),
    **{f"{k}_{name}": (k, name) for k in (1, 4) for name in CORRECTIONS},
}
LAST = 5  # iterations whose training success is averaged
LR = 1e-3  # of files without one in their names


class Uncorrected(GRPOConfig):
    """GRPO that trains on older weights' samples without correction."""

    @property
    def corrects_staleness(self) -> bool:
        """Always True, so that the configuration is not refused."""
        return True


class UncorrectedGRPO(GRPO):
    """Its algorithm, which validates the config once more."""

    @classmethod
    def get_default_config(cls) -> Uncorrected:
        """Return the config that is not refused."""
        return Uncorrected(cls)


def config(variant: str, seed: int, lr: float) -> GRPOConfig:
    """Return the run's config."""
    ahead, correction = VARIANTS[variant]
    made = load_recipe("guess_number_grpo", [f"seed={seed}"]).stages[0].build_config()
    if correction == "none":
        made.__class__ = Uncorrected  # with all settings of the recipe
        made.algo_class = UncorrectedGRPO
    made.training(lr=lr, max_staleness=ahead or None, **CORRECTIONS[correction])
    made.env_runners(num_env_runners=1, sample_ahead=ahead)
    return made.evaluation(evaluation_interval=None, evaluation_config={})


def run(variant: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train one variant with one seed and return its record."""
    made = config(variant, seed, args.lr)
    made.validate()
    made.resolved_model = prepare_language_model(made)
    algo, rows = made.build_algo(), []
    before = evaluate(algo, args.held_out)["success"]
    for _ in range(args.iterations):
        result = algo.train()
        learner = result["learners"]["default_policy"]
        rows.append(
            {
                "success": result["env_runners"]["success_rate"],
                "age": learner["policy_staleness_mean"],
                "weight": learner.get("is_weight_mean", 1.0),
                "effective": learner.get("is_effective_sample_frac", 1.0),
                "kl": learner["approx_kl_k3"],
            }
        )
        if VARIANTS[variant][0]:
            time.sleep(args.pause)
    after = evaluate(algo, args.held_out)["success"]
    algo.stop()
    return {"variant": variant, "seed": seed, "lr": args.lr, "before": before} | {
        "after": after,
        "rows": rows,
    }


def mean_of(rows: list[dict[str, float]], key: str) -> float:
    """Return the mean over the iterations that had an update; NaN without any."""
    values = [row[key] for row in rows if math.isfinite(row[key])]
    return statistics.mean(values) if values else math.nan


def name_of(variant: str, lr: float) -> str:
    """Return the first part of the names of a variant's files."""
    return variant if lr == LR else f"{variant}_lr{lr:g}"


def print_table(lr: float) -> None:
    """Print one row per variant."""
    print(
        "| age bound | correction | mean age | held-out success, by seed | median "
        "| training success in the middle | effective sample size |\n|" + 7 * "---|"
    )
    for variant, (ahead, correction) in VARIANTS.items():
        records = records_of(variant, lr)
        if not records:
            continue
        rows = [row for record in records for row in record["rows"]]
        middles = []
        for record in records:
            middle = len(record["rows"]) // 2
            window = record["rows"][middle - LAST : middle]
            middles.append(mean_of(window, "success"))
        after = [record["after"] for record in records]
        cells = [
            str(ahead),
            correction if ahead else "-",
            f"{mean_of(rows, 'age'):.1f}",
            ", ".join(f"{value:.2f}" for value in after),
            f"{statistics.median(after):.2f}",
            f"{statistics.median(middles):.2f}",
            f"{mean_of(rows, 'effective'):.3f}" if correction == "token" else "-",
        ]
        print(f"| {' | '.join(cells)} |")


def records_of(variant: str, lr: float) -> list[dict[str, Any]]:
    """Return the records of all seeds."""
    paths = sorted(RESULTS.glob(f"{name_of(variant, lr)}_seed*.json"))
    return [json.loads(path.read_text()) for path in paths]


def plot(path: Path) -> None:
    """Draw training success over iterations by learning rate and bound."""
    from matplotlib import pyplot

    rates, bounds = (LR, 3e-4), (1, 4)
    figure, axes = pyplot.subplots(2, 2, figsize=(9, 5.4), sharex=True, sharey=True)
    for row, lr in enumerate(rates):
        for column, bound in enumerate(bounds):
            axis, of_bound = axes[row][column], {"in turns": "0"}
            of_bound |= {name: f"{bound}_{name}" for name in CORRECTIONS}
            for index, (name, variant) in enumerate(of_bound.items()):
                for number, record in enumerate(records_of(variant, lr)):
                    success = [each["success"] for each in record["rows"]]
                    smooth = [
                        statistics.mean(success[max(0, i - LAST + 1) : i + 1])
                        for i in range(len(success))
                    ]
                    axis.plot(
                        range(1, len(smooth) + 1),
                        smooth,
                        color=f"C{index}",
                        linewidth=1,
                        label=None if number else name,
                    )
            axis.set(title=f"lr {lr:g}, age bound {bound}")
            axis.legend(fontsize=7)
    for axis in axes[1]:
        axis.set(xlabel="iteration")
    for axis in axes[:, 0]:
        axis.set(ylabel=f"training success, mean of {LAST}")
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> None:
    """Run the variants, print the table of all results, or draw them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--lr", type=float, default=LR)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds")
    parser.add_argument("--held-out", type=int, default=200)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    if args.plot:
        plot(args.plot)
        return
    if args.table:
        print_table(args.lr)
        return
    quiet_loggers()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for variant in args.variants:
            record = run(variant, seed, args)
            path = RESULTS / f"{name_of(variant, args.lr)}_seed{seed}.json"
            path.write_text(json.dumps(record) + "\n")
            shown = {k: record[k] for k in ("variant", "seed", "before", "after")}
            print(shown, record["rows"][-1], flush=True)


if __name__ == "__main__":
    main()
