"""Base class of text environments, a Gymnasium environment with text in and out.

An author implements :meth:`TextEnv.start`, :meth:`TextEnv.parse` and
:meth:`TextEnv.reply`, and decorates the class with :func:`register_text_env`. Two
optional methods, :meth:`TextEnv.expert_action` and :meth:`TextEnv.random_action`,
enable SFT on demonstrations and more checks.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from rllib_llm.data.types import StopReason, TurnResult
from rllib_llm.envs.admissible import ADMISSIBLE, EXPERT_PROBS
from rllib_llm.envs.env_options import EnvOptions, is_finite
from rllib_llm.envs.parsing import require_bool
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.errors import EnvContractError
from rllib_llm.pictures.contract import IMAGES, check_images
from rllib_llm.seeding import stable_seed


class TextEnv(EnvOptions, gym.Env):
    """A multi-turn text task.

    The keyword parameters of :meth:`start` are the environment's options. Their
    defaults stand in its signature; ``env_config`` overrides them for a run, and
    ``reset(options=...)`` for one episode. Unknown names raise an error.

    Invalid actions: if :meth:`parse` returns None, the reward of the turn is
    ``invalid_action_reward``. Under ``invalid_action="retry"`` the model then reads
    ``format_hint`` and tries again (the turn counts); under ``"end"`` the episode ends
    with the stop reason ``parse_error``.

    Success: an episode that ends unsolved counts as a failure, even if all its turns
    were invalid. Set ``has_success = False`` for a task without a notion of success;
    ``success`` is then None unless a turn sets it.

    Args:
        env_config: Options of :meth:`start`, plus ``max_turns``, ``invalid_action``,
            ``invalid_action_reward`` and ``report_expert``: whether ``info`` holds
            :meth:`expert_probs`, which the loss term ``distill_actions`` reads.

    Raises:
        ConfigError: If an option does not exist or has a value out of range.
    """

    # True: some tasks show pictures, also if the first ones do not, so that a model of
    # text is refused before training.
    shows_pictures: bool = False
    report_expert: bool = False
    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    _BASE_OPTIONS: ClassVar[tuple[str, ...]] = (
        *EnvOptions._BASE_OPTIONS,
        "report_expert",
    )
    # Attributes that belong to the instance, not to the episode: snapshots omit them.
    _KEPT: ClassVar[frozenset[str]] = frozenset(
        {*_BASE_OPTIONS, "_options", "observation_space", "action_space"}
    )

    def __init__(self, env_config: dict[str, Any] | None = None):
        self._read_config(env_config)
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self.turn = 0
        self._success: bool | None = None

    # Methods for authors --------------------------------------------------------

    def start(self, rng: np.random.Generator) -> str | TurnResult:
        """Set up an episode from ``rng`` alone and return the first user message.

        Parameters after ``rng`` are keyword options with defaults. A first message
        with pictures is a TurnResult, of which ``observation`` and ``images`` are read.
        """
        raise NotImplementedError(f"{type(self).__name__}.start() is missing.")

    def parse(self, completion: str) -> Any | None:
        """Return the action in the model's text, or None for an invalid action."""
        return completion.strip() or None

    def reply(self, action: Any) -> TurnResult:
        """Apply one parsed action and return its result."""
        raise NotImplementedError(f"{type(self).__name__}.reply() is missing.")

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return a good completion for the current state (demonstrations, checks)."""
        raise NotImplementedError(f"{type(self).__name__} has no scripted expert.")

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a random valid completion (imperfect demonstrations, checks)."""
        raise NotImplementedError(f"{type(self).__name__} has no random policy.")

    def admissible_actions(self) -> list[str] | None:
        """Return all valid completions of the current state, for ``head="score"``.

        They are part of ``info`` during an episode; None if they cannot be listed.
        """
        return None

    def expert_probs(
        self, actions: list[str], rng: np.random.Generator
    ) -> Sequence[float]:
        """Return the expert's probability of each admissible action. [K]

        All of it is on :meth:`expert_action`. Override it for an expert whose
        distribution is known.

        Args:
            actions: The result of :meth:`admissible_actions`.
            rng: Generator for an expert that draws; it does not affect the episode.

        Raises:
            EnvContractError: If the expert's action is not among them.
        """
        best = self.expert_action(rng)
        if best not in actions:
            raise EnvContractError(
                f"{type(self).__name__}.expert_action() returned {best!r}, which is "
                "not among the admissible actions, so it cannot teach the choice "
                "among them. Return one of them, or set report_expert to False."
            )
        return [float(action == best) for action in actions]

    def more_info(self) -> dict[str, Any]:
        """Return extra information on the last turn, for rewards and logs.

        It is merged into ``info``; the model does not see it. docs/rewards.md lists the
        keys that reward components of the package read, e.g. ``gold_answers``.
        """
        return {}

    # Gymnasium ------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Determines everything about the episode.
            options: Options of :meth:`start` for this episode; ``split`` (``"train"``
                or ``"test"``) selects held-out instances if the task has any.

        Returns:
            The first user message, and info with ``admissible_actions`` and ``images``
            if there are any.
        """
        super().reset(seed=seed)
        self.turn, self._success = 0, None
        first = self.start(self.np_random, **self._read_reset_options(options))
        prompt, images = first, {}
        if isinstance(first, TurnResult):
            prompt, images = first.observation, self._shown_images(first, "start")
        if not isinstance(prompt, str) or not prompt:
            raise EnvContractError(
                f"{type(self).__name__}.start() returned {prompt!r}; it must return "
                "the first user message as a non-empty string."
            )
        return prompt, self._admissible_info() | images

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one turn of the model.

        Args:
            action: The model's text.

        Returns:
            Observation, reward, terminated, truncated, info. ``info`` holds
            ``parsed_action``, ``invalid_action``, ``success`` (None before the end),
            ``metrics``, the items of :meth:`more_info`, ``stop_reason`` at the end of
            an episode, and until then ``admissible_actions`` if defined.
        """
        self.turn += 1
        parsed = self.parse(action)
        result = self._invalid() if parsed is None else self.reply(parsed)
        self._check_result(result)
        # Kept: an earlier turn may have reported it, and the last one need not repeat
        # it.
        if result.success is not None:
            self._success = result.success
        info: dict[str, Any] = {
            # First, so that an author's keys cannot replace those below.
            **self.more_info(),
            "parsed_action": parsed,
            "invalid_action": parsed is None,
            "metrics": result.metrics or {},
            **self._shown_images(result, "reply"),
        }
        truncated = result.truncated
        if result.terminated:
            ended_by_parse = parsed is None
            info["stop_reason"] = (
                StopReason.PARSE_ERROR if ended_by_parse else StopReason.TERMINATED
            )
            # An environment may also truncate by itself; both share a stop reason.
        elif truncated or self.turn >= self.max_turns:
            truncated = True
            info["stop_reason"] = StopReason.MAX_TURNS
        if result.terminated or truncated:
            unsolved = False if self.has_success else None
            info["success"] = unsolved if self._success is None else self._success
        else:
            info["success"] = None
            info |= self._admissible_info()
        # A game that ends in its last turn has terminated: bootstrapping from the
        # value of a terminal state would be wrong.
        return (
            result.observation,
            float(result.reward),
            result.terminated,
            truncated and not result.terminated,
            info,
        )

    def snapshot(self) -> bytes:
        """Return a copy of the episode's state, random generator included.

        The copy is a pickle for this process and its workers, without options and
        spaces. Each episode restored from it continues identically.

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
                "the state in attributes that can be pickled."
            ) from error
        return buffer.getvalue()

    def restore(self, state: bytes) -> None:
        """Return to a :meth:`snapshot`, as often as needed.

        Args:
            state: A result of :meth:`snapshot`, of this instance or of another one of
                the same class with the same options.

        Raises:
            EnvContractError: If the snapshot belongs to another class.
        """
        of, attributes = pickle.loads(state)
        if of != type(self).__qualname__:
            raise EnvContractError(
                f"This snapshot belongs to {of}, not to {type(self).__name__}. "
                f"Restore it in an instance of {of}."
            )
        # Attributes that were set after the snapshot must not survive.
        for name in self._state():
            delattr(self, name)
        self.__dict__.update(attributes)

    # Helpers --------------------------------------------------------------------

    def _check_base_options(self) -> None:
        super()._check_base_options()
        require_bool("report_expert", self.report_expert)

    def _state(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in self._KEPT}

    def _admissible_info(self) -> dict[str, Any]:
        actions = self.admissible_actions()
        if actions is None:
            if self.report_expert:
                raise EnvContractError(
                    f"report_expert of {type(self).__name__} reports the expert's "
                    "choice among the admissible actions, but in turn "
                    f"{self.turn} it lists none. Leave it out."
                )
            return {}
        info: dict[str, Any] = {ADMISSIBLE: actions}
        if self.report_expert:
            # Its own generator: reporting must not change the episode.
            seed = stable_seed("expert", self.np_random_seed, self.turn)
            rng = np.random.default_rng(seed)
            info[EXPERT_PROBS] = self.expert_probs(actions, rng)
        return info

    def _shown_images(self, result: TurnResult, method: str) -> dict[str, Any]:
        """Return the pictures of a result as a part of ``info``, if there are any."""
        if not len(result.images):
            return {}
        source = f"{type(self).__name__}.{method}() in turn {self.turn}"
        check_images(result.observation, result.images, source)
        return {IMAGES: list(result.images)}

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
                f"{type(self).__name__}.reply() returned the observation "
                f"{result.observation!r} in turn {self.turn}; it must be a non-empty "
                "string, also in the last turn."
            )
        if not is_finite(result.reward):
            raise EnvContractError(
                f"{type(self).__name__}.reply() returned the reward {result.reward!r} "
                f"in turn {self.turn}; rewards must be finite numbers."
            )


class _StatePickler(pickle.Pickler):
    """Rejects objects whose pickled copies would lose their state."""

    def reducer_override(self, obj: object) -> Any:
        # EzPickle of Gymnasium and PettingZoo stores constructor arguments only.
        if hasattr(obj, "_ezpickle_args"):
            raise EnvContractError(
                f"{type(obj).__name__} pickles by EzPickle, which loses the state of "
                "an episode, so snapshots are impossible."
            )
        return NotImplemented


def in_split(key: str, split: str, test_fraction: float = 0.2) -> bool:
    """Return whether the instance ``key`` belongs to ``split``.

    The hash of the instance decides, so that training and test instances never
    overlap, whatever the seeds.

    Args:
        key: A string that identifies the instance, e.g. a map.
        split: ``"train"`` or ``"test"``.
        test_fraction: Share of all instances that is held out, in (0, 1).
    """
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    held_out = int.from_bytes(digest, "big") < test_fraction * 2**64
    return held_out == (split == "test")
