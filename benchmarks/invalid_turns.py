"""Causes of rising invalid turns after SFT on faultless demonstrations.

Run:     python benchmarks/invalid_turns.py base seq_mean positive --seeds 0 1 2
Table:   python benchmarks/invalid_turns.py --table
Writes:  benchmarks/results/invalid_turns/<case>_seed<n>.json, one per run: per
         iteration how often a turn is invalid after a valid and after an invalid one,
         and the mean advantage of the tokens of both kinds of turns.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from rllib_llm.algorithms.grpo.grpo import GRPO, GRPOConfig
from rllib_llm.cli.session import quiet_loggers
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.types import FinishReason
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.recipes import recipe_from_dict

sys.path.insert(0, str(Path(__file__).parent))
from examples import Clock, evaluate

RESULTS = Path(__file__).parent / "results" / "invalid_turns"
ITERATIONS = 30
RECIPE: dict[str, Any] = {
    "algo": "GRPO",
    "env": "household-v0",
    "env_config": {
        "tasks": ["put"],
        "max_receptacles": 3,
        "clutter": 2,
        "max_turns": 12,
    },
    "language_model": {
        "model": "tiny",
        "tiny": {"hidden_size": 128, "num_hidden_layers": 3, "intermediate_size": 384},
    },
    "generation": {"max_new_tokens": 16, "temperature": 1.0},
    "rollouts": {"episodes_per_iteration": 32, "group_size": 8},
    "sft": {
        "demonstrations": 4000,
        "mistake_rate": 0.0,
        "epochs": 2,
        "lr": 2e-3,
        "minibatch_size": 4,
    },
    "training": {"lr": 3e-4, "num_epochs": 1, "minibatch_size": 8, "clip_param": 0.2},
    "stop": {"training_iteration": ITERATIONS},
}
_ONE_SIGN = {"name": "weigh_signs", "positive": 1.0, "negative": 0.0}
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "base": {},
    "seq_mean": {"training": {"loss_agg_mode": "seq-mean-token-mean"}},
    "positive": {"training": {"token_advantage_transforms": [_ONE_SIGN]}},
    "recover": {"sft": {"mistake_rate": 0.1}},
    "slow": {"training": {"lr": 1e-4}},
}


class CountingGRPO(GRPO):
    """GRPO that counts the turns of the episodes it trains on."""

    def collect(self) -> list[Any]:
        """Sample and assign advantages; keep the iteration's counts in ``counts``."""
        episodes = super().collect()
        self.counts = turn_counts(episodes)
        return episodes


def turn_counts(episodes: list[Any]) -> dict[str, float]:
    """Return rates of invalid turns, and the mean advantage of their tokens."""
    after: dict[bool, list[bool]] = {True: [], False: []}
    cut, tokens, advantages = [], [], []
    kinds: list[bool] = []
    for episode in episodes:
        for part in agent_episodes(episode):
            turns = part.get_extra_model_outputs("turn")
            given = episode_data(part).advantage
            each = np.broadcast_to(0.0 if given is None else given, (len(turns),))
            previous = False
            for turn, advantage in zip(turns, each, strict=True):
                after[previous].append(turn.invalid)
                previous = turn.invalid
                cut.append(turn.finish is FinishReason.LENGTH)
                kinds.append(turn.invalid)
                tokens.append(len(turn.action_ids))
                advantages.append(float(advantage))
    # Without a group of unequal returns, nothing is trained in an iteration.
    weight, value = np.array(tokens, float), np.array(advantages, float)
    is_invalid = np.array(kinds, bool)

    def mean(where: Any) -> float:
        total = weight[where].sum()
        return float((weight * value)[where].sum() / total) if total else 0.0

    def rate(events: list[bool]) -> float:
        return float(np.mean(events)) if events else np.nan

    return {
        "invalid": rate(kinds),
        "after_valid": rate(after[False]),
        "after_invalid": rate(after[True]),
        "cut": rate(cut),
        "success": rate([bool(episode_data(e).success) for e in episodes]),
        "advantage": mean(weight > 0),
        "advantage_valid": mean(~is_invalid),
        "advantage_invalid": mean(is_invalid),
    }


def run(case: str, seed: int) -> dict[str, Any]:
    """Train one case with one seed and return its record."""
    sections = {
        key: {**value, **CASES[case].get(key, {})} if isinstance(value, dict) else value
        for key, value in RECIPE.items()
    }
    config: GRPOConfig = recipe_from_dict({**sections, "seed": seed}).build_config()
    config.algo_class = CountingGRPO
    clock = Clock()
    config.resolved_model = prepare_language_model(config)
    algo = config.build_algo()
    record: dict[str, Any] = {"case": case, "seed": seed, "rows": []}
    record["before"] = evaluate(algo, 200)
    for _ in range(ITERATIONS):
        algo.train()
        record["rows"].append(algo.counts)
    record["after"] = evaluate(algo, 200)
    record.update(clock.minutes())
    algo.stop()
    return record


def print_table() -> None:
    """Print means over iterations 1 to 10 and 21 to 30, one row per run."""
    thirds = (slice(0, 10), slice(20, 30))
    print(
        "| case | seed | held out: after SFT, after RL | invalid turns "
        "| after a valid turn | after an invalid turn "
        "| advantage per token: valid turns | invalid turns |\n|" + 8 * "---|"
    )
    for path in sorted(RESULTS.glob("*_seed*.json")):
        record = json.loads(path.read_text())
        cells = [
            record["case"],
            str(record["seed"]),
            f"{record['before']['success']:.2f}, {record['after']['success']:.2f}",
        ]
        for key in ("invalid", "after_valid", "after_invalid"):
            cells.append(", ".join(f"{_mean(record, key, t):.0%}" for t in thirds))
        for key in ("advantage_valid", "advantage_invalid"):
            cells.append(", ".join(f"{_mean(record, key, t):+.2f}" for t in thirds))
        print(f"| {' | '.join(cells)} |")


def _mean(record: dict[str, Any], key: str, part: slice) -> float:
    return float(np.nanmean([row[key] for row in record["rows"][part]]))


def main() -> None:
    """Parse the command line; run or print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    quiet_loggers()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for case in args.cases:
        for seed in args.seeds:
            path = RESULTS / f"{case}_seed{seed}.json"
            if not path.exists():
                path.write_text(json.dumps(run(case, seed)))
            print(path.name, flush=True)
    if args.table:
        print_table()


if __name__ == "__main__":
    main()
