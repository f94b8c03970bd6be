"""Comparison of presets of the literature with plain GRPO and PPO on the same tasks.

Run:  python benchmarks/presets.py [NAME ...] --seeds 0 1 2
      python benchmarks/presets.py --table

FrozenLake in text, the tiny model, the SFT checkpoint of frozen_lake_grpo, equally many
episodes per iteration in a table; held-out success every four iterations, sampled as in
training. The difference is that of the means over "after 4" to the end, against the
first row, seed by seed.
Results are in benchmarks/results/presets/; the table is that of docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from learning_curves import by_seed, point

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.recipes import load_recipe

RESULTS = Path(__file__).parent / "results" / "presets"
ITERATIONS, EVERY, HELD_OUT = 12, 4, 256
GRPO = (
    "frozen_lake_grpo",
    "dr_grpo",
    "rloo",
    "lite_ppo",
    "reinforce_pp",
    "maxrl",
    "gigpo",
    "dapo",
    "gspo",
    "cispo",
    "sapo",
)
PREFERENCES = (
    "frozen_lake_grpo",
    "better_half_nll",
    "frozen_lake_dpo",
    "dpo_rpo",
    "frozen_lake_dmpo",
    "m_dpo",
    "frozen_lake_kto",
    "m_kto",
)
# Names without a file: another preset with these settings.
VARIANTS = {
    # Filtered imitation: negative log-likelihood where the advantage is positive.
    "better_half_nll": ("frozen_lake_grpo", ["training.policy_loss=nll"]),
    "dpo_rpo": ("frozen_lake_dpo", ["training.nll_weight=0.1"]),
}
PPO = ("frozen_lake_ppo", "turn_ppo", "bilevel_ppo", "vapo")


def run(name: str, seed: int) -> dict[str, Any]:
    """Train one preset and evaluate it at intervals."""
    preset, changes = VARIANTS.get(name, (name, []))
    recipe = load_recipe(preset, [f"seed={seed}", *changes])
    config = recipe.build_config()
    config.evaluation(
        evaluation_interval=None, evaluation_duration=HELD_OUT, evaluation_config={}
    )
    algo = config.build_algo()
    curve, tokens = [point(algo, algo.env_runner, 0, HELD_OUT)], 0
    for iteration in range(1, ITERATIONS + 1):
        result = algo.train()
        tokens += int(result["env_runners"]["num_completion_tokens"])
        if iteration % EVERY == 0:
            curve.append(point(algo, algo.env_runner, iteration, HELD_OUT))
            curve[-1]["tokens"] = tokens
    algo.stop()
    return {"preset": name, "seed": seed, "curve": curve}


def print_table(names: tuple[str, ...]) -> None:
    """Print the median and every seed."""
    at = range(0, ITERATIONS + 1, EVERY)
    heads = " | ".join(f"after {i}" for i in at)
    print(f"| preset | seeds | {heads} | paired difference | sampled tokens |")
    print(f"|{'---|' * (4 + len(at))}")
    plain = _means(names[0])
    for name in names:
        files = sorted(RESULTS.glob(f"{name}_[0-9].json"))
        curves = [json.loads(f.read_text())["curve"] for f in files]
        if not curves:
            continue
        cells = [name, str(len(curves))]
        cells += [by_seed([c[i]["success"] for c in curves]) for i in range(len(at))]
        own = _means(name)
        gains = [own[seed] - plain[seed] for seed in own]
        cells.append("-" if name == names[0] else by_seed(gains))
        cells += [f"{np.mean([c[-1]['tokens'] for c in curves]):,.0f}"]
        print(f"| {' | '.join(cells)} |")


def _means(name: str) -> dict[str, float]:
    """Return the success of each seed: the mean of all points except the first."""
    found = {}
    for path in sorted(RESULTS.glob(f"{name}_[0-9].json")):
        record = json.loads(path.read_text())
        found[record["seed"]] = np.mean([p["success"] for p in record["curve"][1:]])
    return found


def main() -> None:
    """Run the presets, or print the table of all results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        for names in (GRPO, PPO, PREFERENCES):
            print_table(names)
            print()
        return
    quiet_loggers()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for name in args.names or dict.fromkeys((*GRPO, *PPO, *PREFERENCES)):
            found = run(name, seed)
            (RESULTS / f"{name}_{seed}.json").write_text(json.dumps(found, indent=1))
            successes = [p["success"] for p in found["curve"]]
            print(name, seed, successes, flush=True)


if __name__ == "__main__":
    main()
