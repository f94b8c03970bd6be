"""Synthetic trajectories and functions that rearrange them."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.estimators.combine import AdvantageEstimators
from rllib_llm.components.registry import COMPONENTS
from rllib_llm.data.turn_table import Trajectory, TurnTable
from rllib_llm.data.types import Task

PLACES = ("start", "left door", "right door")
NEEDED = {
    "turn": {"boundary": 2},
    "broadcast": {"leader": "agent_0"},
    "hierarchical": {"proposer": "agent_1"},
    "discount_turns": {"discount": 0.9},
}
ADVANTAGE_ESTIMATORS = tuple(COMPONENTS["advantage_estimator"])
# Read nothing but a task's own rollouts; the others compare whole batches.
OF_GROUPS = (
    "anchor",
    "broadcast",
    "group",
    "hierarchical",
    "magrpo",
    "maxrl",
    "siblings",
    "treepo",
    "treerl",
    "turn",
)
# Nothing remembered: role takes its returns in one by one, so their order matters.
ORDERLESS = tuple(name for name in ADVANTAGE_ESTIMATORS if name != "role")


def spec(name, **settings):
    return {"name": name, **NEEDED.get(name, {}), **settings}


def advantages_of(table, name, **settings):
    return AdvantageEstimators([spec(name, **settings)]).advantages(table)


def trajectory(task=0, rollout=0, agent=0, rewards=(0.0,), **fields):
    count = len(rewards)
    given = {
        "task": Task(group_id=task, rollout=rollout, seed=100 + task),
        "episode": 100 * task + rollout,
        "agent": agent,
        "agent_id": f"agent_{agent}",
        "module_id": f"policy_{agent}",
        "observations": [PLACES[i % len(PLACES)] for i in range(count)],
        "completions": ["so"] * count,
        "rewards": list(map(float, rewards)),
        "steps": list(range(count)),
        "num_tokens": [1 + i for i in range(count)],
        "logps": [-0.5] * count,
        "invalid": [False] * count,
        "success": bool(sum(rewards) > 0.5),
        "scores": list(map(float, rewards)),
    }
    return Trajectory(**given | fields)


def random_table(seed=0, tasks=3, rollouts=4, agents=2, flat=False):
    """Uneven lengths, rewards on the way, places that come again."""
    rng = np.random.default_rng(seed)
    made = []
    for task in range(tasks):
        for rollout in range(rollouts):
            for agent in range(agents):
                turns = 3 if flat else int(rng.integers(1, 6))
                rewards = np.full(turns, 0.5) if flat else rng.random(turns)
                made.append(
                    trajectory(
                        task,
                        rollout,
                        agent,
                        rewards,
                        observations=[str(rng.choice(PLACES)) for _ in range(turns)],
                        num_tokens=rng.integers(1, 9, turns).tolist(),
                        success=bool(rng.random() < 0.5),
                    )
                )
    return TurnTable(made)


def rearranged(table, order):
    return TurnTable([table.trajectories[i] for i in order])


def standardised(values):
    values = np.asarray(values, np.float64)
    return (values - values.mean()) / (values.std(ddof=1) + 1e-6)
