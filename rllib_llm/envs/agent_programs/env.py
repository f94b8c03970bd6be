"""Environment whose episodes are runs of a program that calls the policies by HTTP."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from pettingzoo import ParallelEnv

from rllib_llm.data.model_calls import MODEL_REQUEST, ModelReply, ModelRequest
from rllib_llm.data.types import StopReason
from rllib_llm.envs.agent_programs.conversations import Conversation, Conversations
from rllib_llm.envs.agent_programs.endpoint import Endpoint
from rllib_llm.envs.agent_programs.programs import ProgramEndpoint, make_program
from rllib_llm.envs.agent_programs.results import read_result
from rllib_llm.envs.agent_programs.session import Call, ProgramEnd, Session
from rllib_llm.envs.agent_programs.tasks import tasks_of
from rllib_llm.envs.env_options import EnvOptions, is_finite
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.errors import ConfigError, RLlibLLMError
from rllib_llm.imports import import_object
from rllib_llm.openai_api.request_fields import RequestError
from rllib_llm.openai_api.requests import Sampling
from rllib_llm.openai_api.responses import choice_of

_DEFAULT_MODEL = "default_policy"  # RLlib's name of a policy without a name


class ProgramError(RLlibLLMError):
    """A program failed, so its episode is dropped and repeated."""


@dataclasses.dataclass(slots=True)
class _Turn:
    """A request that a policy answers, and its conversation."""

    call: Call
    conversation: Conversation
    request: ModelRequest


@register_text_env("agent-v0")
class AgentProgramEnv(EnvOptions, ParallelEnv):
    """Run a program that calls the policies by HTTP. Return the program's reward.

    In RLlib's words this is an external environment: the program asks for actions, and
    the environment waits for its requests. Each request to ``/v1/chat/completions`` or
    ``/v1/completions`` is an observation of the model that it names; the reply is that
    agent's action. The AgentIDs are the names of the models.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "name": "agent-v0"}
    render_mode: str | None = None
    numbered_tasks = True
    max_turns = 64
    _BASE_OPTIONS: ClassVar[tuple[str, ...]] = ("max_turns",)

    def __init__(self, env_config: dict[str, Any] | None = None):
        self._read_config(env_config)
        models = self.options()["models"]
        names = [_DEFAULT_MODEL] if models is None else list(models)
        if not names or len(set(names)) < len(names) or not all(names):
            raise ConfigError(
                f"models={models!r} must be different names, at least one, e.g. "
                "['planner', 'solver']."
            )
        self.possible_agents = names
        self.agents: list[str] = []
        self._space = UnicodeText()
        self._policies: Mapping[str, Any] = {}
        self._session: Session | None = None
        self._program: Any = None

    # Options --------------------------------------------------------------------------

    def start(
        self,
        rng: np.random.Generator,
        program: str | list[str] | None = None,
        tasks: str | list[Any] | None = None,
        test_tasks: str | list[Any] | None = None,
        models: list[str] | None = None,
        reward: str = "returned",
        crash_reward: float | None = None,
        expert_reply: str | None = None,
        random_reply: str | None = None,
    ) -> None:
        """Start the program on the episode's task.

        Args:
            rng: Generator of scripted replies.
            program: ``"module:function"``, called as ``function(task, endpoint)`` in a
                thread; or a command line, run as a process.
            tasks: ``"module:function"``, called as ``function(seed, split)``; a data
                file with one task per row; or a list. None: seed and split.
            test_tasks: Held-out tasks in the same forms; None: those of a function in
                ``tasks``.
            models: Names that the program gives as ``model``, which are the AgentIDs;
                None: ``default_policy``.
            reward: ``"returned"``: the program returns its reward; or
                ``"module:function"``, called as ``function(task, result)``.
            crash_reward: Reward of an episode whose program fails, which is then
                trained; None: the episode is dropped and repeated.
            expert_reply: ``"module:function"``, called as ``function(model, messages,
                task, rng)``: a good reply, for demonstrations.
            random_reply: The same for a random valid reply.
        """
        if program is None:
            raise ConfigError(
                "agent-v0 needs a program. Set env_config={'program': "
                "'module:function'}, or a command line."
            )
        if crash_reward is not None and not is_finite(crash_reward):
            raise ConfigError(f"crash_reward={crash_reward!r} must be finite.")
        self._rng = rng
        self._reward = None
        if reward != "returned":
            self._reward = import_object(reward, "env_config.reward")
        self._crash_reward = crash_reward
        self._scripted = {"expert_reply": expert_reply, "random_reply": random_reply}
        source = tasks_of(self.split, tasks, test_tasks)
        self.task = source.task(self._seed, self.task_number)
        self._program = make_program(program)
        sampling = {
            name: Sampling(policy.temperature, policy.top_p)
            for name, policy in self._policies.items()
        }
        session = Session(
            {n: sampling.get(n, Sampling()) for n in self.possible_agents}
        )
        url = Endpoint.of_process().open(session)
        self._session = session
        endpoint = ProgramEndpoint(url, session.key, tuple(self.possible_agents))
        self._program.start(self.task, endpoint, session.put_end)

    def serve_policies(self, policies: Mapping[str, Any]) -> None:
        """Set the policies of the models, whose limits requests must respect.

        Args:
            policies: A :class:`~rllib_llm.connectors.requested_prompts.ServedPolicy` by
                AgentID; requests to other models are not checked.
        """
        self._policies = dict(policies)

    # PettingZoo -----------------------------------------------------------------------

    def observation_space(self, agent: str) -> gym.Space:
        """Return the space of texts."""
        return self._space

    def action_space(self, agent: str) -> gym.Space:
        """Return the space of texts."""
        return self._space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        """Start a program and wait for its first requests.

        Raises:
            ConfigError: If an option is wrong.
            ProgramError: If the program fails, or ends without a request.
        """
        self.end_episode()
        start_options = self._read_reset_options(options)
        if seed is None:
            seed = int(np.random.default_rng().integers(2**31))
        self._seed = seed
        self.agents = list(self.possible_agents)
        self.turn = 0
        self._conversations = {name: Conversations() for name in self.agents}
        self._waiting: dict[str, collections.deque[Call]] = {
            name: collections.deque() for name in self.agents
        }
        self._acting: dict[str, _Turn] = {}
        self._replied: dict[str, None] = {}  # models, in order
        self._num_replies = 0
        self.start(np.random.default_rng((seed, 2)), **start_options)
        end = self._wait()
        if end is not None:
            self._close(end.error or "the program has returned")
            if end.error is not None:
                raise ProgramError(end.error)
            raise ProgramError(
                "The program returned without a request to the endpoint, so the "
                "episode has no turn. Let it call a model at least once."
            )
        return self._observations()

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Give the replies to the program and wait for its next requests."""
        self.turn += 1
        for model, turn in self._acting.items():
            self._deliver(model, turn, actions[model])
        self._acting = {}
        end = self._wait()
        if end is not None:
            return self._end(end)
        if self.turn >= self.max_turns:
            self._close(f"max_turns={self.max_turns} turns were taken")
            return self._over(truncated=True, stop_reason=StopReason.MAX_TURNS)
        observations, infos = self._observations()
        rewards = dict.fromkeys(self.agents, 0.0)
        flags = dict.fromkeys(self.agents, False)
        return observations, rewards, flags, dict(flags), infos

    def close(self) -> None:
        """End the episode and its program."""
        self.end_episode()

    def end_episode(self) -> None:
        """End the program; its later requests are refused."""
        self._close("it was given up, or a limit of the training run was reached")

    def interrupt(self) -> None:
        """Make a call that waits for the program return with an error."""
        session = self._session
        if session is not None:
            session.interrupt()

    # Scripted replies -----------------------------------------------------------------

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return the reply of ``expert_reply`` to the agent's request."""
        return self._scripted_reply("expert_reply", agent, rng)

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return the reply of ``random_reply`` to the agent's request."""
        return self._scripted_reply("random_reply", agent, rng)

    def _scripted_reply(self, option: str, agent: str, rng: np.random.Generator) -> str:
        path = self._scripted[option]
        if path is None:
            raise NotImplementedError(f"agent-v0 has no {option} in env_config.")
        function = import_object(path, f"env_config.{option}")
        parsed = self._acting[agent].call.parsed
        messages = [{"role": m.role, "content": m.content} for m in parsed.messages]
        return function(agent, messages, self.task, rng)

    # Requests -------------------------------------------------------------------------

    def _wait(self) -> ProgramEnd | None:
        """Wait for requests to answer; return the program's end if it comes first."""
        assert self._session is not None
        while not self._acting:
            event = self._session.next_event(block=not any(self._waiting.values()))
            while event is not None:
                if isinstance(event, ProgramEnd):
                    return event
                self._waiting[event.parsed.model].append(event)
                event = self._session.next_event(block=False)
            for model in self.agents:
                turn = self._next_turn(model)
                if turn is not None:
                    self._acting[model] = turn
        return None

    def _next_turn(self, model: str) -> _Turn | None:
        """Return the model's next request; refuse those that cannot be answered."""
        assert self._session is not None
        waiting, conversations = self._waiting[model], self._conversations[model]
        while waiting:
            call = waiting.popleft()
            if not self._session.take(call):
                continue
            conversation, request = conversations.place(call.parsed, call.sample)
            policy = self._policies.get(model)
            try:
                if policy is not None:
                    policy.check(request, conversation.context, conversation.last_id)
            except RLlibLLMError as error:
                conversations.discard(conversation)
                code = getattr(error, "code", "invalid_request")
                call.set(RequestError(str(error), code=code))
                continue
            return _Turn(call, conversation, request)
        return None

    def _deliver(self, model: str, turn: _Turn, action: Any) -> None:
        reply = action
        if not isinstance(reply, ModelReply):  # of a script
            reply = ModelReply(str(action), str(action))
        choice = choice_of(turn.call.parsed, reply)
        self._conversations[model].complete(
            turn.conversation, turn.call.parsed, reply, choice.message
        )
        self._replied[model] = None
        self._num_replies += 1
        turn.call.set(choice)

    def _observations(
        self,
    ) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        observations = dict.fromkeys(self.agents, "")
        infos: dict[str, dict[str, Any]] = {}
        for model, turn in self._acting.items():
            infos[model] = {MODEL_REQUEST: turn.request}
            observations[model] = _as_text(turn.request)
        return observations, infos

    # Ends -----------------------------------------------------------------------------

    def _end(self, end: ProgramEnd) -> tuple[dict[str, Any], ...]:
        models = list(self._replied)
        if end.error is not None:
            self._close("the program has failed")
            if self._crash_reward is None:
                return self._over(
                    truncated=True, stop_reason=StopReason.ENV_ERROR, error=end.error
                )
            rewards = dict.fromkeys(models, float(self._crash_reward))
            return self._over(rewards, success=False, metrics={"crashed": 1.0})
        self._close("the program has returned")
        value, origin = end.result, "The program"
        if self._reward is not None:
            value, origin = self._reward(self.task, end.result), "The reward function"
        result = read_result(value, models, origin)
        metrics = {**result.metrics, "crashed": 0.0}
        if self._crash_reward is None:
            del metrics["crashed"]
        return self._over(result.rewards, success=result.success, metrics=metrics)

    def _over(
        self,
        rewards: Mapping[str, float] | None = None,
        *,
        truncated: bool = False,
        stop_reason: StopReason = StopReason.TERMINATED,
        success: bool | None = None,
        metrics: Mapping[str, float] | None = None,
        error: str | None = None,
    ) -> tuple[dict[str, Any], ...]:
        agents, self.agents = self.agents, []
        counts = {
            "requests": float(self._num_replies),
            "conversations": float(sum(len(self._conversations[a]) for a in agents)),
        }
        info = {
            "success": success,
            "stop_reason": stop_reason,
            "metrics": {**counts, **(metrics or {})},
            "error": error,
        }
        return (
            dict.fromkeys(agents, ""),
            {agent: (rewards or {}).get(agent, 0.0) for agent in agents},
            dict.fromkeys(agents, not truncated),
            dict.fromkeys(agents, truncated),
            {agent: dict(info) for agent in agents},
        )

    def _close(self, reason: str) -> None:
        session, self._session = self._session, None
        program, self._program = self._program, None
        if session is not None:
            Endpoint.of_process().close(session, reason)
        if program is not None:
            program.stop()


def _as_text(request: ModelRequest) -> str:
    """Return a request as the text that transcripts show, never an empty one."""
    if request.prompt is not None:
        prompt = request.prompt
        return (prompt if isinstance(prompt, str) else f"{len(prompt)} tokens") or " "
    messages = request.messages
    if len(messages) == 1 and messages[0].role == "user":
        return messages[0].content or " "
    return "\n\n".join(f"{m.role}: {m.content}" for m in messages)
