"""A team of agents on a single-agent task, with any communication graph."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.dependency_graph import DependencyGraph, dependency_graph
from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv, Outcome
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.envs.wrapped_tasks import task_class
from rllib_llm.errors import ConfigError, did_you_mean

AGENTS = ("adviser_0", "solver_0")
DECISIONS = ("last", "vote")


@register_text_env("team-v0")
class Team(MultiAgentTextEnv):
    """Agents exchange messages; the last one or a vote decides. All get the reward.

    A round is one turn of the task: every agent acts once, in an order that the graph
    allows, and the text of the last one, or the majority's action, is the task's
    action. All agents read the task's observations. Within a round an agent reads the
    agents that ``topology`` connects to it; under ``"debate"`` all also read the
    others' messages of the round before.
    """

    max_turns = 256  # the task has its own limit
    answer: str | None = None
    _question: str | None = None

    def ask(self, question: str) -> None:
        """Make the next episode one round on a user's text, without a reward."""
        self._question = question

    def agent_names(self, agents: Sequence[str] = AGENTS, **_: Any) -> list[str]:
        """Return the names in the option."""
        return list(agents)

    def start(
        self,
        rng: np.random.Generator,
        task: str = "guess_number-v0",
        task_config: Mapping[str, Any] | None = None,
        agents: Sequence[str] = AGENTS,
        topology: str | Mapping[str, Sequence[str]] = "chain",
        decide: str = "last",
    ) -> None:
        """Start the task.

        Args:
            rng: Generator of the instance.
            task: Name of a registered single-agent environment.
            task_config: Options of the task.
            agents: Names of the agents; the last one in the graph's order answers.
            topology: "chain", "star", "debate", or edges ``{reader: [read, ...]}``.
            decide: "last": the last agent answers; "vote": the action of most agents
                counts, with ties for the one named first.
        """
        if decide not in DECISIONS:
            raise ConfigError(
                f"Unknown decide={decide!r}. {did_you_mean(decide, DECISIONS)}"
            )
        self.decide = decide
        self.graph: DependencyGraph = dependency_graph(topology, agents)
        self.order = [agent for level in self.graph.levels for agent in level]
        self.is_debate = topology == "debate"
        question, self._question, self.answer = self._question, None, None
        self.task = (
            make_task(task, task_config) if question is None else _Question(question)
        )
        seed = int(rng.integers(2**31))
        opening, _ = self.task.reset(seed=seed, options={"split": self.split})
        self.messages: dict[str, str] = {}
        self.news = {agent: [opening] for agent in agents}

    def prompt_for(self, agent: str) -> str:
        """Return everything that the agent has not read yet."""
        text = "\n".join(self.news[agent])
        self.news[agent] = []
        return text

    def next_agent(self) -> str:
        """Return the next agent in the order of the graph."""
        return self.order[len(self.messages) % len(self.order)]

    def apply(self, agent: str, action: str) -> Outcome | None:
        """Pass the message on; the last one of a round answers the task."""
        self.messages[agent] = action
        for reader in self.graph.read_by(agent):
            self.news[reader].append(f"{agent} says: {action}")
        if len(self.messages) < len(self.order):
            return None
        return self._answer(self._most_named() if self.decide == "vote" else action)

    def _most_named(self) -> str:
        """Return the first text among those that name the majority's action."""
        meant = {a: self.task.parse(text) for a, text in self.messages.items()}
        keys = {a: _key(action) for a, action in meant.items() if action is not None}
        counts = Counter(keys.values())
        if not counts:
            return self.messages[self.order[-1]]
        winner = counts.most_common(1)[0][0]
        return self.messages[next(a for a, key in keys.items() if key == winner)]

    def _answer(self, action: str) -> Outcome:
        messages, self.messages = self.messages, {}
        self.answer = action
        observation, reward, terminated, truncated, info = self.task.step(action)
        for agent, news in self.news.items():
            if self.is_debate:
                news += [f"{a} says: {t}" for a, t in messages.items() if a != agent]
            news.append(observation)
        return Outcome(
            dict.fromkeys(self.order, reward),
            terminated=terminated,
            truncated=truncated,
            success=info.get("success"),
            metrics=info.get("metrics") or {},
        )

    def system_prompt_for(self, agent: str) -> str | None:
        """Return the task's system prompt; roles are the policies' system prompts."""
        return _task_class(self.options()["task"]).system_prompt

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return the task's expert action, as advice or as the answer."""
        return self.task.expert_action(rng)

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return any valid action of the task."""
        return self.task.random_action(rng)


class _Question(TextEnv):
    """A user's text, to which the first answer is the last."""

    max_turns = 1

    def __init__(self, text: str):
        self._text = text
        super().__init__()

    def start(self, rng: np.random.Generator) -> str:
        """Return the text."""
        return self._text

    def parse(self, completion: str) -> str:
        """Accept every text."""
        return completion

    def reply(self, action: str) -> TurnResult:
        """End the episode."""
        return TurnResult("The answer was given.", terminated=True)


def _task_class(name: str) -> type[TextEnv]:
    problem = (
        "is a multi-agent game already. Pass a single-agent environment, e.g. "
        "'guess_number-v0'."
    )
    return task_class(name, TextEnv, problem)


def make_task(name: str, config: Mapping[str, Any] | None) -> TextEnv:
    """Return a registered single-agent environment.

    Raises:
        ConfigError: If it has several agents, or refuses its options.
    """
    return _task_class(name)(dict(config or {}))


def _key(action: object) -> str:
    """Return the same text for equal actions."""
    return ast.dump(action) if isinstance(action, ast.AST) else repr(action)
