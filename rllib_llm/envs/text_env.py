"""The environment base: a Gymnasium environment that speaks text.

An author writes three methods, :meth:`TextEnv.start`, :meth:`TextEnv.parse` and
:meth:`TextEnv.reply`, and decorates the class with :func:`register_text_env`. Two
more, :meth:`TextEnv.expert_action` and :meth:`TextEnv.random_action`, make warm
starts and checks possible.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from rllib_llm.data.types import StopReason, TurnResult
from rllib_llm.envs.admissible import ADMISSIBLE
from rllib_llm.envs.env_options import EnvOptions, is_finite
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.errors import EnvContractError


class TextEnv(EnvOptions, gym.Env):
    """A multi-turn text task: text in, text out.

    The keyword parameters of :meth:`start` are the environment's options. Their
    defaults stand in its signature, ``env_config`` overrides them for a run, and
    ``reset(options=...)`` for one episode; unknown names are refused.

    Invalid-action policy: when :meth:`parse` returns None the turn costs
    ``invalid_action_reward`` and, under ``invalid_action="retry"``, the model reads
    ``format_hint`` and may try again (the turn counts); under ``"end"`` the episode
    is over with the stop reason ``parse_error``.

    Success: episodes that end unsolved count as failures, also where no turn was ever
    valid. Set ``has_success = False`` where a task knows no success; then ``success``
    is None unless a turn says otherwise.

    Args:
        env_config: Options of :meth:`start`, plus ``max_turns``, ``invalid_action``
            and ``invalid_action_reward``.

    Raises:
        ConfigError: For an unknown option or a value out of range.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    # Attributes that an instance keeps from episode to episode.
    _KEPT: ClassVar[frozenset[str]] = frozenset(
        {*EnvOptions._BASE_OPTIONS, "_options", "observation_space", "action_space"}
    )

    def __init__(self, env_config: dict[str, Any] | None = None):
        self._read_config(env_config)
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self.turn = 0
        self._success: bool | None = None

    # What an author writes -----------------------------------------------------

    def start(self, rng: np.random.Generator) -> str:
        """Set up an episode from ``rng`` alone and return the first user message.

        Parameters after ``rng`` are keyword options with defaults.
        """
        raise NotImplementedError(f"{type(self).__name__}.start() is missing.")

    def parse(self, completion: str) -> Any | None:
        """Return the action in the model's text, or None if there is none."""
        return completion.strip() or None

    def reply(self, action: Any) -> TurnResult:
        """Apply one parsed action and say what happened."""
        raise NotImplementedError(f"{type(self).__name__}.reply() is missing.")

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return a good completion for the current state (warm starts, checks)."""
        raise NotImplementedError(f"{type(self).__name__} has no scripted expert.")

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a random valid completion (imperfect demonstrations, checks)."""
        raise NotImplementedError(f"{type(self).__name__} has no random policy.")

    def admissible_actions(self) -> list[str] | None:
        """Return all completions that are actions now, for ``head="score"``.

        They stand in ``info`` while an episode runs; None where they cannot be listed.
        """
        return None

    def more_info(self) -> dict[str, Any]:
        """Return what rewards and people may know of the turn just played.

        It is added to ``info``; the model does not see it. docs/rewards.md lists the
        keys that pieces of the package read, e.g. ``gold_answers``.
        """
        return {}

    # Gymnasium ------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: Decides everything about the episode.
            options: Options of :meth:`start` for this episode; ``split`` (``"train"``
                or ``"test"``) selects held-out instances where the game has any.

        Returns:
            The first user message, and info: ``admissible_actions``, if there are any.
        """
        super().reset(seed=seed)
        self.turn, self._success = 0, None
        prompt = self.start(self.np_random, **self._read_reset_options(options))
        if not isinstance(prompt, str) or not prompt:
            raise EnvContractError(
                f"{type(self).__name__}.start() returned {prompt!r}; it must return "
                "the first user message as a non-empty string."
            )
        return prompt, self._admissible_info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one model turn.

        Args:
            action: The model's text.

        Returns:
            Observation, reward, terminated, truncated, info. ``info`` holds
            ``parsed_action``, ``invalid_action``, ``success`` (None while unknown),
            ``metrics``, what :meth:`more_info` returns, ``stop_reason`` at the end of
            an episode and before it ``admissible_actions``, if there are any.
        """
        self.turn += 1
        parsed = self.parse(action)
        result = self._invalid() if parsed is None else self.reply(parsed)
        self._check_result(result)
        if result.success is not None:
            self._success = result.success
        info: dict[str, Any] = {
            **self.more_info(),
            "parsed_action": parsed,
            "invalid_action": parsed is None,
            "metrics": result.metrics or {},
        }
        truncated = result.truncated
        if result.terminated:
            ended_by_parse = parsed is None
            info["stop_reason"] = (
                StopReason.PARSE_ERROR if ended_by_parse else StopReason.TERMINATED
            )
        elif truncated or self.turn >= self.max_turns:
            truncated = True
            info["stop_reason"] = StopReason.MAX_TURNS
        if result.terminated or truncated:
            unsolved = False if self.has_success else None
            info["success"] = unsolved if self._success is None else self._success
        else:
            info["success"] = None
            info |= self._admissible_info()
        return (
            result.observation,
            float(result.reward),
            result.terminated,
            truncated and not result.terminated,
            info,
        )

    def snapshot(self) -> bytes:
        """Return a copy of the episode's state, random generator included.

        It is a pickle, for this process and its workers; options and spaces are not in
        it. An episode that is restored twice goes on in the same way twice.

        Raises:
            EnvContractError: If part of the state cannot be copied.
        """
        buffer = io.BytesIO()
        state = (type(self).__qualname__, self._state())
        try:
            _StatePickler(buffer, pickle.HIGHEST_PROTOCOL).dump(state)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise EnvContractError(
                f"The state of {type(self).__name__} cannot be copied: {error}. Keep "
                "it in attributes that pickle."
            ) from error
        return buffer.getvalue()

    def restore(self, state: bytes) -> None:
        """Go back to a :meth:`snapshot`, as often as needed, also of a like instance.

        Args:
            state: What :meth:`snapshot` returned here, or in another instance of the
                same class with the same options.

        Raises:
            EnvContractError: If the snapshot is of another class.
        """
        of, attributes = pickle.loads(state)
        if of != type(self).__qualname__:
            raise EnvContractError(
                f"A snapshot of {of} cannot be restored in {type(self).__name__}. "
                f"Restore it in an instance of {of}."
            )
        for name in self._state():
            delattr(self, name)
        self.__dict__.update(attributes)

    # Helpers --------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in self._KEPT}

    def _admissible_info(self) -> dict[str, Any]:
        actions = self.admissible_actions()
        return {} if actions is None else {ADMISSIBLE: actions}

    def _invalid(self) -> TurnResult:
        return TurnResult(
            self.format_hint,
            reward=self.invalid_action_reward,
            terminated=self.invalid_action == "end",
        )

    def _check_result(self, result: TurnResult) -> None:
        if not isinstance(result, TurnResult):
            raise EnvContractError(
                f"{type(self).__name__}.reply() returned {type(result).__name__}; "
                "it must return a TurnResult."
            )
        if not isinstance(result.observation, str) or not result.observation:
            raise EnvContractError(
                f"{type(self).__name__}.reply() gave the observation "
                f"{result.observation!r} in turn {self.turn}; it must be a non-empty "
                "string, also in the last turn."
            )
        if not is_finite(result.reward):
            raise EnvContractError(
                f"{type(self).__name__}.reply() gave the reward {result.reward!r} in "
                f"turn {self.turn}; rewards must be finite numbers."
            )


class _StatePickler(pickle.Pickler):
    """Refuses objects that would come back as new ones, without their state."""

    def reducer_override(self, obj: Any) -> Any:
        # EzPickle of Gymnasium and PettingZoo keeps nothing but constructor arguments.
        if hasattr(obj, "_ezpickle_args"):
            raise EnvContractError(
                f"{type(obj).__name__} pickles by EzPickle, which forgets the state of "
                "an episode, so that no snapshot can be taken."
            )
        return NotImplemented


def in_split(key: str, split: str, test_fraction: float = 0.2) -> bool:
    """Say whether the instance ``key`` belongs to ``split``.

    The instance's own hash decides, so that no training instance is ever evaluated
    on, whatever the seeds.

    Args:
        key: A string that identifies the instance, e.g. a map.
        split: ``"train"`` or ``"test"``.
        test_fraction: Share of all instances that is held out, in (0, 1).
    """
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    held_out = int.from_bytes(digest, "big") < test_fraction * 2**64
    return held_out == (split == "test")
