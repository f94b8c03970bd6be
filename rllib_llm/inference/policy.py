"""A trained policy to talk to, exactly as it was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from rllib_llm.data.types import Message, Task
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.env_runner.build import PolicyAssignment
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.evaluation.outcomes import held_out_tasks
from rllib_llm.inference.conversation import Conversation


class LLMPolicy:
    """The policies of a training run, ready to act.

    An observation takes the way it took in training: system and role prompts,
    connectors, chat template, history, tools, engine, sampling parameters.

    Args:
        runner: An LLMEnvRunner with the policies' weights.
        policy: Acts for every agent; None: each agent's own policy, as in training.

    Raises:
        ConfigError: If there is no such policy.

    Example:
        >>> policy = LLMPolicy.from_checkpoint("my_run")  # doctest: +SKIP
        >>> policy.chat("Find a number from 1 to 7.")  # doctest: +SKIP
        'guess 4'
    """

    def __init__(self, runner: Any, policy: str | None = None):
        self.runner, self._policy = runner, policy
        if policy is not None and policy not in self.policies:
            raise ConfigError(
                f"The run has no policy {policy!r}. "
                f"{did_you_mean(policy, self.policies)}"
            )

    @classmethod
    def from_checkpoint(cls, path: str | Path, policy: str | None = None) -> Self:
        """Load the newest checkpoint of a run. Ray need not run.

        Args:
            path: A run, trial or checkpoint folder, or the name of a run.
            policy: As in the class.

        Raises:
            CheckpointError: If there is no complete checkpoint.
        """
        from rllib_llm.inference.checkpoint_config import load_runner

        return cls(load_runner(path), policy)

    @classmethod
    def from_algorithm(cls, algo: Any, policy: str | None = None) -> Self:
        """Take the present policies of an algorithm that was built."""
        from rllib_llm.evaluation.runner import local_runner

        return cls(local_runner(algo), policy)

    @property
    def config(self) -> Any:
        """The training run's config."""
        return self.runner.config

    @property
    def policies(self) -> tuple[str, ...]:
        """ModuleIDs of all policies."""
        return tuple(self.config.module_ids)

    @property
    def agents(self) -> list[str] | None:
        """The environment's agents; None if it has a single one."""
        env = self.make_env()
        agents = agents_of(env)
        env.close()
        return agents

    def make_env(self) -> Any:
        """Return a new environment as in training.

        Gymnasium's ``reset`` and ``step`` for one agent, those of
        :class:`rllib_llm.envs.multi_agent_adapter.MultiAgentAdapter` for several.
        """
        return self.config.make_text_env()

    def in_env(self, env: Any, env_config: dict[str, Any] | None = None) -> Self:
        """Return the same policies, sharing weights, in another environment.

        Args:
            env: What ``.environment(env)`` takes.
            env_config: Its options. Where the environment is the run's own, those of
                training hold for what is not named.
        """
        from rllib_llm.evaluation.runner import runner_in

        return type(self)(runner_in(self.runner, env, env_config), self._policy)

    def held_out_tasks(self, num_tasks: int) -> list[Task]:
        """Return the tasks that ``rllib-llm evaluate`` plays."""
        return held_out_tasks(self.config, num_tasks)

    def conversation(
        self,
        task: Task | None = None,
        *,
        seed: int | None = None,
        greedy: bool = False,
        policies: Mapping[str, str] | None = None,
        system: str | None = None,
    ) -> Conversation:
        """Begin an episode.

        Args:
            task: What is played, e.g. one of :meth:`held_out_tasks`: the episode then
                goes as evaluation plays it.
            seed: Seeds the turns where there is no task; None takes a new one every
                time.
            greedy: Take the most likely tokens, or sample as in training.
            policies: Who acts for whom, by AgentID, where it is not as in training.
            system: System message in place of the settings' and the environment's.

        Raises:
            ConfigError: If one of ``policies`` does not exist, or a task has a seed.
        """
        if task is not None and seed is not None:
            raise ConfigError(
                f"seed={seed} would have no effect: the task has its own, {task.seed}. "
                "Leave one of them out."
            )
        if task is None:
            if seed is None:
                seed = int(np.random.default_rng().integers(2**31))
            (first,) = self.held_out_tasks(1)  # where tasks say who plays whom
            task = Task(group_id=0, rollout=0, seed=seed, assignment=first.assignment)
        if policies is None and self._policy is not None:
            policies = {"*": self._policy}
        for name in (policies or {}).values():
            if name not in self.policies:
                raise ConfigError(
                    f"There is no policy {name!r}. {did_you_mean(name, self.policies)}"
                )
        return Conversation(
            self.runner,
            task,
            greedy=greedy,
            assignment=PolicyAssignment(dict(policies)) if policies else None,
            system=system,
        )

    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        agent: str | None = None,
        seed: int | None = None,
        greedy: bool = False,
    ) -> str:
        """Return the policy's next reply.

        Earlier replies among ``messages`` are encoded anew; a :meth:`conversation`
        keeps the very tokens.

        Args:
            messages: An observation, or messages: a system message if it shall be
                another than in training, then users' and assistant's in turn, a
                user's last.
            agent: Who is asked, where there are several agents.
            seed: Seeds the sampling; None takes a new one every time.
            greedy: Take the most likely tokens, or sample as in training.

        Raises:
            ConfigError: If the messages do not alternate.
            EpisodeOverError: If they leave no room to answer.
        """
        system, earlier, observation = _as_turns(messages)
        with self.conversation(seed=seed, greedy=greedy, system=system) as talk:
            for told, said in earlier:
                talk.recite(told, said, agent=agent)
            return talk.reply(observation, agent=agent)

    def close(self) -> None:
        """Close environments and engines' sessions."""
        self.runner.stop()


def _as_turns(
    messages: str | Sequence[Message],
) -> tuple[str | None, list[tuple[str, str]], str]:
    """Return the system message, earlier turns, and the observation to answer."""
    if isinstance(messages, str):
        return None, [], messages
    rest, system = list(messages), None
    if rest and rest[0]["role"] == "system":
        system = rest.pop(0)["content"]
    roles = [m["role"] for m in rest]
    if len(rest) % 2 == 0 or roles != (["user", "assistant"] * len(rest))[: len(rest)]:
        raise ConfigError(
            f"chat() got messages of the roles {[m['role'] for m in messages]}; after "
            "an optional system message, user and assistant must alternate, and a user "
            "must be last. Results of tools go through conversation().reply(..., info)."
        )
    texts = [m["content"] for m in rest]
    return system, list(zip(texts[::2], texts[1::2], strict=False)), texts[-1]
