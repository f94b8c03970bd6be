"""Comparison of advantage estimators for teams on one task, with role ablations.

Run:  python benchmarks/teams.py [METHOD ...] --seeds 0 1 2
      python benchmarks/teams.py --table

Two agents with private numbers, one of which must answer (secret_sum-v0), with the tiny
model after SFT on a scripted policy that is wrong most of the time. Results are in
benchmarks/results/teams/; the tables are those of docs/algorithms/marft.md.
"""

from __future__ import annotations

import argparse
import dataclasses
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

from rllib_llm import GRPOConfig, LLMPPOConfig, MARFTConfig
from rllib_llm.cli.session import quiet_loggers
from rllib_llm.data.episode_data import episode_data
from rllib_llm.evaluation.runner import local_runner
from rllib_llm.evaluation.teams import ablations, play_assignment, swap_matrix

RESULTS = Path(__file__).parent / "results" / "teams"
ALONE = "one agent"  # plays all agents, with all private information in its prompt
ITERATIONS, EPISODES, HELD_OUT = 30, 128, 256
ROLES = ("alice", "bob", "carol")


def marft(**settings: Any) -> Callable[[], Any]:
    """Return a factory of MARFT configs."""
    return lambda: MARFTConfig().training(critic_lr=2e-3, **settings)


def grpo(group_by: str) -> Callable[[], Any]:
    """Return a factory of GRPO configs for groups of 8."""
    return lambda: (
        GRPOConfig()
        .rollouts(group_size=8)
        .training(advantage_group_by=group_by, advantage_scale="group")
    )


@dataclasses.dataclass(frozen=True)
class Method:
    """A method to train a team.

    Attributes:
        make: Factory of the config.
        agents: Number of agents.
        lora: Policies are adapters on one base model.
        rewards: Rewards in addition to those of the game.
    """

    make: Callable[[], Any]
    agents: int = 2
    lora: bool = False
    rewards: tuple[Callable[..., Any], ...] = ()


def tenfold_for_alice(trajectory: Any) -> list[float]:
    """Multiply alice's reward by ten."""
    return [9.0 * r * (trajectory.agent == 0) for r in trajectory.rewards]


METHODS: dict[str, Method] = {
    "marft_a": Method(marft(level="action", critic="shared")),
    "marft_t": Method(marft(level="token", critic="shared")),
    "mappo": Method(marft(level="action", critic="central")),
    "happo": Method(
        marft(level="action", critic="shared", update_schedule="sequential")
    ),
    "magrpo": Method(grpo("task")),
    "dr_mas": Method(grpo("agent")),
    "ippo": Method(lambda: LLMPPOConfig().training(critic_lr=2e-3)),
    "one agent": Method(grpo("agent")),
    "marft_a, three agents": Method(marft(level="action", critic="shared"), agents=3),
    "marft_a, LoRA": Method(marft(level="action", critic="shared"), lora=True),
    "magrpo, unequal rewards": Method(grpo("task"), rewards=(tenfold_for_alice,)),
    "dr_mas, unequal rewards": Method(grpo("agent"), rewards=(tenfold_for_alice,)),
}


def team_config(name: str, seed: int) -> Any:
    """Return the config of one method."""
    method = METHODS[name]
    names = ROLES[: method.agents]
    game, options = "secret_sum-v0", {"numbers": 4, "agents": method.agents}
    config = method.make()
    if name == ALONE:
        game, options = "solo-v0", {"game": game, "game_config": options}
    else:
        roles = {name: name for name in names}
        config.multi_agent(policies=list(names), policy_mapping_fn=roles)
    config = (
        config.environment(game, env_config=options)
        .sft(demonstrations=1000, mistake_rate=0.5)
        .generation(max_new_tokens=12)
        .debugging(seed=seed)
        .rollouts(episodes_per_iteration=EPISODES)
        .training(
            lr=1e-3 if method.lora else 3e-4,
            entropy_coeff=0.005,
            minibatch_size=EPISODES // 4,
        )
    )
    if method.rewards:
        config.rollouts(rewards=list(method.rewards))
    if not method.lora:
        return config
    return config.language_model(lora={"rank": 8, "alpha": 16})


