"""What check_env plays: episodes that survive the faults of an environment."""

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
"""Episodes are given up after so many turns, whatever max_turns says."""


class PlayedEpisode:
    """An episode played turn by turn, up to its end or its first exception.

    Args:
        env: The environment.
        seed: Seed of the episode.
        policy: Chooses the completions.
        limit: Give up after so many turns; by default the environment's max_turns.
    """

    def __init__(
        self, env: gym.Env, seed: int, policy: Policy, limit: int | None = None
    ):
        self.transcript = Transcript(seed)
        self.error: Exception | None = None
        # Several agents may act in one turn of the game.
        most = getattr(env.unwrapped, "max_actions", env.unwrapped.max_turns)
        limit = min(limit or most, MOST_TURNS)
        self._turns = play_turns(env, self.transcript, policy, limit=limit)

    def advance(self) -> bool:
        """Reset, or play one more turn; False when there are none left."""
        error = raised_by(lambda: next(self._turns))
        if error is not None and not isinstance(error, StopIteration):
            self.error = error
        return error is None

    def finish(self) -> PlayedEpisode:
        """Play all remaining turns and return the play itself."""
        while self.advance():
            pass
        return self

    @property
    def ended(self) -> bool:
        """Whether the environment said that the episode is over."""
        return bool(self.transcript.terminated or self.transcript.truncated)

    @property
    def succeeded(self) -> bool:
        """Whether the task was solved; without such a notion, anything earned."""
        if self.error is not None:
            return False
        if self.transcript.success is None:
            return sum(self.transcript.rewards) > 0
        return bool(self.transcript.success)

    @property
    def where(self) -> str:
        """The point reached, for messages."""
        return f"seed {self.transcript.seed}, turn {len(self.transcript.actions)}"


@dataclasses.dataclass
class Subject:
    """What the checks are about, and the episodes already played.

    Attributes:
        name: The environment's name, for messages.
        build: Makes another instance; keywords override its ``env_config``.
        seeds: Episodes to play.
        tokenizer: See :func:`rllib_llm.envs.check`.
        max_context_tokens: See :func:`rllib_llm.envs.check`.
        system_prompt: The environment's own, if any.
        remedies: What the author of this kind of environment can change.
        env_processes: Whether each environment will have a process of its own.
        first_reset_s: Seconds for building the first instance and its first reset.
        random: Episodes of the random policy, one per seed.
        expert: Episodes of the expert, none if there is no expert.
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
        """Return all different observations, in the order in which they came."""
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
    except Exception as error:  # whatever an environment raises is a finding
        return error
    return None


def implements(env: gym.Env, policy: Policy) -> bool:
    """Say whether the environment has the scripted policy."""
    raised_by(lambda: env.reset(seed=0))
    error = raised_by(lambda: policy(env, np.random.default_rng(1)))
    # Any other exception is a fault of a policy that exists; playing reports it.
    return not isinstance(error, NotImplementedError)


def random_or_filler(env: gym.Env, rng: np.random.Generator) -> str:
    """Ask for a random completion; any word where there is no random policy."""
    try:
        return random_policy(env, rng)
    except NotImplementedError:
        return "hello"


def always(text: str) -> Policy:
    """Return a policy that says the same in every turn."""
    return lambda env, rng: text


def replay(actions: list[str]) -> Policy:
    """Return a policy that repeats recorded completions."""
    remaining = iter(actions)
    return lambda env, rng: next(remaining, "hello")


def measure(subject: Subject) -> dict[str, float]:
    """Return speed, lengths, and how well the scripted policies do."""
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
    """Means over the episodes that were played without a fault."""
    sound = [play for play in plays if play.error is None]
    if not sound:
        return {}
    transcripts = [play.transcript for play in sound]
    return {
        f"{policy}_success": float(np.mean([play.succeeded for play in sound])),
        f"{policy}_return": float(np.mean([sum(t.rewards) for t in transcripts])),
        f"{policy}_turns_mean": float(np.mean([len(t.actions) for t in transcripts])),
    }
