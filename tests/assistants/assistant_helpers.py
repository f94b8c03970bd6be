"""Assistants, and trajectories to ask about."""

from __future__ import annotations

from typing import Any

from team_helpers import single_config

from rllib_llm import GRPOConfig
from rllib_llm.assistants.settings import read_assistant
from rllib_llm.data.turn_table import example_table
from rllib_llm.data.types import TurnResult
from rllib_llm.envs.text_env import TextEnv

YES_NO = {"words": {"yes": 1.0, "no": 0.0}}
SCRIPT = {"script": "outcome", "privileged": True, "parse": YES_NO}
OWN = {
    "policy": "default_policy",
    "template": "Was {reply} right? yes or no",
    "parse": YES_NO,
    "unreadable": 0.25,
}
API = {
    "api": {"url": "http://127.0.0.1:9/v1", "model": "m"},
    "template": "{transcript}",
    "parse": YES_NO,
}


class Solvable(TextEnv):
    """One turn; even texts solve it, for a reward of 1."""

    max_turns = 1

    def start(self, rng):
        self.number = int(rng.integers(100))
        return f"Number {self.number}."

    def parse(self, completion):
        return completion or "-"

    def reply(self, action):
        solved = sum(map(ord, action)) % 2 == 0
        return TurnResult(
            "Over.", reward=float(solved), terminated=True, success=solved
        )


def assistant(**given: Any) -> Any:
    return read_assistant("judge", given)


def trajectories() -> list[Any]:
    """Two tasks of two rollouts: one fails, one solves; two turns each."""
    return example_table(["agent_0"]).trajectories


def asked_config(assistants, *, env=Solvable, rollouts=None, **sections):
    """GRPO of which the rewards are the answers alone."""
    rewards = [{"name": "environment", "weight": 0.0}]
    rewards += [{"name": "asked", "of": name} for name in assistants]
    return single_config(
        GRPOConfig,
        env=env,
        rollouts={
            "episodes_per_iteration": 8,
            "group_size": 4,
            "assistants": assistants,
            "rewards": rewards,
            **(rollouts or {}),
        },
        **sections,
    )
