"""Second try: a solver answers, a checker says right or wrong, the solver goes on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from rllib_llm.envs.games.team import make_task
from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv, Outcome
from rllib_llm.envs.parsing import last_match
from rllib_llm.envs.registry import register_text_env
from rllib_llm.errors import ConfigError

SOLVER, CHECKER = "solver_0", "checker_0"
SUMS = {"demonstration": "demonstration", "grader": "number"}


@register_text_env("second_try-v0")
class SecondTry(MultiAgentTextEnv):
    """Answer a question, check the answer, answer again only if the check says wrong.

    The rewards are those of PAG (Jiang et al. 2025, arXiv:2506.10406), of which only a
    summary was read: the solver gets 1 for each right answer, the checker 1 if it
    judges the first answer correctly. With one policy for both agents it checks itself;
    the checker reads question and answer in a conversation of its own.
    """

    possible_agents = [SOLVER, CHECKER]
    max_turns = 6
    format_hint = "Please answer the question, or say 'right' or 'wrong'."
    _check = re.compile(r"\b(right|wrong)\b", re.IGNORECASE)

    def start(
        self,
        rng: np.random.Generator,
        task: str = "dataset-v0",
        task_config: Mapping[str, Any] | None = None,
        bonus: float = 0.0,
    ) -> None:
        """Ask a question.

        Args:
            rng: Generator of the instance.
            task: Name of a registered single-agent environment, of which an episode is
                one turn.
            task_config: Options of the task; None: its defaults, and sums of two
                numbers for dataset-v0.
            bonus: Reward added where the second answer is right and the first wrong.
        """
        if bonus < 0:
            raise ConfigError(f"bonus={bonus!r} must be >= 0, e.g. 0.5.")
        self.bonus = bonus
        if task == "dataset-v0" and task_config is None:
            task_config = SUMS
        seed = int(rng.integers(2**31))
        # One copy per answer: a task ends with its answer.
        self.tries = [make_task(task, task_config) for _ in range(2)]
        for each in self.tries:
            self.question, _ = each.reset(seed=seed, options={"split": self.split})
        self.answers: list[str] = []
        self.is_right: list[bool] = []

    def prompt_for(self, agent: str) -> str:
        """Return the question to the solver, question and answer to the checker."""
        if agent == CHECKER:
            if not self.answers:
                return ""
            return f"{self.question}\n{self.answers[0]}\nSay right or wrong."
        return "That is wrong. Try again." if self.answers else self.question

    def parse(self, agent: str, text: str) -> Any | None:
        """Return the checker's word, or an answer that the task can read."""
        if agent == CHECKER:
            match = last_match(self._check, text)
            return match and match.group(1).lower()
        action = self.tries[len(self.answers)].parse(text)
        return None if action is None else text

    def apply(self, agent: str, action: str) -> Outcome | None:
        """Grade an answer, or end the game if the checker says right."""
        if agent == CHECKER:
            is_correct = (action == "right") == self.is_right[0]
            rewards = {CHECKER: float(is_correct)}
            if action == "right":
                return self._finish(rewards)
            return Outcome(rewards)
        first = not self.answers
        self.is_right.append(self._grade(action))
        self.answers.append(action)
        rewards = {SOLVER: float(self.is_right[-1])}
        if first:
            return Outcome(rewards)
        if self.is_right == [False, True]:
            rewards[SOLVER] += self.bonus
        return self._finish(rewards)

    def _grade(self, text: str) -> bool:
        """Return whether an answer solves the task.

        Raises:
            ConfigError: If the task goes on after it.
        """
        _, reward, ended, cut, info = self.tries[len(self.answers)].step(text)
        if not (ended or cut):
            raise ConfigError(
                f"task={self.options()['task']!r} goes on after an answer; an episode "
                "of it must be one turn. Use e.g. 'dataset-v0' without tools."
            )
        success = info.get("success")
        return reward >= 1 if success is None else bool(success)

    def _finish(self, rewards: dict[str, float]) -> Outcome:
        metrics = {
            "first_right": float(self.is_right[0]),
            "tries": float(len(self.answers)),
        }
        return Outcome(
            rewards, terminated=True, success=self.is_right[-1], metrics=metrics
        )

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return the task's expert answer, or the truth about the first answer."""
        if agent == CHECKER:
            return "right" if self.is_right[0] else "wrong"
        return self.tries[len(self.answers)].expert_action(rng)

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return any answer of the task, or either word."""
        if agent == CHECKER:
            return str(rng.choice(["right", "wrong"]))
        return self.tries[len(self.answers)].random_action(rng)
