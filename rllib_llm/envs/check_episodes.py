"""Episodes for check_env, which survive the faults of an environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from rllib_llm.data.types import Message
from rllib_llm.envs.check_remedies import TEXT_ENV, Remedies
from rllib_llm.envs.transcript import Policy, Transcript, play_turns, random_policy

MOST_TURNS = 1_000
"""Maximum number of turns of an episode, whatever max_turns is."""


class PlayedEpisode:
    """An episode played turn by turn, up to its end or its first exception.

    Args:
        env: The environment.
        seed: Seed of the episode.
        policy: Returns the completions.
        limit: Maximum number of turns; by default the environment's max_turns.
    """

    def __init__(
        self, env: gym.Env, seed: int, policy: Policy, limit: int | None = None
    ):
        self.transcript = Transcript(seed)
        self.error: Exception | None = None
        # In a round of a game, several agents act one after the other.
        most = getattr(env.unwrapped, "max_actions", env.unwrapped.max_turns)
        limit = min(limit or most, MOST_TURNS)
        self._turns = play_turns(env, self.transcript, policy, limit=limit)

    def advance(self) -> bool:
        """Reset, or play one more turn; return False at the end."""
        error = raised_by(lambda: next(self._turns))
        # StopIteration is the end of the generator, not a fault of the environment.
        if error is not None and not isinstance(error, StopIteration):
            self.error = error
        return error is None

    def finish(self) -> PlayedEpisode:
        """Play all remaining turns and return the episode itself."""
        while self.advance():
            pass
        return self

    @property
    def ended(self) -> bool:
        """True if the environment terminated or truncated the episode."""
        return bool(self.transcript.terminated or self.transcript.truncated)

    @property
    def succeeded(self) -> bool:
        """True if the task was solved; without a success flag, if the return is > 0."""
        if self.error is not None:
            return False
        if self.transcript.success is None:
            return sum(self.transcript.rewards) > 0
        return bool(self.transcript.success)

    @property
    def where(self) -> str:
        """The current seed and turn, for messages."""
        return f"seed {self.transcript.seed}, turn {len(self.transcript.actions)}"


@dataclasses.dataclass
class Subject:
    """The environment under test, and the episodes already played.

    Attributes:
        name: The environment's name, for messages.
        build: Returns another instance; keywords override its ``env_config``.
        seeds: Episodes to play.
        tokenizer: See :func:`rllib_llm.envs.check`.
        max_context_tokens: See :func:`rllib_llm.envs.check`.
        system_prompt: The environment's system prompt, if any.
        remedies: Changes that the author of this kind of environment can make.
        env_processes: Whether each environment will run in a separate process.
        first_reset_s: Time of the first construction and reset, in seconds.
        random: Episodes of the random policy, one per seed.
        expert: Episodes of the expert; empty without an expert.
    """

    name: str
    build: Callable[..., gym.Env]
    seeds: list[int]
    tokenizer: Any = None
    max_context_tokens: int | None = None
    system_prompt: str | None = None
    remedies: Remedies = TEXT_ENV
    env_processes: bool = False
    first_reset_s: float = 0.0
    random: list[PlayedEpisode] = dataclasses.field(default_factory=list)
    expert: list[PlayedEpisode] = dataclasses.field(default_factory=list)

    @property
    def plays(self) -> list[PlayedEpisode]:
        """All episodes played."""
        return [*self.random, *self.expert]

    def texts(self) -> list[str]:
        """Return all distinct observations, in the order of their occurrence."""
        seen = (text for p in self.plays for text in p.transcript.observations)
        return list(dict.fromkeys(text for text in seen if isinstance(text, str)))

    def count_tokens(self, play: PlayedEpisode) -> int:
        """Return the length of a whole conversation in tokens."""
        messages = play.transcript.messages(self.system_prompt)
        text = self.as_chat([m for m in messages if isinstance(m["content"], str)])
        return len(self.tokenizer.encode(text, add_special_tokens=False))

    def as_chat(self, messages: list[Message]) -> str:
        """Render messages with the chat template, or one per line without one."""
        if messages and getattr(self.tokenizer, "chat_template", None):
            return self.tokenizer.apply_chat_template(messages, tokenize=False)
        return "\n".join(message["content"] for message in messages)


def raised_by(call: Callable[[], Any]) -> Exception | None:
    """Return the exception that ``call`` raises, or None."""
    try:
        call()
    except Exception as error:  # environments may raise anything
        return error
    return None


def implements(env: gym.Env, policy: Policy) -> bool:
    """Return whether the environment has the scripted policy."""
    raised_by(lambda: env.reset(seed=0))
    error = raised_by(lambda: policy(env, np.random.default_rng(1)))
    # Other exceptions are faults of an existing policy, which the episodes report.
    return not isinstance(error, NotImplementedError)


def random_or_filler(env: gym.Env, rng: np.random.Generator) -> str:
    """Return a random completion, or any word without a random policy."""
    try:
        return random_policy(env, rng)
    except NotImplementedError:
        return "hello"


def always(text: str) -> Policy:
    """Return a policy that writes the same text in every turn."""
    return lambda env, rng: text


def replay(actions: list[str]) -> Policy:
    """Return a policy that repeats recorded completions."""
    remaining = iter(actions)
    return lambda env, rng: next(remaining, "hello")


def measure(subject: Subject) -> dict[str, float]:
    """Return speed, lengths, and the performance of the scripted policies."""
    seconds = sum(play.transcript.seconds for play in subject.plays)
    resets = sum(play.transcript.reset_seconds for play in subject.plays)
    turns = [len(play.transcript.actions) for play in subject.plays]
    numbers = {
        "first_reset_s": subject.first_reset_s,
        "ms_per_reset": 1e3 * resets / max(1, len(subject.plays)),
        "ms_per_turn": 1e3 * seconds / max(1, sum(turns)),
        "observation_chars_max": max(map(len, subject.texts()), default=0),
        **_scores("random", subject.random),
        **_scores("expert", subject.expert),
    }
    if subject.tokenizer is not None:
        counts = [subject.count_tokens(play) for play in subject.plays]
        numbers["conversation_tokens_max"] = max(counts)
    return numbers


def _scores(policy: str, plays: list[PlayedEpisode]) -> dict[str, float]:
    """Return means over the episodes without an exception."""
    sound = [play for play in plays if play.error is None]
    if not sound:
        return {}
    transcripts = [play.transcript for play in sound]
    return {
        f"{policy}_success": float(np.mean([play.succeeded for play in sound])),
        f"{policy}_return": float(np.mean([sum(t.rewards) for t in transcripts])),
        f"{policy}_turns_mean": float(np.mean([len(t.actions) for t in transcripts])),
    }