def run(method: str, seed: int) -> dict[str, Any]:
    """Train one team; evaluate it with swapped and silenced roles, too."""
    started, cpu = time.perf_counter(), time.process_time()
    if method == ALONE:
        return run_alone(seed)
    algo = team_config(method, seed).build_algo()
    names = ROLES[: METHODS[method].agents]
    assignment = {f"{name}_0": name for name in names}
    swapped = dict(zip(assignment, (*names[1:], names[0]), strict=True))
    before = success(play_assignment(algo, assignment, HELD_OUT))
    curve, norms = [], {name: [] for name in names}
    for _ in range(ITERATIONS):
        result = algo.train()
        curve.append(float(result["env_runners"]["success_rate"]))
        for name, values in norms.items():
            norm = float(result["learners"].get(name, {}).get("grad_norm", np.nan))
            values.append(norm)
    found = {
        "method": method,
        "seed": seed,
        "before": before,
        "after": success(play_assignment(algo, assignment, HELD_OUT)),
        "greedy": success(play_assignment(algo, assignment, HELD_OUT, explore=False)),
        "swapped": success(play_assignment(algo, swapped, HELD_OUT)),
        "silenced": ablations(algo, HELD_OUT)["alice_0"],
        "curve": curve,
        "grad_norms": norms,
        "matrix": swap_matrix(algo, 64).to_markdown(),
        "minutes": (time.perf_counter() - started) / 60,
        "cpu_minutes": (time.process_time() - cpu) / 60,
    }
    algo.stop()
    return found


def run_alone(seed: int) -> dict[str, Any]:
    """Train one policy that plays all agents, without roles."""
    started, cpu = time.perf_counter(), time.process_time()
    algo = team_config(ALONE, seed).build_algo()
    tasks = algo.config.build_task_source(in_evaluation=True).fixed(HELD_OUT)

    def solved(explore: bool = True) -> float:
        return success(local_runner(algo).sample(tasks=tasks, explore=explore))

    found: dict[str, Any] = {"method": ALONE, "seed": seed, "before": solved()}
    results = [algo.train() for _ in range(ITERATIONS)]
    found |= {
        "after": solved(),
        "greedy": solved(explore=False),
        "curve": [float(r["env_runners"]["success_rate"]) for r in results],
        "minutes": (time.perf_counter() - started) / 60,
        "cpu_minutes": (time.process_time() - cpu) / 60,
    }
    algo.stop()
    return found


def success(episodes: list[Any]) -> float:
    """Return the share of solved episodes."""
    return float(np.mean([bool(episode_data(e).success) for e in episodes]))


def print_table() -> None:
    """Print one row per method, mean and range over seeds."""
    print(
        "| method | seeds | before | after | greedy | roles swapped | first silenced | "
        "max/median gradient norm | CPU min |\n|---|---|---|---|---|---|---|---|---|"
    )
    for method in METHODS:
        files = sorted(RESULTS.glob(f"{file_name(method)}_[0-9].json"))
        runs = [json.loads(f.read_text()) for f in files]
        if not runs:
            continue
        cells = [method, str(len(runs))]
        for key in ("before", "after", "greedy", "swapped", "silenced"):
            values = [r[key] for r in runs if key in r]
            cells.append(spread(values) if values else "-")
        norms = [worst_norm(r["grad_norms"]) for r in runs if "grad_norms" in r]
        cells.append(spread(norms, ".1f") if norms else "-")
        cells.append(f"{statistics.mean(r['cpu_minutes'] for r in runs):.1f}")
        print(f"| {' | '.join(cells)} |")


def file_name(method: str) -> str:
    """Return the file name of a method's results."""
    return method.replace(",", "").replace(" ", "_").lower()


def worst_norm(norms: dict[str, list[float]]) -> float:
    """Return the largest ratio of largest to median gradient norm over policies."""
    ratios = [np.nanmax(n) / np.nanmedian(n) for n in norms.values()]
    return float(max(ratios))


def spread(values: list[float], form: str = ".2f") -> str:
    """Return mean and range."""
    return (
        f"{statistics.mean(values):{form}} ({min(values):{form}} to "
        f"{max(values):{form}})"
    )


def main() -> None:
    """Run the methods, or print the tables of all results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", choices=[*METHODS, []])
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
        for method in args.methods or METHODS:
            found = run(method, seed)
            (RESULTS / f"{file_name(method)}_{seed}.json").write_text(
                json.dumps(found, indent=1)
            )
            shown = ("before", "after", "swapped")
            print(method, seed, {k: found[k] for k in shown if k in found}, flush=True)


if __name__ == "__main__":
    main()
