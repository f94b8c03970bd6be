"""Adapter that turns a Gymnasium environment into a TextEnv."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import last_match, require_bool
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError, EnvContractError
from rllib_llm.pictures.contract import PLACEHOLDER, check_image, quoted

_TEXT_SPACES = (UnicodeText, gym.spaces.Text)
_MAX_TURNS = 100


class GymTextEnv(TextEnv):
    """Wraps a Gymnasium environment for a language model.

    Rewards, ends and infos are those of the wrapped environment. Actions outside of
    its action space are invalid actions and never reach it. ``success`` is
    ``info["success"]`` or ``info["is_success"]`` if present.

    Example::

        env = GymTextEnv(
            gym.make("CliffWalking-v1"),
            render=lambda cell: f"You are in cell {cell} of 48.",
            action_names=["up", "right", "down", "left"],
        )

    Args:
        env: The environment.
        render: Converts an observation to text. Not needed for text observations.
        pictures: Whether each observation shows ``env.render()``, an array uint8
            [height, width, 3] of ``render_mode="rgb_array"``, above its text. No text
            is needed then.
        parse: Converts the model's text to an action, or to None for an invalid one.
        action_names: Words for the actions of a ``Discrete`` space, in order; the
            last one in the model's text counts. The first message lists them.
        env_config: ``max_turns`` (default: the environment's start_options
            ``max_episode_steps``, else 100), ``invalid_action`` and
            ``invalid_action_reward``.

    Raises:
        EnvContractError: If observations or actions are not text and lack a
            conversion; in an episode, if ``env.render()`` returns no such array.
        ConfigError: If ``action_names`` does not match the action space, or if the
            environment has another render mode than ``pictures`` needs.
    """

    # Gymnasium has no notion of success, so an end without it is no failure.
    has_success = False
    _KEPT = TextEnv._KEPT | {
        *(
            "_render_text",
            "_is_shown",
            "_has_text",
            "_parse_text",
            "_names",
            "_order",
            "_pattern",
            "format_hint",
        )
    }

    def __init__(
        self,
        env: gym.Env,
        *,
        render: Callable[[Any], str] | None = None,
        parse: Callable[[str], Any] | None = None,
        action_names: Sequence[str] | None = None,
        env_config: dict[str, Any] | None = None,
        pictures: bool = False,
    ):
        steps = env.spec.max_episode_steps if env.spec is not None else None
        super().__init__({"max_turns": steps or _MAX_TURNS, **(env_config or {})})
        self._is_shown = require_bool("pictures", pictures)
        self._has_text = _has_text(env, render)
        if self._is_shown:
            _check_render_mode(env)
        else:
            _check_observations(env, self._has_text)
        _check_actions(env, parse, action_names)
        self.env = env
        self._render_text = render
        self._parse_text = parse
        self._names = list(action_names or ())
        if self._names:
            # Longer names first, so that "left up" does not match as "left".
            self._order = sorted(
                range(len(self._names)), key=lambda i: -len(self._names[i])
            )
            self._pattern = _any_of([self._names[i] for i in self._order])
            self.format_hint = f"Answer with one of: {', '.join(self._names)}."
        self._seed: int | None = None
        self._inner_options: dict[str, Any] | None = None
        self._info: dict[str, Any] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode; ``seed`` and ``options`` go to the wrapped environment."""
        options = dict(options or {})
        start_options = {"split": options.pop("split")} if "split" in options else {}
        self._seed, self._inner_options = seed, options or None
        prompt, info = super().reset(seed=seed, options=start_options)
        return prompt, {**self._info, **info}

    def start(self, rng: np.random.Generator) -> TurnResult:
        """Reset the wrapped environment."""
        observation, self._info = self.env.reset(
            seed=self._seed, options=self._inner_options
        )
        shown = self._shown(observation)
        if self._names:
            shown.observation += f"\n{self.format_hint}"
        return shown

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one turn; infos of the wrapped environment are kept."""
        self._info = {}
        text, reward, terminated, truncated, info = super().step(action)
        # The adapter's keys win: success and stop_reason have a fixed meaning here.
        return text, reward, terminated, truncated, {**self._info, **info}

    def parse(self, completion: str) -> Any | None:
        """Return the action in the text; None if the action space excludes it."""
        if self._names:
            match = last_match(self._pattern, completion)
            if match is None or match.lastindex is None:
                return None
            # Discrete spaces may start at another number than 0.
            return int(self.env.action_space.start) + self._order[match.lastindex - 1]
        action = (self._parse_text or str.strip)(completion)
        # Checked here: many environments fail, or misbehave, on actions outside of it.
        is_valid = action is not None and self.env.action_space.contains(action)
        return action if is_valid else None

    def reply(self, action: Any) -> TurnResult:
        """Step the wrapped environment."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._info = info
        success = info.get("success", info.get("is_success"))
        shown = self._shown(observation)
        return dataclasses.replace(
            shown,
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
            success=None if success is None else bool(success),
        )

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a random action name."""
        if not self._names:
            raise NotImplementedError(
                f"The adapter of {self.env} has no random policy without action_names."
            )
        return self._names[int(rng.integers(len(self._names)))]

    def close(self) -> None:
        """Close the wrapped environment."""
        self.env.close()

    def _invalid(self) -> TurnResult:
        result = super()._invalid()
        if self._is_shown:
            # The last picture again: the model may read nothing but its last turn.
            result.observation = f"{PLACEHOLDER}\n{result.observation}"
            result.images = [self._picture()]
        return result

    def _shown(self, observation: object) -> TurnResult:
        """Return an observation as text, below its picture if it has one."""
        text = self._to_text(observation) if self._has_text else ""
        if not self._is_shown:
            return TurnResult(text)
        lines = [PLACEHOLDER, *filter(None, [quoted(text)])]
        return TurnResult("\n".join(lines), images=[self._picture()])

    def _picture(self) -> np.ndarray:
        picture: object = self.env.render()
        check_image(picture, f"render() of {self.env}")
        assert isinstance(picture, np.ndarray), "It has been checked."
        return picture

    def _to_text(self, observation: object) -> str:
        text = self._render_text(observation) if self._render_text else observation
        if not isinstance(text, str):
            source = "render()" if self._render_text else "the environment"
            raise EnvContractError(
                f"{source} returned {type(text).__name__} as an observation; it must "
                "be a str. Pass render=, a function from observations to text."
            )
        return text


def _has_text(env: gym.Env, render: Callable[[Any], str] | None) -> bool:
    """Return whether observations are text, or can be converted to it."""
    return render is not None or isinstance(env.observation_space, _TEXT_SPACES)


def _check_observations(env: gym.Env, has_text: bool) -> None:
    if not has_text:
        raise EnvContractError(
            f"{env} does not have text observations: its observation space is "
            f"{env.observation_space}. Wrap it as GymTextEnv(env, render=...), where "
            "render is a function from an observation to text, or show its pictures "
            "with pictures=True."
        )


def _check_render_mode(env: gym.Env) -> None:
    if env.render_mode != "rgb_array":
        raise ConfigError(
            f"pictures=True needs render_mode='rgb_array', but {env} has render_mode="
            f"{env.render_mode!r}. Pass render_mode='rgb_array' to gymnasium.make, or "
            "in env_config."
        )


def _check_actions(
    env: gym.Env,
    parse: Callable[[str], Any] | None,
    action_names: Sequence[str] | None,
) -> None:
    space = env.action_space
    if action_names is not None:
        if not isinstance(space, gym.spaces.Discrete):
            raise ConfigError(
                f"action_names needs a Discrete action space, but {env} has {space}. "
                "Pass parse=, a function from text to an action, instead."
            )
        # In lower case, because texts are searched without regard to case.
        if len({name.lower() for name in action_names}) != space.n:
            raise ConfigError(
                f"action_names={list(action_names)} must be {space.n} different names, "
                "one for each action."
            )
    elif parse is None and not isinstance(space, _TEXT_SPACES):
        raise EnvContractError(
            f"{env} does not accept text: its action space is {space}. Wrap it as "
            "GymTextEnv(env, action_names=[...]) for a Discrete space, or as "
            "GymTextEnv(env, parse=...), where parse is a function from text to an "
            "action."
        )


def _any_of(names: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern of any name as a whole word; the group gives its index."""
    choices = "|".join(f"({re.escape(name)})" for name in names)
    # Not \b: names may begin or end with characters that are no part of a word.
    return re.compile(rf"(?<!\w)(?:{choices})(?!\w)", re.IGNORECASE)
