"""Imitation of own functions chosen by several filters (docs/saved_episodes.md).

Run:     python benchmarks/evolved_filter.py --seeds 0 1 2
Writes:  benchmarks/results/evolved_filter/seed<n>.json. The stages of evosyn: episodes
         are sampled once for a seed, and each filter chooses from the same. "all" keeps
         what is sampled, "initial" uses the strategy that does not evolve, and
         "success" knows which functions are right.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from examples import Clock, evaluate, script

from rllib_llm.algorithms.driver.saved_episodes import EpisodeSaver
from rllib_llm.cli.session import quiet_loggers
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.recipes import load_recipe

RESULTS = Path(__file__).parent / "results" / "evolved_filter"
FILTERS: dict[str, Any] = {
    "all": [],
    "initial": {"name": "evolved", "children": 0},
    "success": "success",
}


def run(seed: int, held_out: int, names: list[str]) -> dict[str, Any]:
    """Sample once, imitate what each filter chooses, and return the record."""
    write, imitate = load_recipe("evosyn", [f"seed={seed}"]).stages
    folder = Path(tempfile.mkdtemp())
    config = write.build_config()
    config.evaluation(evaluation_interval=None, evaluation_config={})
    config.save_episodes = str(folder / "evolved")
    config.validate()
    record: dict[str, Any] = {"seed": seed, "held_out": held_out, "success": {}}
    record["script"] = script(config)
    clock = Clock()
    config.resolved_model = prepare_language_model(config)
    record["sft"] = clock.minutes()
    clock, algo = Clock(), config.build_algo()
    savers = [
        EpisodeSaver(
            algo.config.copy(copy_frozen=False).rollouts(save_where=FILTERS[name]),
            folder / name,
            "benchmark",
        )
        for name in names
        if name in FILTERS
    ]
    save = algo.save_episodes

    def save_each(episodes: Any) -> None:
        save(episodes)
        for saver in savers:
            saver.save(episodes, algo.iteration + 1)

    algo.save_episodes = save_each
    record["success"]["before"] = evaluate(algo, held_out)["success"]
    rows = [algo.train() for _ in range(int(write.total_iterations or 0))]
    record["filters"] = [row["filters"]["evolved"] for row in rows]
    checkpoint = str(algo.save_to_path(tempfile.mkdtemp()))
    algo.stop()
    record["write"] = clock.minutes()
    for name in names:
        clock, config = Clock(), imitate.build_config()
        config.evaluation(evaluation_interval=None, evaluation_config={})
        config.earlier_stages = {"write": str(folder / name)}
        config.initial_checkpoint = checkpoint
        algo = config.build_algo()
        for _ in range(int(imitate.total_iterations or 0)):
            algo.train()
        record["success"][name] = evaluate(algo, held_out)["success"]
        record["imitate"] = clock.minutes()
        algo.stop()
        print(name, seed, record["success"], flush=True)
    return record


def main() -> None:
    """Run the filters of each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = ["evolved", "all", "initial", "success"]
    parser.add_argument("--filters", nargs="+", choices=names, default=names)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--held-out", type=int, default=400)
    args = parser.parse_args()
    quiet_loggers()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        record = run(seed, args.held_out, args.filters)
        path = RESULTS / f"seed{seed}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        minutes = [record[k] for k in ("sft", "write", "imitate")]
        print(seed, record["success"], minutes, flush=True)


if __name__ == "__main__":
    main()
