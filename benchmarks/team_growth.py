"""Cost of a sampled token for teams of 2 to 6 agents.

Run:  python benchmarks/team_growth.py

The chain of secret_sum-v0 with the tiny model: all agents share one policy, each has a
LoRA adapter on one base model (sampled in one batch, or with one engine per adapter),
or each has a separate model. The settings are measured alternately in CPU seconds; the
tables are those of docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import ray
import torch

from rllib_llm import GRPOConfig
from rllib_llm.cli.session import quiet_loggers
from rllib_llm.data.episode_data import agent_episodes, episode_data

ROLES = ("alice", "bob", "carol", "dave", "erin", "frank")
LORA = {"rank": 8, "alpha": 16}
MODES: dict[str, dict[str, Any]] = {
    "one policy": {"roles": False},
    "adapters, together": {"lora": LORA},
    "adapters, plain forward each": {"lora": LORA, "engine_forward": "plain"},
    "models": {},
}


def team(
    agents: int,
    roles: bool = True,
    lora: dict[str, Any] | None = None,
    engine_forward: str = "auto",
) -> Any:
    """Return an algorithm for a chain of agents."""
    names = list(ROLES[:agents])
    config = (
        GRPOConfig()
        .environment("secret_sum-v0", env_config={"agents": agents, "numbers": 4})
        .language_model(lora=lora)
        .sft(demonstrations=300, mistake_rate=0.5)
        .generation(max_new_tokens=12, engine_forward=engine_forward)
        .rollouts(episodes_per_iteration=64, group_size=8)
        .training(lr=1e-6, drop_zero_variance_groups=False)
    )
    if roles:
        table = {name: name for name in names}
        config.multi_agent(policies=names, policy_mapping_fn=table)
    return config.build_algo()


def measure(algo: Any) -> tuple[float, float, int]:
    """Return CPU seconds of sampling and of the iteration, and sampled tokens."""
    spent = []
    sample = algo.env_runner.sample

    def timed(**kwargs: Any) -> Any:
        start = time.process_time()
        episodes = sample(**kwargs)
        spent.append(time.process_time() - start)
        spent.append(
            sum(
                episode_data(p).num_sampled for e in episodes for p in agent_episodes(e)
            )
        )
        return episodes

    algo.env_runner.sample = timed
    start = time.process_time()
    algo.train()
    total = time.process_time() - start
    algo.env_runner.sample = sample
    return spent[0], total, int(spent[1])


def main() -> None:
    """Print one row per mode and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, nargs="+", default=[2, 3, 4, 6])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    quiet_loggers()
    torch.set_num_threads(1)
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    print(
        "| policies | agents | rollout: sampled tok / CPU-s | against 2 | iteration: "
        "sampled tok / CPU-s | against 2 |\n|---|---|---|---|---|---|"
    )
    for name, settings in MODES.items():
        teams = {n: team(n, **settings) for n in args.agents}
        for algo in teams.values():
            measure(algo)
        runs: dict[int, list[tuple[float, float]]] = {n: [] for n in teams}
        for _ in range(args.repeats):
            for n, algo in teams.items():
                rollout, total, tokens = measure(algo)
                runs[n].append((tokens / rollout, tokens / total))
        first = runs[args.agents[0]]
        for n, rates in runs.items():
            cells = [name, str(n)]
            for i in range(2):
                ratio = [a[i] / b[i] for a, b in zip(rates, first, strict=True)]
                cells.append(f"{statistics.median(r[i] for r in rates):,.0f}")
                cells.append(f"{statistics.median(ratio):.2f}")
            print(f"| {' | '.join(cells)} |", flush=True)
        for algo in teams.values():
            algo.stop()


if __name__ == "__main__":
    main()
