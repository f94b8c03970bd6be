"""A run with a diverging learning rate, without alarms and with each alarm action.

Run:  python benchmarks/guarded.py --seeds 0 1 2

guess_number-v0 from 1 to 7 in three turns, the tiny model after a short SFT,
GRPO at a hundred times a usual learning rate. Prints the table of docs/alarms.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rllib_llm import GRPOConfig
from rllib_llm.cli.session import quiet_loggers

ABSURD_LR = 3e-2
ITERATIONS, HELD_OUT = 12, 128
ACTIONS = (None, "warn", "lower_lr", "rollback", "stop")


def config(action: str | None, seed: int = 0, kl_above: float = 0.05) -> Any:
    """Return the config of a run that diverges without ``action``; None: no alarms."""
    alarm = {"action": action} if action is not None else False
    kl = {"above": kl_above, **alarm} if alarm else False
    return (
        GRPOConfig()
        .environment("guess_number-v0", env_config={"upper": 7, "max_turns": 3})
        .language_model(tiny={"hidden_size": 64, "intermediate_size": 192})
        .generation(max_new_tokens=8)
        .sft(demonstrations=400, mistake_rate=0.3, epochs=2, lr=3e-3, minibatch_size=4)
        .rollouts(episodes_per_iteration=64, group_size=8)
        .training(lr=ABSURD_LR, minibatch_size=16)
        .alarms(kl=kl, return_drop=alarm, nan=alarm, lr_factor=0.1)
        .evaluation(
            evaluation_duration=HELD_OUT,
            evaluation_config=GRPOConfig.overrides(explore=True),
        )
        .debugging(seed=seed)
    )


def success(algo: Any) -> float:
    """Return the held-out success of the policy with sampled actions."""
    return float(algo.evaluate()["env_runners"]["success_rate"])


def run(action: str | None, seed: int = 0, kl_above: float = 0.05) -> dict[str, Any]:
    """Train; return held-out success before and after, and counts of alarm actions."""
    made = config(action, seed, kl_above)
    # Builds the EnvRunner of evaluations; none is run by itself.
    algo = made.evaluation(evaluation_interval=ITERATIONS + 1).build_algo()
    before = success(algo)
    result: dict[str, Any] = {}
    for _ in range(ITERATIONS):
        result = algo.train()
        if result["done"]:
            break
    found = {
        "before": before,
        "after": success(algo),
        "iterations": result["training_iteration"],
        "rollbacks": result["alarms"].get("num_rollbacks", 0),
        "stopped_by": result["alarms"].get("stopped_by", "-"),
    }
    algo.stop()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kl-above", type=float, default=0.05)
    given = parser.parse_args()
    quiet_loggers()
    print("| action | before | after | iterations | rollbacks | stopped by |")
    print("|---|---|---|---|---|---|")
    for action in ACTIONS:
        runs = [run(action, seed, given.kl_above) for seed in given.seeds]
        cells = [action or "alarms off"]
        cells += [f"{statistics.mean(r[k] for r in runs):.2f}" for k in _MEANS]
        for key in ("iterations", "rollbacks", "stopped_by"):
            cells.append(", ".join(str(r[key]) for r in runs))
        print(f"| {' | '.join(cells)} |", flush=True)


_MEANS = ("before", "after")

if __name__ == "__main__":
    main()
