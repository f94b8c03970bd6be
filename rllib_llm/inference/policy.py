"""Trained policies for inference, with the prompts and settings of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rllib_llm.data.types import Message, Task
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.env_runner.build import PolicyAssignment
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.evaluation.outcomes import held_out_tasks
from rllib_llm.inference.conversation import Conversation

if TYPE_CHECKING:
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
    from rllib_llm.envs.make import EnvSpec
    from rllib_llm.types import LLMAlgorithm


class LLMPolicy:
    """Policies of a training run, for inference.

    Observations are processed as in training: system and role prompts, connectors, chat
    template, history, tools, engine, sampling parameters.

    Args:
        runner: An LLMEnvRunner with the policies' weights.
        policy: ModuleID of the policy that acts for every agent; None means each
            agent's policy in training.

    Raises:
        ConfigError: If ``policy`` does not exist.

    Example:
        >>> policy = LLMPolicy.from_checkpoint("my_run")  # doctest: +SKIP
        >>> policy.chat("Find a number from 1 to 7.")  # doctest: +SKIP
        'guess 4'
    """

    def __init__(self, runner: LLMEnvRunner, policy: str | None = None):
        self.runner, self._policy = runner, policy
        if policy is not None and policy not in self.policies:
            raise ConfigError(
                f"The run has no policy {policy!r}. "
                f"{did_you_mean(policy, self.policies)}"
            )

    @classmethod
    def from_checkpoint(cls, path: str | Path, policy: str | None = None) -> Self:
        """Load the newest checkpoint of a run. Ray is not needed.

        Args:
            path: A run, trial or checkpoint folder, or the name of a run.
            policy: As in the class.

        Raises:
            CheckpointError: If there is no complete checkpoint.
        """
        from rllib_llm.inference.checkpoint_config import load_runner

        return cls(load_runner(path), policy)

    @classmethod
    def from_algorithm(cls, algo: LLMAlgorithm, policy: str | None = None) -> Self:
        """Wrap the current policies of a built algorithm."""
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
        """Agents of the environment; None if it has one agent."""
        env = self.make_env()
        agents = agents_of(env)
        env.close()
        return agents

    def make_env(self) -> Any:
        """Return a new environment as in training.

        It has Gymnasium's ``reset`` and ``step`` for one agent, and those of
        :class:`rllib_llm.envs.multi_agent_adapter.MultiAgentAdapter` for several.
        """
        return self.config.make_text_env()

    def in_env(self, env: EnvSpec, env_config: dict[str, Any] | None = None) -> Self:
        """Return the same policies, sharing weights, in another environment.

        Args:
            env: As in ``.environment(env)``.
            env_config: Its options. For the run's own environment, missing options
                have their values of training.
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
        """Start an episode.

        Args:
            task: The task, e.g. one of :meth:`held_out_tasks`, which gives the same
                episode as evaluation.
            seed: Seed of the turns without a task; None draws a new one.
            greedy: Decode greedily, or sample as in training.
            policies: Policy of each agent, by AgentID, in place of the training run's.
            system: System message in place of the config's and the environment's.

        Raises:
            ConfigError: If one of ``policies`` does not exist, or a task has a seed.
        """
        if task is not None and seed is not None:
            raise ConfigError(
                f"seed={seed} would have no effect, because the task has the seed "
                f"{task.seed}. Pass either a task or a seed."
            )
        if task is None:
            if seed is None:
                seed = int(np.random.default_rng().integers(2**31))
            # Self-play needs an assignment, which tasks hold: take that of any task.
            (first,) = self.held_out_tasks(1)
            task = Task(group_id=0, rollout=0, seed=seed, assignment=first.assignment)
        if policies is None and self._policy is not None:
            policies = {"*": self._policy}
        for name in (policies or {}).values():
            if name not in self.policies:
                raise ConfigError(
                    f"The run has no policy {name!r}. "
                    f"{did_you_mean(name, self.policies)}"
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

        Earlier replies in ``messages`` are encoded from their text; a
        :meth:`conversation` keeps the sampled tokens.

        Args:
            messages: An observation, or messages: optionally a system message in place
                of that of training, then user and assistant in turn, ending with user.
            agent: The replying agent, with several agents.
            seed: Seed of the sampling; None draws a new one.
            greedy: Decode greedily, or sample as in training.

        Raises:
            ConfigError: If the messages do not alternate.
            EpisodeOverError: If the messages leave no room for a reply in the context.
        """
        system, earlier, observation = _as_turns(messages)
        with self.conversation(seed=seed, greedy=greedy, system=system) as conversation:
            for user_text, reply in earlier:
                conversation.append_turn(user_text, reply, agent=agent)
            return conversation.reply(observation, agent=agent)

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
            "must be last. Pass tool results to conversation().reply(..., info)."
        )
    texts = [m["content"] for m in rest]
    return system, list(zip(texts[::2], texts[1::2], strict=False)), texts[-1]
