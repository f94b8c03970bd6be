"""A learned reward: accuracy under wrong comparisons, and over-optimisation against KL.

Run:    python benchmarks/learned_reward.py --seeds 0 1 2
Table:  python benchmarks/learned_reward.py --table
Plot:   python benchmarks/learned_reward.py --plot docs/learned_reward.png
Writes: benchmarks/results/learned_reward/<reward>_seed<n>.json

The recipe ``human_preferences``: a scorer learns from comparisons of episodes by their
true returns, of which a share is exchanged (0, 0.1 or 0.3), for 24 iterations in which
the policy is not trained, and is then frozen. GRPO raises its score alone, without a KL
penalty, for 25 more. ``true`` has the environment's reward instead. As in Gao et al.
(2022, arXiv 2210.10760), the score and the true success are compared at equal distance
from the first policy.
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

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.recipes import load_recipe

RESULTS = Path(__file__).parent / "results" / "learned_reward"
WARMUP, ITERATIONS, EVERY, HELD_OUT = 24, 25, 5, 200
TRUE = ["scorer=null", "rollouts.rewards=[environment]"]
REWARDS: dict[str, list[str]] = {
    **{f"noise_{noise:g}": [f"scorer.label_noise={noise}"] for noise in (0, 0.1, 0.3)},
    "true": TRUE,
}
SETTINGS = [
    "rollouts.episodes_per_iteration=128",
    "rollouts.rewards=[{name: environment, weight: 0.0}, scorer]",
    f"scorer.warmup_iters={WARMUP}",
    f"scorer.iters={WARMUP}",
    "training.ref_kl_coeff=1e-9",  # measured, without an effect
]


def run(reward: str, seed: int) -> dict[str, Any]:
    """Train one policy and return its curve."""
    overrides = SETTINGS if reward != "true" else [SETTINGS[0], SETTINGS[-1]]
    recipe = load_recipe(
        "human_preferences", [f"seed={seed}", *overrides, *REWARDS[reward]]
    )
    config = recipe.build_config()
    config.evaluation(evaluation_interval=None, evaluation_config={})
    algo = config.build_algo()
    start = time.process_time()
    accuracy, pairs = [], 0.0
    if reward != "true":
        for _ in range(WARMUP):
            result = algo.train()
            accuracy.append(result["learners"]["scorer"]["pair_accuracy"])
            pairs += result["scorer"]["num_units"]
    curve = [{"iteration": 0, "kl": 0.0, "held_out": evaluate(algo, HELD_OUT)}]
    for iteration in range(1, ITERATIONS + 1):
        result = algo.train()
        sampled, learned = result["env_runners"], result["learners"]["default_policy"]
        curve.append(
            {
                "iteration": iteration,
                # Nats per token, of the policy that sampled this iteration.
                "kl": learned.get("ref_kl"),
                "score": result.get("reward_parts", {}).get("scorer"),
                "success": sampled["success_rate"],
                "tokens": sampled["num_completion_tokens"],
                "episode_tokens": sampled["num_completion_tokens"]
                / sampled["num_episodes"],
            }
        )
        if iteration % EVERY == 0:
            curve[-1]["held_out"] = evaluate(algo, HELD_OUT)
    algo.stop()
    return {
        "reward": reward,
        "seed": seed,
        "accuracy": accuracy,
        "pairs": pairs,
        "cpu_min": (time.process_time() - start) / 60,
        "curve": curve,
    }


def records(reward: str) -> list[dict[str, Any]]:
    """Return the results of a reward, by seed."""
    paths = sorted(RESULTS.glob(f"{reward}_seed*.json"))
    return [json.loads(path.read_text()) for path in paths]


def held_out(record: dict[str, Any]) -> list[tuple[int, float]]:
    """Return iterations and true success on held-out tasks."""
    return [
        (point["iteration"], point["held_out"]["success"])
        for point in record["curve"]
        if "held_out" in point
    ]


def print_table() -> None:
    """Print one row per reward, every seed in a cell."""
    print(
        "| comparisons exchanged | accuracy against the true order | success before "
        f"| best | after {ITERATIONS} | KL at the end, nats per token | CPU min |\n"
        + "|---" * 7
        + "|"
    )
    for reward in REWARDS:
        runs = records(reward)
        if not runs:
            continue
        noise = float(reward.split("_")[1]) if "_" in reward else 0.0
        curves = [held_out(run) for run in runs]
        cells = [f"{noise:.0%}" if reward != "true" else "the true reward"]
        # The labels that it is compared with are exchanged too.
        cells.append(
            ", ".join(f"{true_accuracy(run, noise):.2f}" for run in runs)
            if reward != "true"
            else "-"
        )
        for pick in (
            lambda curve: curve[0][1],
            lambda curve: max(success for _, success in curve),
            lambda curve: curve[-1][1],
        ):
            cells.append(", ".join(f"{pick(curve):.2f}" for curve in curves))
        cells.append(", ".join(f"{last_kl(run):.2f}" for run in runs))
        cells.append(f"{statistics.median(run['cpu_min'] for run in runs):.1f}")
        print(f"| {' | '.join(cells)} |")


def true_accuracy(run: dict[str, Any], noise: float) -> float:
    """Return the accuracy against labels that are not exchanged.

    If a share e of the labels is exchanged independently of the score, an accuracy of
    a against them is (a - e) / (1 - 2e) against the true ones.
    """
    seen = statistics.fmean(run["accuracy"][-3:])
    return (seen - noise) / (1 - 2 * noise)


def last_kl(run: dict[str, Any]) -> float:
    """Return the KL of the last iteration that was trained."""
    return next(p["kl"] for p in reversed(run["curve"]) if has_kl(p))


def has_kl(point: dict[str, Any]) -> bool:
    """Return whether an iteration measured its KL; one without an update does not."""
    return point.get("kl") is not None and not math.isnan(point["kl"])


def plot(path: Path) -> None:
    """Draw score and true success over the root of KL, one line per seed."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), sharex=True)
    for index, reward in enumerate(REWARDS):
        for number, run in enumerate(records(reward)):
            points = [p for p in run["curve"] if has_kl(p)]
            distance = [max(p["kl"], 0.0) ** 0.5 for p in points[1:]]
            name = reward.replace("noise_", "exchanged: ").replace(
                "true", "true reward"
            )
            style = {"color": f"C{index}", "alpha": 0.8, "linewidth": 1}
            label = name if number == 0 else None
            true = [p["success"] for p in points[1:]]
            axes[1].plot(distance, true, label=label, **style)
            if reward != "true":
                axes[0].plot(distance, [p["score"] for p in points[1:]], **style)
    for axis, title in zip(axes, ("learned score", "true success"), strict=True):
        axis.set(title=title, xlabel="square root of KL, nats per token")
    axes[1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> None:
    """Run, print the table, or draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rewards", nargs="*", default=list(REWARDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    if args.table:
        print_table()
        return
    if args.plot:
        plot(args.plot)
        return
    quiet_loggers()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for reward in args.rewards:
            found = run(reward, seed)
            path = RESULTS / f"{reward}_seed{seed}.json"
            path.write_text(json.dumps(found, indent=1) + "\n")
            print(reward, seed, found["accuracy"][-1:], held_out(found), flush=True)


if __name__ == "__main__":
    main()
