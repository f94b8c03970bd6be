"""Environments with one fault each, and env runners with a tiny model."""

from __future__ import annotations

import threading
import time

from rllib_llm import LLMPPOConfig
from rllib_llm.data.types import TurnResult
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.offline.prepare_model import prepare_language_model

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}


class Countdown(TextEnv):
    """Lasts between one and four turns, decided by the seed; never parses."""

    max_turns = 50

    def start(self, rng, length: int = 0) -> str:
        self.left = length or int(rng.integers(1, 5))
        return f"Lasts {self.left} turns."

    def parse(self, completion):
        return completion or "nothing"

    def reply(self, action):
        self.left -= 1
        return TurnResult(
            f"{self.left} left.", reward=1.0, terminated=self.left == 0, success=True
        )

    def random_action(self, rng):
        return "hi"


class Flaky(Countdown):
    """Raises in the first attempt of every third seed."""

    failures: dict[int, int] = {}

    def reset(self, *, seed=None, options=None):
        self.current = seed
        return super().reset(seed=seed, options=options)

    def reply(self, action):
        if self.current % 3 == 0 and Flaky.failures.get(self.current, 0) < 1:
            Flaky.failures[self.current] = 1
            raise RuntimeError("connection lost")
        return super().reply(action)


class Broken(Countdown):
    """Raises in every step."""

    def reply(self, action):
        raise RuntimeError("out of order")


class Hanging(Countdown):
    """Takes a minute for one step."""

    def reply(self, action):
        time.sleep(60)


class Stuck(Countdown):
    """Hangs in a step until it is released."""

    released = threading.Event()

    def reply(self, action):
        Stuck.released.wait()
        return super().reply(action)


class Exiting(Countdown):
    """Tries to exit the process."""

    error: BaseException = SystemExit(3)

    def reply(self, action):
        raise self.error


class Slow(Countdown):
    """Takes 20 ms for a step."""

    def reply(self, action):
        time.sleep(0.02)
        return super().reply(action)


class Huge(Countdown):
    """Returns an observation of five million characters after the first turn."""

    def start(self, rng):
        return super().start(rng, 4)

    def reply(self, action):
        super().reply(action)
        return TurnResult("word " * 1_000_000)


class Aborting(Countdown):
    """Aborts the first attempt of every seed with the stop reason ``reason``."""

    reason = "aborted"
    attempts: set[int] = set()

    def reset(self, *, seed=None, options=None):
        self.aborts = seed not in Aborting.attempts
        Aborting.attempts.add(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.aborts:
            return "Aborted.", 0.0, False, True, {"stop_reason": self.reason}
        return super().step(action)


class NaNReward(Countdown):
    """Returns a reward that is not a number (past TextEnv's own check)."""

    def step(self, action):
        text, _, terminated, truncated, info = super().step(action)
        return text, float("nan"), terminated, truncated, info


class Odd(Countdown):
    """Lasts one turn, with a test's observation and success, unchecked by TextEnv."""

    observation, success = "Go.", True

    def start(self, rng):
        self.left = 1
        return Odd.observation

    def step(self, action):
        text, reward, terminated, truncated, info = super().step(action)
        info["success"] = Odd.success
        return text, reward, terminated, truncated, info


class Endless(Countdown):
    """Never terminates within the limits of a test."""

    def reply(self, action):
        return TurnResult("Go on.", reward=0.5)


def make_runner(env, *, env_config=None, worker_index=0, slots=8, **rollouts):
    generation = rollouts.pop("generation", {"max_new_tokens": 4})
    settings = rollouts.pop("env_runners", {})
    config = (
        LLMPPOConfig()
        .environment(env, env_config=env_config or {})
        .language_model(tiny=TINY)
        .env_runners(num_envs_per_env_runner=slots, **settings)
        .generation(**generation)
        .rollouts(**rollouts)
    )
    config.validate()
    config.resolved_model = prepare_language_model(config)
    return LLMEnvRunner(config=config, worker_index=worker_index)
