"""Environments with few actions, so that a random policy can be searched."""

from __future__ import annotations

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import EnvContractError


class Lock(TextEnv):
    """Opens with one sequence of three bits; each text is a bit."""

    max_turns = 10

    def start(self, rng, length: int = 3) -> str:
        self.wanted = [int(bit) for bit in rng.integers(2, size=length)]
        self.entered = []
        return "Enter the bits."

    def parse(self, completion):
        return sum(map(ord, completion)) % 2

    def reply(self, action):
        self.entered.append(action)
        is_over = len(self.entered) == len(self.wanted)
        opened = self.entered == self.wanted
        return TurnResult(
            f"{len(self.entered)} bits.",
            reward=float(opened),
            terminated=is_over,
            success=opened if is_over else None,
        )

    def random_action(self, rng):
        return str(rng.integers(2))


class LockWithoutSnapshots(Lock):
    """Cannot be copied."""

    def snapshot(self):
        raise EnvContractError("This state cannot be copied.")


class Unreliable(Lock):
    """Raises in the second turn of the seeds in ``failing``."""

    failing: set[int] = set()

    def reset(self, *, seed=None, options=None):
        self.fails = seed in Unreliable.failing
        return super().reset(seed=seed, options=options)

    def reply(self, action):
        if self.fails and self.entered:
            raise RuntimeError("out of order")
        return super().reply(action)
