"""Environments with few actions to search, and a scripted policy in one of them."""

from __future__ import annotations

import numpy as np

from rllib_llm.data.places import Branch
from rllib_llm.data.types import (
    DEFAULT_STOP_POLICIES,
    FinishReason,
    Turn,
    TurnResult,
)
from rllib_llm.env_runner.episode_limits import RolloutLimits
from rllib_llm.env_runner.recorder import SingleAgentRecorder
from rllib_llm.envs.go_to import go_to
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import EnvContractError
from rllib_llm.seeding import stable_seed


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


class Walk(TextEnv):
    """Ends with "c", or after some turns; rewards each letter. Case does not matter."""

    def start(self, rng, length: int = 4) -> str:
        self.length, self.walked = length, ""
        return "Walk."

    def parse(self, completion):
        return completion.lower()

    def reply(self, action):
        self.walked += action
        is_over = action == "c" or len(self.walked) == self.length
        return TurnResult(
            f"Walked {self.walked}.",
            reward=REWARDS[action],
            terminated=is_over,
            success=self.walked == "abab" if is_over else None,
        )

    def random_action(self, rng):
        return str(rng.choice(list(REWARDS)))


REWARDS = {"a": 0.0, "b": 0.25, "c": 0.5}
LIMITS = RolloutLimits(None, None, None, None, None, 0, 1.0, DEFAULT_STOP_POLICIES)
SPACES = (UnicodeText(), UnicodeText())


def scripted_reply(seed, before, number):
    """Return text and log-probabilities of a reply.

    Args:
        seed: Seed of the task.
        before: Texts of the turns before it.
        number: Number of the sample at this place.
    """
    text = str(stable_rng(seed, "".join(before), number).choice(list("aAbBcC")))
    # Of the text: equal samples have equal log-probabilities.
    rng = stable_rng(seed, "".join(before), text)
    return text, -rng.exponential(size=rng.integers(1, 4)).astype(np.float32)


class ScriptedRunner:
    """Samples a walk from a script, as an EnvRunner with one slot."""

    def __init__(self):
        self.config, self.failures = self, []
        self.counts, self.episodes = {}, []

    make_text_env = staticmethod(Walk)

    def get_metrics(self):
        return {}

    def sample(self, *, tasks, explore, max_failed_fraction):
        played = [self.play(task) for task in tasks]
        self.episodes += played
        return played

    def play(self, task):
        env, place = Walk(), task.place
        recorder = SingleAgentRecorder(task, SPACES)
        if place is None:
            recorder.begin(env.reset(seed=task.seed, options=dict(task.options)))
        else:
            go_to(
                env,
                seed=task.seed,
                options=dict(task.options),
                actions=place.actions,
                observations=place.observations,
                state=place.state,
            )
            recorder.resume(place)
        turn, path = (0, ()) if place is None else (place.turn, place.path)
        recorder.data.path = (*path, Branch(turn, task.rollout))
        # Each sample at a place is another one.
        key = (task.group_id, tuple(recorder.episode.get_actions()))
        number = self.counts[key] = self.counts.get(key, -1) + 1
        while not recorder.episode.is_done:
            self._step(env, recorder, task, number)
        recorder.close(DEFAULT_STOP_POLICIES.__getitem__, 0.0)
        return recorder.episode

    def _step(self, env, recorder, task, number):
        (state,), data = recorder.agent_states, recorder.data
        before = tuple(recorder.episode.get_actions())
        state.action, logps = scripted_reply(task.seed, before, number)
        state.turn = Turn(
            prompt_ids=np.arange(3, dtype=np.int32),
            extends=True,
            action_ids=np.arange(len(logps), dtype=np.int32),
            action_logps=logps,
            finish=FinishReason.STOP,
            env_t=len(before),
        )
        data.record(state.turn)
        observation = recorder.episode.get_observations()[-1]
        data.messages += [
            {"role": "user", "content": observation},
            {"role": "assistant", "content": state.action},
        ]
        recorder.advance(env.step(state.action), LIMITS)


def stable_rng(*parts):
    return np.random.default_rng(stable_seed(*parts))
