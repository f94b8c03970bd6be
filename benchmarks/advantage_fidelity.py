"""Rank correlation of advantage estimators with exact advantages in small games.

Run:  python benchmarks/advantage_fidelity.py --seeds 20

Random tabular policies, which choose the right action in most cases, act in
environments of the package; the exact advantage of every turn is computed from the
policy by backward induction. The script prints Spearman's correlation of each estimator
with it over a batch of 16 tasks and 8 rollouts: mean over seeds and standard error of
the mean, the table of docs/multi_agent_advantages.md. It does not use a language model.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from rllib_llm.advantages.estimators.combine import AdvantageEstimators
from rllib_llm.advantages.estimators.estimator_fidelity import advantage_fidelity
from rllib_llm.data.turn_table import Trajectory, TurnTable
from rllib_llm.data.types import Task
from rllib_llm.envs.frozen_lake import FrozenLake
from rllib_llm.envs.games.secret_sum import SecretSum, answer_rewards
from rllib_llm.envs.grid import MOVES
from rllib_llm.envs.probes import CopyProbe

TASKS, ROLLOUTS = 16, 8
Played = tuple[Trajectory, list[float]]


def policy(rng: np.random.Generator, right: int, actions: int) -> np.ndarray:
    """Return a random distribution that favours one action. [actions]"""
    return 0.45 * np.eye(actions)[right] + 0.55 * rng.dirichlet(np.ones(actions))


def record(task: Task, agent: str, number: int, turns: list[Any], won: bool) -> Played:
    """Return a trajectory and its exact advantages.

    Args:
        task: The task and rollout.
        agent: Id of the agent.
        number: Index of the agent.
        turns: (observation, action, reward, step, exact advantage) of each.
        won: Whether the episode succeeded.
    """
    observation, action, rewards, steps, exact = map(list, zip(*turns, strict=True))
    one = Trajectory(
        task=task,
        episode=ROLLOUTS * task.group_id + task.rollout,
        agent=number,
        agent_id=agent,
        module_id=agent,
        observations=observation,
        completions=action,
        rewards=rewards,
        steps=steps,
        num_tokens=[1] * len(turns),
        invalid=[False] * len(turns),
        success=won,
    )
    return one, exact


def secret_sum(rng: np.random.Generator, task: Task, memory: Any) -> list[Played]:
    """Return a play of three agents in a chain with one reward for all at the end."""
    env = SecretSum({"agents": 3, "numbers": 4})
    env.reset(seed=task.seed)
    secrets = list(env.secrets)
    if not memory:  # [place, own number, received, message]
        for place in range(3):
            memory[place] = np.array(
                [[policy(rng, (o + h) % 4, 4) for h in range(4)] for o in range(4)]
            )
    values = answer_rewards(secrets, 4)[
        None
    ]  # values of each message, the last one first
    for place in (2, 1, 0):
        values = np.vstack([memory[place][secrets[place]] @ values[0], values])
    received, turns = 0, []
    for place, agent in enumerate(env.possible_agents):
        observation = env.prompt_for(agent)
        action = int(rng.choice(4, p=memory[place][secrets[place], received]))
        gain = values[place + 1, action] - values[place, received]
        env.step(f"say {action}")
        turns.append((observation, f"say {action}", place, gain))
        received = action
    won = bool(answer_rewards(secrets, 4)[received] == 1.0)
    return [
        record(task, agent, i, [(observation, action, float(won), step, gain)], won)
        for i, (agent, (observation, action, step, gain)) in enumerate(
            zip(env.possible_agents, turns, strict=True)
        )
    ]


def frozen_lake(rng: np.random.Generator, task: Task, memory: Any) -> list[Played]:
    """Return a play of an agent with a policy per cell; the reward is at the goal."""
    env = FrozenLake({"size": 4})
    observation, _ = env.reset(seed=task.seed)
    if task.group_id not in memory:
        memory[task.group_id] = walker(rng, env)
    table, policies, values = memory[task.group_id]
    place, turns, over = 0, [], False
    while not over:
        left = env.max_turns - len(turns)
        move = int(rng.choice(4, p=policies[place]))
        after, reward_of_move, ends = table[place][move]
        gain = (
            reward_of_move + (not ends) * values[left - 1, after] - values[left, place]
        )
        action = f"go {list(MOVES)[move]}"
        received, reward, terminated, truncated, _ = env.step(action)
        turns.append((observation, action, float(reward), len(turns), gain))
        observation, place, over = received, after, terminated or truncated
    return [record(task, "walker", 0, turns, reward > 0)]


def walker(rng: np.random.Generator, env: FrozenLake) -> tuple[Any, ...]:
    """Return moves, a policy per cell, and values by turns left and cell."""
    chances = FrozenLakeEnv(desc=env.map, is_slippery=False).P
    table = {s: [chances[s][a][0][1:] for a in range(4)] for s in chances}
    table = {s: [(int(t), float(r), e) for t, r, e in row] for s, row in table.items()}
    best = np.zeros(16)  # the expert prefers fewer steps to the goal
    for _ in range(16):
        gains = {
            s: [r + 0.9 * (not e) * best[t] for t, r, e in row]
            for s, row in table.items()
        }
        best = np.array([max(gains[s]) for s in range(16)])
    policies = np.array([policy(rng, int(np.argmax(gains[s])), 4) for s in range(16)])
    values = np.zeros((env.max_turns + 1, 16))
    for left in range(1, env.max_turns + 1):
        for s, row in table.items():
            found = [r + (not e) * values[left - 1, t] for t, r, e in row]
            values[left, s] = policies[s] @ found
    return table, policies, values


def copy_probe(rng: np.random.Generator, task: Task, memory: Any) -> list[Played]:
    """Return a play of two turns with a reward each."""
    env = CopyProbe({"words": 4})
    observation, _ = env.reset(seed=task.seed)
    if not memory:
        memory["policy"] = np.array([policy(rng, word, 4) for word in range(4)])
    turns, over, won = [], False, True
    while not over:
        shown = env.words.index(env.shown[env.answered])
        chances = memory["policy"][shown]
        action = int(rng.choice(4, p=chances))
        received, reward, over, _, _ = env.step(env.words[action])
        gain = 0.5 * ((action == shown) - chances[shown])
        turns.append((observation, env.words[action], float(reward), len(turns), gain))
        observation, won = received, won and action == shown
    return [record(task, "copier", 0, turns, won)]


ANYWHERE: dict[str, list[Any]] = {
    "group (GRPO)": ["group"],
    "group, scale none (Dr. GRPO)": [{"name": "group", "scale": "none"}],
    "maxrl": ["maxrl"],
    "history": ["history"],
    "return": ["return"],
    "return, baseline batch": [{"name": "return", "baseline": "batch"}],
}
SEVERAL_TURNS: dict[str, list[Any]] = {
    "group, by turn": [{"name": "group", "by": "turn"}],
    "anchor": ["anchor"],
    "group + anchor (GiGPO)": [{"name": "group", "scale": "none"}, "anchor"],
    "turn (MT-GRPO)": [{"name": "turn", "boundary": 1}],
}
TEAM: dict[str, list[Any]] = {
    "group, by task": [{"name": "group", "by": "task"}],
    "magrpo": ["magrpo"],
    "broadcast, the first leads": [{"name": "broadcast", "leader": "alice"}],
    "role (SPIRAL)": ["role"],
    "per_player (MARSHAL)": ["per_player"],
}
GAMES: dict[str, tuple[Callable[..., list[Played]], dict[str, list[Any]]]] = {
    "secret_sum, 3 agents": (secret_sum, ANYWHERE | TEAM),
    "frozen_lake": (frozen_lake, ANYWHERE | SEVERAL_TURNS),
    "copy_probe": (copy_probe, ANYWHERE | SEVERAL_TURNS),
}


def play(game: Callable[..., list[Played]], seed: int) -> tuple[TurnTable, np.ndarray]:
    """Return a batch and the exact advantage of each turn."""
    rng, memory = np.random.default_rng(seed), {}
    tasks = [
        Task(group_id=group, rollout=rollout, seed=1000 * seed + group)
        for group in range(TASKS)
        for rollout in range(ROLLOUTS)
    ]
    played = [one for task in tasks for one in game(rng, task, memory)]
    exact = [gain for _, gains in played for gain in gains]
    return TurnTable([one for one, _ in played]), np.array(exact)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = range(parser.parse_args().seeds)
    names = list(dict.fromkeys(name for _, of in GAMES.values() for name in of))
    cells: dict[tuple[str, str], str] = {}
    for title, (game, advantages) in GAMES.items():
        batches = [play(game, seed) for seed in seeds]
        for name, estimators in advantages.items():
            found = [
                advantage_fidelity(table, AdvantageEstimators(estimators), exact)
                for table, exact in batches
            ]
            error = np.std(found, ddof=1) / np.sqrt(len(found))
            cells[name, title] = f"{np.mean(found):.2f} ± {error:.2f}"
    print(f"| estimator | {' | '.join(GAMES)} |\n|---|{'---|' * len(GAMES)}")
    for name in names:
        row = (cells.get((name, title), "-") for title in GAMES)
        print(f"| {name} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
