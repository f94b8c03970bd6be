"""Comparison of a team, one agent, and votes with equal numbers of sampled tokens.

Run:  python benchmarks/team_votes.py --seeds 0 1 2
      python benchmarks/team_votes.py --table

Bisection for a hidden number (guess_number-v0 inside team-v0) with the tiny model. All
arms have the same number of agent turns per iteration: 96 games of one agent, 48 of
two, 32 of three. Results are in benchmarks/results/team_votes/; the table is that of
docs/algorithms/marft.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from teams import spread, success

from rllib_llm import GRPOConfig, MARFTConfig
from rllib_llm.cli.session import quiet_loggers
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.evaluation.teams import play_assignment

RESULTS = Path(__file__).parent / "results" / "team_votes"
ITERATIONS, TURNS_PER_ITERATION, HELD_OUT = 40, 96, 256
VOTERS = ["ann_0", "ben_0", "cat_0"]
PAIR = ["adviser_0", "solver_0"]


def votes(config: Any, voters: list[str]) -> Any:
    """Return the config of voters that share a policy; one agent decides alone."""
    options = {"agents": voters, "topology": {}, "decide": "vote"}
    config.multi_agent(policies=["one"], policy_mapping_fn=dict.fromkeys(voters, "one"))
    return _play(config.rollouts(group_size=8), options, len(voters))


def pair(config: Any) -> Any:
    """Return the config of an adviser and a solver with separate policies."""
    roles = {name: name.partition("_")[0] for name in PAIR}
    config.multi_agent(policies=[*roles.values()], policy_mapping_fn=roles)
    config.training(level="token", critic="shared", critic_lr=2e-3)
    return _play(config, {"agents": PAIR, "topology": "chain"}, 2)


def _play(config: Any, options: dict[str, Any], agents: int) -> Any:
    task = {"task": "guess_number-v0", "task_config": {"upper": 15, "max_turns": 4}}
    train = {"max_turns": "train", "max_tokens_turn": "train"}
    return (
        config.environment("team-v0", env_config={**task, **options})
        .generation(max_new_tokens=8)
        .rollouts(
            episodes_per_iteration=TURNS_PER_ITERATION // agents, stop_policies=train
        )
        .sft(demonstrations=600, mistake_rate=0.5)
        .training(lr=3e-4, minibatch_size=TURNS_PER_ITERATION // agents // 2)
    )


ARMS: dict[str, Callable[[], Any]] = {
    "one agent": lambda: votes(GRPOConfig(), VOTERS[:1]),
    "three votes": lambda: votes(GRPOConfig(), VOTERS),
    "adviser and solver": lambda: pair(MARFTConfig()),
}


def run(arm: str, seed: int) -> dict[str, Any]:
    """Train one arm; evaluate the single agent also with three votes."""
    algo = ARMS[arm]().debugging(seed=seed).build_algo()
    assignment = {a: algo.config.policy_mapping_fn(a, None) for a in _agents(algo)}
    found = {"arm": arm, "seed": seed, **look(algo, assignment, "before")}
    tokens = 0
    for _ in range(ITERATIONS):
        result = algo.train()
        tokens += int(result["env_runners"]["num_completion_tokens"])
    found |= {"tokens": tokens, **look(algo, assignment, "after")}
    if arm == "one agent":
        asked = votes(GRPOConfig(), VOTERS).debugging(seed=seed).build_algo()
        weights = algo.learner_group.get_weights()
        asked.learner_group.set_weights(weights)
        voting = dict.fromkeys(VOTERS, "one")
        found["voted"] = look(asked, voting, "after")["after"]
        asked.stop()
    algo.stop()
    return found


def _agents(algo: Any) -> list[str]:
    return algo.config.env_config["agents"]


def look(algo: Any, assignment: dict[str, str], when: str) -> dict[str, float]:
    """Return success on held-out tasks and the tokens per episode."""
    episodes = play_assignment(algo, assignment, HELD_OUT)
    sampled = sum(
        episode_data(part).num_sampled for e in episodes for part in agent_episodes(e)
    )
    return {when: success(episodes), f"tokens_{when}": sampled / len(episodes)}


def print_table() -> None:
    """Print one row per arm."""
    print(
        "| arm | seeds | before | after | asked thrice | sampled tokens of training | "
        "tokens of a game |\n|---|---|---|---|---|---|---|"
    )
    for arm in ARMS:
        files = sorted(RESULTS.glob(f"{arm.replace(' ', '_')}_*.json"))
        runs = [json.loads(f.read_text()) for f in files]
        if not runs:
            continue
        cells = [arm, str(len(runs))]
        for key in ("before", "after", "voted"):
            values = [r[key] for r in runs if key in r]
            cells.append(spread(values) if values else "-")
        for key in ("tokens", "tokens_after"):
            cells.append(f"{statistics.mean(r[key] for r in runs):,.0f}")
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    """Run the arms, or print the table of all results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print_table()
        return
    quiet_loggers()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for arm in ARMS:
            found = run(arm, seed)
            name = f"{arm.replace(' ', '_')}_{seed}.json"
            (RESULTS / name).write_text(json.dumps(found, indent=1))
            print(found, flush=True)


if __name__ == "__main__":
    main()
