"""Adapter of the tasks of reasoning-gym, one question per episode."""

from __future__ import annotations

import importlib.metadata
import re
from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.adapters.reasoning_grading import (
    READ_VERSION,
    check_gradable,
    gradable,
    grade,
)
from rllib_llm.envs.parsing import last_match, require_choice, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv, in_split
from rllib_llm.errors import ConfigError, MissingExtraError, did_you_mean

_TAGGED = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_FORMATS = ("tags", "text")
_MOST_DRAWS = 1_000
_OURS = ("seed", "size")


@register_text_env("reasoning_gym-v0")
class ReasoningGym(TextEnv):
    """Answer a question of reasoning-gym; ``task`` selects its generator.

    Reasoning Gym (Stojanovski et al. 2025, arXiv:2505.24760). The reward is the score
    in [0, 1]; 1 is success. Answers are never evaluated as code; see
    :mod:`rllib_llm.envs.adapters.reasoning_grading` for their grading.

    Raises:
        MissingExtraError: If reasoning-gym is not installed.
        ConfigError: If another version than the reviewed one is installed.
    """

    max_turns = 1
    format_hint = "Write your answer as <answer>...</answer>."

    def __init__(self, env_config: dict[str, Any] | None = None):
        import_reasoning_gym()
        super().__init__(env_config)

    def start(
        self,
        rng: np.random.Generator,
        task: str = "chain_sum",
        level: int | None = None,
        task_options: dict[str, Any] | None = None,
        answer_format: str = "tags",
    ) -> str:
        """Draw a question.

        Args:
            rng: Generator of the question.
            task: A task of reasoning-gym.
            level: Level of the task's curriculum, from 0; attributes with fewer levels
                stay at their last one. None: the library's defaults.
            task_options: Settings of the task; they override those of the level.
            answer_format: "tags": the last <answer> counts; "text": the whole text.
        """
        self._tagged = require_choice("answer_format", answer_format, _FORMATS)
        self.task = _check_task(task)
        self._settings = _settings(task, level, task_options)
        self.instance = self._draw(rng)
        question = str(self.instance["question"]).strip()
        return f"{question}\n{self.format_hint}" if self._in_tags() else question

    def parse(self, completion: str) -> str | None:
        """Return the answer."""
        if self._in_tags():
            match = last_match(_TAGGED, completion)
            completion = match[1] if match else ""
        return completion.strip() or None

    def reply(self, action: str) -> TurnResult:
        """Grade the answer, which ends the episode."""
        score = grade(self.task, self._settings, self.instance, action)
        text = "That is right." if score == 1.0 else "That is not right."
        return TurnResult(text, score, terminated=True, success=score == 1.0)

    def more_info(self) -> dict[str, Any]:
        """Return the reference answer, if there is one."""
        answer = self.instance["answer"]
        return {} if answer is None else {"gold_answers": [answer]}

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the reference answer.

        Raises:
            NotImplementedError: For tasks without one.
        """
        return self._say(self.instance["answer"])

    def random_action(self, rng: np.random.Generator) -> str:
        """Return the reference answer of another question."""
        return self._say(self._make(rng)["answer"])

    # Helpers --------------------------------------------------------------------

    def _in_tags(self) -> bool:
        return self._tagged == "tags"

    def _say(self, answer: str | None) -> str:
        if answer is None:
            raise NotImplementedError(f"{self.task} has no reference answers.")
        return f"<answer>{answer}</answer>" if self._in_tags() else str(answer)

    def _draw(self, rng: np.random.Generator) -> dict[str, Any]:
        """Draw until the question belongs to the split."""
        for _ in range(_MOST_DRAWS):
            instance = self._make(rng)
            if in_split(str(instance["question"]), self.split):
                return instance
        raise ConfigError(
            f"task={self.task!r} returned no question of the split {self.split!r} in "
            f"{_MOST_DRAWS} draws. Change task_options to allow more questions."
        )

    def _make(self, rng: np.random.Generator) -> dict[str, Any]:
        # A data set per question, because in some data sets items depend on each other.
        seed = int(rng.integers(2**31))
        return _data_set(self.task, {**self._settings, "seed": seed, "size": 1})[0]


def import_reasoning_gym() -> Any:
    """Import reasoning-gym in the reviewed version.

    Raises:
        MissingExtraError: If it is not installed.
        ConfigError: If another version is installed.
    """
    try:
        import reasoning_gym
    except ModuleNotFoundError as error:
        if error.name != "reasoning_gym":
            raise
        raise MissingExtraError.for_extra("reasoning-gym", "reasoning") from error
    version = importlib.metadata.version("reasoning-gym")
    if version != READ_VERSION:
        raise ConfigError(
            f"reasoning-gym {version} is installed, but the safety of its scorers was "
            f"reviewed in version {READ_VERSION} only. Run: pip install "
            f"reasoning-gym=={READ_VERSION}."
        )
    return reasoning_gym


def _check_task(task: str) -> str:
    tasks = set(import_reasoning_gym().factory.DATASETS)
    if task not in tasks:
        hint = did_you_mean(str(task), gradable())
        raise ConfigError(f"Unknown reasoning-gym task={task!r}. {hint}")
    check_gradable(task)
    return task


def _settings(
    task: str, level: int | None, task_options: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the library's settings of a task without seed and size."""
    given = dict(task_options or {})
    for name in _OURS:
        if name in given:
            raise ConfigError(
                f"task_options has {name!r}, which the environment sets from the seed "
                "of the episode. Remove it."
            )
    if level is None:
        return given
    require_int("level", level, 0, 1_000)
    factory = import_reasoning_gym().factory
    if not factory.has_curriculum(task):
        raise ConfigError(
            f"level={level}: the task {task!r} has no curriculum. Leave level out."
        )
    curriculum = factory.create_curriculum(task)
    curriculum.set_global_level(level)
    try:
        config = curriculum.generate_configuration()
    except (AssertionError, ValueError) as error:
        raise ConfigError(
            f"level={level}: the curriculum of {task!r} rejects this level: {error}. "
            "Choose another one."
        ) from error
    of_level = {k: v for k, v in vars(config).items() if k not in _OURS}
    return {**of_level, **given}


def _data_set(task: str, settings: dict[str, Any]) -> Any:
    try:
        return import_reasoning_gym().create_dataset(task, **settings)
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(
            f"task_options={settings!r} do not match the task {task!r}: {error}. "
            "Correct them."
        ) from error
