"""Questions to assistants, between sampling and rewards."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.config.check_assistants import (
    asked_about_candidates,
    assistants_asked_for_tasks,
    assistants_read,
)
from rllib_llm.algorithms.driver.proposals import propose_tasks
from rllib_llm.algorithms.driver.runner_group_calls import call_runners
from rllib_llm.assistants.answers import Answer, reduced, value_of
from rllib_llm.assistants.comparisons import (
    compared_values,
    ordered_pairs,
    questions_about_pair,
)
from rllib_llm.assistants.local_sources import api_answers, api_model, script_answers
from rllib_llm.assistants.questions import Question, questions_about
from rllib_llm.assistants.settings import Assistant, read_assistants
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.turn_table import Trajectory
from rllib_llm.data.types import Task
from rllib_llm.env_runner.answering import AnsweringModel, AnswerQuestions
from rllib_llm.errors import ConfigError, EnvRunnerError
from rllib_llm.offline.prepare_model import checkpoint_folder, prepare_language_model
from rllib_llm.rllib_bases import RLlibAlgorithm

logger = logging.getLogger("rllib_llm")


class AsksAssistants(RLlibAlgorithm):
    """Mixin of algorithms that ask assistants about sampled episodes.

    Put it before the Algorithm class in the bases.
    """

    config: Any
    _assistants: Mapping[str, Assistant] = MappingProxyType({})
    _asks_for_tasks = False
    # Of SamplingAlgorithm.
    _weights_version: int | None
    _healthy_runners: Any
    update_restarted: Any

    @override(Algorithm)
    def setup(self, config: Any) -> None:
        self._assistants = read_assistants(config.assistants)
        self._assistants_read = assistants_read(config)
        self._asked_about_candidates = asked_about_candidates(config)
        self._asks_for_tasks = bool(assistants_asked_for_tasks(config))
        self._answering = {
            name: answering_model(config, assistant)
            for name, assistant in self._assistants.items()
            if assistant.is_on_runners
        }
        self._api_models = {
            name: api_model(assistant)
            for name, assistant in self._assistants.items()
            if assistant.api is not None
        }
        super().setup(config)

    def next_tasks(self, num_groups: int) -> list[Task]:
        """Return the tasks of the next groups; curricula may ask for some before."""
        if self._asks_for_tasks:
            propose_tasks(self)
        tasks: list[Task] = super().next_tasks(num_groups)  # type: ignore[misc]
        return tasks

    def ask_assistants(self, episodes: SampledEpisodes) -> SampledEpisodes:
        """Ask the assistants that components read; store the answers' values.

        Returns:
            The episodes without those of which an answer is unreadable, where that
            drops them.
        """
        dropped: set[int] = set()
        for name, assistant in self._assistants.items():
            trajectories = [
                t
                for t in episodes.trajectories
                if name in self._assistants_read[_environment(t)]
            ]
            if trajectories:
                dropped |= self._ask(assistant, trajectories)
        if self._assistants:
            self.metrics.log_value(
                "num_episodes_unreadable", len(dropped), reduce="sum"
            )
        return episodes.select(set(range(len(episodes))) - dropped)

    def ask_about_candidates(self, replies: SampledEpisodes) -> set[int]:
        """Ask the assistants that score the replies at a turn.

        Returns:
            Numbers of the replies of which an answer is unreadable, where that drops
            what it is about.
        """
        dropped: set[int] = set()
        for name in sorted(self._asked_about_candidates):
            dropped |= self._ask(self._assistants[name], replies.trajectories)
        return dropped

    def _ask(
        self, assistant: Assistant, trajectories: Sequence[Trajectory]
    ) -> set[int]:
        """Ask one assistant; return the numbers of episodes to drop."""
        values = (
            self._compare(assistant, trajectories)
            if assistant.per == "pair"
            else self._judge(assistant, trajectories)
        )
        dropped = set()
        for trajectory, of_one in zip(trajectories, values, strict=True):
            if None in of_one:
                dropped.add(trajectory.episode)
            trajectory.answers[assistant.name] = [
                float("nan") if value is None else value for value in of_one
            ]
        kept = [t for t in trajectories if t.episode not in dropped]
        self._log_values(assistant, kept)
        return dropped

    def _judge(
        self, assistant: Assistant, trajectories: Sequence[Trajectory]
    ) -> list[list[float | None]]:
        """Return the values of each trajectory: one, or one per turn."""
        questions = [questions_about(assistant, t) for t in trajectories]
        flat = [question for of_one in questions for question in of_one]
        of_questions = iter(self._values(assistant, flat))
        return [
            [next(of_questions) for _ in range(len(asked) // assistant.samples)]
            for asked in questions
        ]

    def _compare(
        self, assistant: Assistant, trajectories: Sequence[Trajectory]
    ) -> list[list[float | None]]:
        """Return the value of each trajectory in comparisons with others."""
        pairs = ordered_pairs(trajectories, assistant.opponents)
        questions = [
            question
            for first, second in pairs
            for question in questions_about_pair(
                assistant, trajectories[first], trajectories[second]
            )
        ]
        answers = self._values(assistant, questions)
        values, contradicted = compared_values(pairs, answers, len(trajectories))
        key = ("assistants", assistant.name, "contradicted_frac")
        self.metrics.log_value(key, contradicted, window=1)
        # A rollout without others has no comparison.
        return [[assistant.unreadable if v is None else v] for v in values]

    def _values(
        self, assistant: Assistant, questions: Sequence[Question]
    ) -> list[float | None]:
        """Ask; return the value of each question, None if its episode is dropped."""
        answers = self._answers(assistant, questions)
        values = [value_of(answer.text, assistant.parse) for answer in answers]
        self._log_answers(assistant, answers, values)
        return reduced(values, assistant)

    def _answers(
        self, assistant: Assistant, questions: Sequence[Question]
    ) -> list[Answer]:
        if assistant.script is not None:
            return script_answers(assistant, questions)
        if assistant.api is not None:
            return api_answers(self._api_models[assistant.name], questions)
        return self._answers_of_runners(self._answering[assistant.name], questions)

    def _answers_of_runners(
        self, model: AnsweringModel, questions: Sequence[Question]
    ) -> list[Answer]:
        """Return the answers of a model on the EnvRunners, in the order given.

        Raises:
            EnvRunnerError: If EnvRunners are lost again and again.
        """
        answers: dict[int, Answer] = {}
        attempts = self.config.max_retries + 1
        for _ in range(attempts):
            left = [i for i in range(len(questions)) if i not in answers]
            if not left:
                break
            answers |= self._answers_once(model, questions, left)
        missing = len(questions) - len(answers)
        if missing:
            raise EnvRunnerError(
                f"{missing} of {len(questions)} questions have no answer after "
                f"{attempts} attempts, because EnvRunners were lost. Read their logs "
                "for the cause, or raise rollouts.max_retries."
            )
        return [answers[i] for i in range(len(questions))]

    def _answers_once(
        self, model: AnsweringModel, questions: Sequence[Question], left: Sequence[int]
    ) -> dict[int, Answer]:
        """Ask each EnvRunner a share of the questions; return the answers by index."""
        runners = self._healthy_runners()
        version = self._weights_version if runners else None

        def call(indices: Sequence[int]) -> AnswerQuestions:
            return AnswerQuestions(
                model,
                [questions[i].messages for i in indices],
                [questions[i].seed for i in indices],
                version,
            )

        if not runners:
            assert self.env_runner is not None  # _healthy_runners() requires it
            answers = call(left)(self.env_runner)
            assert answers is not None  # it has no version to compare
            return dict(zip(left, answers, strict=True))
        shares = {r: left[k :: len(runners)] for k, r in enumerate(runners)}
        shares = {r: share for r, share in shares.items() if share}
        given: Mapping[int, list[Answer] | None] = call_runners(
            self.env_runner_group,
            {r: call(share) for r, share in shares.items()},
            runners=list(shares),
            limit=self.config.batch_limit,
            version=version,
        )
        lacking = [r for r, answers in given.items() if answers is None]
        if lacking:
            self.update_restarted(lacking)
        return {
            i: answer
            for r, answers in given.items()
            for i, answer in zip(shares[r], answers or [], strict=answers is not None)
        }

    def _log_answers(
        self,
        assistant: Assistant,
        answers: Sequence[Answer],
        values: Sequence[float | str | None],
    ) -> None:
        unreadable = [
            answer.text
            for answer, value in zip(answers, values, strict=True)
            if value is None
        ]
        for name, count in (
            ("num_answers", len(answers)),
            ("num_unreadable", len(unreadable)),
            ("num_too_long", sum(a.is_too_long for a in answers)),
            ("sampled_tokens", sum(a.sampled_tokens for a in answers)),
            ("prompt_tokens", sum(a.prompt_tokens for a in answers)),
        ):
            self.metrics.log_value(
                ("assistants", assistant.name, name), count, reduce="sum"
            )
        if unreadable and len(unreadable) == len(answers):
            logger.warning(
                "assistant %r: none of %d answers is readable, e.g. %r. Change its "
                "template or parse, or ask a model that follows the format.",
                assistant.name,
                len(answers),
                None if unreadable[0] is None else unreadable[0][:200],
            )

    def _log_values(
        self, assistant: Assistant, trajectories: Sequence[Trajectory]
    ) -> None:
        means = [
            (t.is_solved, float(np.mean(t.answers[assistant.name])))
            for t in trajectories
        ]
        for name, classes in (
            ("value_mean", (True, False)),
            ("value_mean_solved", (True,)),
            ("value_mean_failed", (False,)),
        ):
            chosen = [mean for solved, mean in means if solved in classes]
            if chosen:
                key = ("assistants", assistant.name, name)
                self.metrics.log_value(key, float(np.mean(chosen)), window=1)


def answering_model(config: Any, assistant: Assistant) -> AnsweringModel:
    """Return the language model with which EnvRunners answer for an assistant."""
    module_id = assistant.policy or config.llm_module_ids[0]
    model = None if assistant.model is None else checkpoint_folder(assistant.model)
    if assistant.policy is not None and assistant.weights == "initial":
        model = initial_model(config, assistant.policy)
    return AnsweringModel(
        module_id=module_id,
        model=model,
        temperature=assistant.temperature,
        max_new_tokens=assistant.max_new_tokens,
    )


def initial_model(config: Any, module_id: str) -> str:
    """Return the folder or hub id of a policy's weights before training.

    Raises:
        ConfigError: If the policy begins with the weights of a stage before.
    """
    if config.initial_checkpoint is not None:
        raise ConfigError(
            f"rollouts.assistants: weights='initial' of {module_id!r} would be those "
            "of the stage before, whose checkpoint is not a model folder. Export that "
            "stage and set model to the folder, or use weights='current'."
        )
    return prepare_language_model(config.get_config_for_module(module_id))


def _environment(trajectory: Trajectory) -> str | None:
    return trajectory.task.environment
