"""Environments whose texts depend on everything said so far, and fork rules."""

from __future__ import annotations

import hashlib

from rllib_llm.data.types import Task, TurnResult
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import EnvContractError


class Diary(TextEnv):
    """Answers with a digest of all earlier texts and a random number; four turns."""

    max_turns = 50
    fails_at: tuple[int, ...] = ()

    def start(self, rng, length: int = 4) -> str:
        self.rng, self.entries, self.length = rng, [], length
        return f"Write {length} entries for day {int(rng.integers(100))}."

    def parse(self, completion):
        return completion or "nothing"

    def reply(self, action):
        self.entries.append(action)
        digest = hashlib.blake2b("|".join(self.entries).encode(), digest_size=2)
        number = int(self.rng.integers(1000))
        return TurnResult(
            f"{digest.hexdigest()} {number}",
            reward=number / 1000,
            terminated=len(self.entries) == self.length,
        )

    def more_info(self):
        return {"tool": "diary"}

    def random_action(self, rng):
        return str(rng.integers(100))


class Unkept(Diary):
    """Cannot be copied."""

    def snapshot(self):
        raise EnvContractError("This state cannot be copied.")


class Restless(Unkept):
    """Returns other texts when its texts are played again."""

    count = 0

    def reply(self, action):
        Restless.count += 1
        result = super().reply(action)
        result.observation += f" {Restless.count}"
        return result


class Failing(Diary):
    """Fails once in the third turn, in the first episode that gets there."""

    failures: list[int] = []

    def reply(self, action):
        if len(self.entries) == 2 and not Failing.failures:
            Failing.failures.append(1)
            raise RuntimeError("connection lost")
        return super().reply(action)


def group(size=8, number=0, **options):
    """Return the tasks of a group."""
    options = {"split": "train", **options}
    return [Task(number, rollout, 5 + number, options) for rollout in range(size)]
