"""A team as one model: its reply follows an inner conversation of its agents."""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Any

from rllib_llm.data.model_calls import ModelReply
from rllib_llm.data.types import Task
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.envs.questions import AnswersQuestions
from rllib_llm.errors import EpisodeOverError
from rllib_llm.evaluation.outcomes import held_out_tasks
from rllib_llm.inference.conversation import Conversation
from rllib_llm.inference.game import Game
from rllib_llm.openai_api.request_fields import RequestError
from rllib_llm.openai_api.requests import ParsedCall, Sampling
from rllib_llm.policy_mapping import mapped_policies
from rllib_llm.seeding import stable_seed
from rllib_llm.serving.engine_loop import SharedEngine

if TYPE_CHECKING:
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
    from rllib_llm.serving.engine_loop import EngineLoop

TEAM = "team"


class TeamModel:
    """Plays one episode of a run's environment on a user's message.

    Everything but the task is as in training: who reads whom, prompts, roles, limits.

    Args:
        runner: An EnvRunner with the policies.
        loop: The thread that steps its engines.
    """

    def __init__(self, runner: LLMEnvRunner, loop: EngineLoop):
        self._runner, self._loop = runner, loop
        (self._first,) = held_out_tasks(runner.config, 1)
        # Connectors and tokenizers are not made for several threads.
        self._lock = threading.Lock()

    @property
    def sampling(self) -> Sampling:
        """Sampling settings, of which each policy has its own."""
        return Sampling()

    def check(self, call: ParsedCall) -> str:
        """Return the user's message.

        Raises:
            RequestError: If the request needs more than a team can do.
        """
        for name, given in {
            "temperature": call.temperature not in (None, 0.0),
            "top_p": call.top_p is not None,
            "stop": bool(call.stop),
            "tools": bool(call.tools),
            "logprobs": call.logprobs,
            "return_token_ids": call.token_ids,
            "max_tokens": call.max_tokens is not None,
        }.items():
            if given:
                raise RequestError(
                    f"{name} is refused: the agents of {TEAM!r} use the settings of "
                    "training. Leave it out (temperature=0 is greedy), or ask a policy "
                    "by its name.",
                    param=name,
                )
        roles = [message.role for message in call.messages]
        text = call.messages[-1].content if roles == ["user"] else ""
        if not text.strip():
            raise RequestError(
                f"{TEAM!r} answers one message of the user that is not blank, because "
                "its inner conversation is not part of the messages; the roles are "
                f"{roles}. Send one message.",
                param="messages",
            )
        return text

    def reply(self, call: ParsedCall, question: str, sample: int) -> ModelReply:
        """Play an episode and return its answer; blocks until its end.

        Raises:
            RequestError: If a limit of the training run ends it without an answer.
        """
        seed = secrets.randbits(31)
        if call.seed is not None:
            seed = stable_seed(call.seed, sample)
        task = Task(group_id=0, rollout=0, seed=seed, assignment=self._first.assignment)
        env = self._runner.config.make_text_env()
        env.unwrapped.ask(question)
        conversation = self._conversation(task, greedy=call.temperature == 0.0)
        try:
            game = Game(env, task)
            while not game.is_over:
                game.step(conversation.replies(game.observations, game.infos))
            answer = env.unwrapped.answer
        except EpisodeOverError as error:
            raise RequestError(str(error), code="context_length_exceeded") from error
        finally:
            conversation.close()
            env.close()
        if answer is None:
            raise RequestError(
                "The episode ended without an answer of the team. Ask again, or ask a "
                "policy by its name.",
                status=500,
                code="no_answer",
            )
        prompt_tokens, sampled = conversation.num_tokens
        return ModelReply(
            answer, answer, prompt_tokens=prompt_tokens, inner_tokens=sampled
        )

    def _conversation(self, task: Task, *, greedy: bool) -> Conversation:
        engines: dict[int, SharedEngine] = {}
        by_policy = {}
        for module_id, engine in self._runner.engines.items():
            # Policies that share an engine share its view: it numbers their adapters.
            shared = engines.setdefault(id(engine), SharedEngine(engine, self._loop))
            by_policy[module_id] = shared
        return Conversation(
            self._runner, task, greedy=greedy, engines=by_policy, lock=self._lock
        )


def team_problem(runner: LLMEnvRunner) -> str | None:
    """Return why a run cannot be served as one model; None if it can."""
    config = runner.config
    env = config.make_text_env()
    agents = agents_of(env)
    try:
        if agents is None:
            return f"{config.env!r} has one agent."
        if not isinstance(env.unwrapped, AnswersQuestions):
            return (
                f"the agents of {config.env!r} observe its own tasks, not a user's "
                "text. team-v0 can be served, and environments with ask() and answer."
            )
        others = _not_sampled(runner, agents)
        if others:
            return (
                f"the policies {', '.join(others)} are scripted, act in numbers or "
                "choose among listed actions."
            )
        if TEAM in config.module_ids:
            return f"a policy has the name {TEAM!r}."
    finally:
        env.close()
    return None


def _not_sampled(runner: LLMEnvRunner, agents: list[str]) -> list[str]:
    policies: Any = mapped_policies(runner.config, agents).values()
    return sorted({each for each in policies if each not in runner.engines})
