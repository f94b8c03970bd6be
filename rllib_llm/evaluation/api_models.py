"""Evaluation of a model behind an OpenAI-compatible API, as a baseline."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from rllib_llm.connectors.tool_prompts import later, opening
from rllib_llm.data.types import Message, StopReason, Task
from rllib_llm.env_runner.agents import role_prompts
from rllib_llm.env_runner.task_groups import held_out_source
from rllib_llm.envs.make import make_playable
from rllib_llm.errors import ConfigError, MissingExtraError, RLlibLLMError, summarize
from rllib_llm.evaluation.outcomes import Outcome
from rllib_llm.evaluation.summary import Evaluation, optimal_value_of, summarise
from rllib_llm.inference.game import Game
from rllib_llm.pictures.contract import IMAGES

if TYPE_CHECKING:
    from rllib_llm.types import PlayableEnv

_RETRIES = 4
logger = logging.getLogger("rllib_llm")


class ApiError(RLlibLLMError):
    """The API cannot be used: no answer, no access, or no such model."""


@dataclasses.dataclass(frozen=True)
class ApiSettings:
    """Address of a model, and settings of its requests.

    Attributes:
        url: Base address of the API, e.g. ``"http://localhost:8000/v1"``.
        model: The model's name there.
        temperature: Sampling temperature, >= 0.
        max_new_tokens: Maximum tokens of a turn.
        concurrency: Episodes at a time.
        timeout_s: Seconds that a request may take; it is repeated up to four times.
    """

    url: str
    model: str
    temperature: float = 0.0
    max_new_tokens: int = 256
    concurrency: int = 8
    timeout_s: float = 120.0


@dataclasses.dataclass(frozen=True, slots=True)
class ApiReply:
    """A model's message, with the API's counts of tokens; 0 if it reports none.

    Attributes:
        text: The message.
        sampled_tokens: Tokens of the message.
        prompt_tokens: Tokens of the conversation before it.
    """

    text: str
    sampled_tokens: int = 0
    prompt_tokens: int = 0


class ApiModel:
    """Client of a model; safe in threads.

    The key is read from the environment variable ``OPENAI_API_KEY``, if it is set.

    Raises:
        MissingExtraError: Without the package ``openai`` (extra ``api``).
        ConfigError: The address is not one of HTTP.
    """

    def __init__(self, settings: ApiSettings):
        if importlib.util.find_spec("openai") is None:
            raise MissingExtraError.for_extra("openai", "api")
        if not settings.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"api={settings.url!r} must be an address such as "
                "'http://localhost:8000/v1'."
            )
        import openai

        self._openai = openai
        self.settings = settings
        self._client = openai.OpenAI(
            base_url=settings.url,
            # Servers of one's own need no key, but the client requires one.
            api_key=os.environ.get("OPENAI_API_KEY") or "none",
            timeout=settings.timeout_s,
            max_retries=_RETRIES,
        )

    def reply(self, messages: Sequence[Message]) -> ApiReply:
        """Return the model's next message.

        Raises:
            ApiError: The API does not answer, refuses access or lacks the model.
            TimeoutError: The request took too long, also when it was repeated.
        """
        api, settings = self._openai, self.settings
        create: Any = self._client.chat.completions.create
        try:
            answer = create(
                model=settings.model,
                messages=list(messages),
                temperature=settings.temperature,
                max_tokens=settings.max_new_tokens,
            )
        except (api.APITimeoutError, api.InternalServerError) as error:
            raise TimeoutError(summarize(error)) from error
        except api.OpenAIError as error:
            raise ApiError(
                f"api={settings.url!r}, model={settings.model!r}: {summarize(error)}. "
                "Check the address, the model's name and OPENAI_API_KEY."
            ) from error
        if not answer.choices:
            raise ApiError(f"api={settings.url!r} answered without a message.")
        text, usage = answer.choices[0].message.content or "", answer.usage
        if usage is None:
            return ApiReply(text)
        # The client takes the server's words for it: a count may be missing.
        return ApiReply(text, usage.completion_tokens or 0, usage.prompt_tokens or 0)


def evaluate_api(
    settings: ApiSettings,
    env: str,
    env_config: dict[str, Any],
    num_tasks: int,
    *,
    samples: int = 1,
    max_turns: int | None = None,
) -> tuple[Evaluation, list[Outcome]]:
    """Play the held-out tasks on which runs are evaluated with the model.

    All agents of an environment are played by the model, each in a conversation of its
    own. Tools are described in the first message.

    Args:
        settings: The API.
        env: The environment.
        env_config: Its options.
        num_tasks: Number of tasks.
        samples: Episodes per task.
        max_turns: Steps after which an episode is truncated, beside the environment's
            own limit; None: without.

    Raises:
        ApiError: The API cannot be used.
        ConfigError: The environment has agents that do not read text alone.
    """
    if env == "agent-v0":
        raise ConfigError(
            "agent-v0 runs a program that calls its models itself. Run the program "
            f"with base_url={settings.url!r} and model={settings.model!r} instead."
        )
    model = ApiModel(settings)
    tasks = held_out_source(env, env_config).fixed(num_tasks)
    rollouts = [
        (number, dataclasses.replace(task, rollout=sample, max_turns=max_turns))
        for number, task in enumerate(tasks)
        for sample in range(samples)
    ]
    envs = _EnvPerThread(lambda: make_playable(env, env_config))

    def play(rollout: tuple[int, Task]) -> Outcome:
        number, task = rollout
        return _play(envs, model, number, task)

    with ThreadPoolExecutor(settings.concurrency) as threads:
        try:
            outcomes = list(threads.map(play, rollouts))
        finally:
            # After an ApiError the other episodes would fail, too.
            threads.shutdown(wait=True, cancel_futures=True)
            envs.close()
    evaluation = summarise(
        outcomes,
        env=env,
        env_config=env_config,
        greedy=settings.temperature == 0,
        samples=samples,
        optimal_value=optimal_value_of(make_playable(env, env_config), tasks),
    )
    return evaluation, outcomes


class _EnvPerThread:
    """An environment for every thread; one that failed is replaced."""

    def __init__(self, make: Callable[[], PlayableEnv]):
        self._make, self._local = make, threading.local()
        self._all: list[PlayableEnv] = []

    def get(self) -> PlayableEnv:
        if getattr(self._local, "env", None) is None:
            self._local.env = self._make()
            self._all.append(self._local.env)
        return self._local.env

    def drop(self) -> None:
        self._local.env = None

    def close(self) -> None:
        for env in self._all:
            env.close()


def _play(envs: _EnvPerThread, model: ApiModel, number: int, task: Task) -> Outcome:
    tokens = 0
    conversations: dict[str, list[Message]] = {}
    try:
        env = envs.get()
        system = role_prompts(env)
        game = Game(env, task)
        while not game.is_over:
            actions = {}
            for agent, observation in game.observations.items():
                _require_text(game, agent)
                messages = _shown(
                    conversations.setdefault(agent, []),
                    observation,
                    game.infos.get(agent) or {},
                    system.get(agent),
                )
                reply = model.reply(messages)
                actions[agent] = reply.text
                messages.append({"role": "assistant", "content": reply.text})
                tokens += reply.sampled_tokens
            game.step(actions)
            if not game.is_over and game.turn == task.max_turns:
                game.stop_reason = StopReason.MAX_TURNS
                break
    except (RLlibLLMError, TimeoutError) as error:
        if not isinstance(error, TimeoutError):
            raise
        return Outcome(
            number, task.seed, task.rollout, failure=StopReason.TIMEOUT.value
        )
    # Environments may raise anything; an error fails its own episode, as in training.
    except Exception:
        logger.warning("Episode of seed %s failed.", task.seed, exc_info=True)
        envs.drop()
        reason = StopReason.ENV_ERROR.value
        return Outcome(number, task.seed, task.rollout, failure=reason)
    several = {} if game.is_single else dict(sorted(game.returns.items()))
    return Outcome(
        task=number,
        seed=task.seed,
        sample=task.rollout,
        episode_return=float(sum(game.returns.values())),
        agent_returns=several,
        success=None if game.success is None else bool(game.success),
        turns=game.turn,
        tokens=tokens,
        stop_reason=None if game.stop_reason is None else game.stop_reason.value,
    )


def _require_text(game: Game, agent: str) -> None:
    if game.reads_numbers(agent):
        raise ConfigError(
            f"The agent {agent!r} observes or acts in numbers: no language model can "
            "play it. Choose an environment of text agents."
        )


def _shown(
    messages: list[Message], observation: str, info: dict[str, Any], system: str | None
) -> list[Message]:
    """Append what the model reads next, and return the conversation."""
    if messages:
        messages += later(observation, info, tools=None)
    else:
        messages += opening(observation, info, system=system, renderer=None)[0]
    if any(IMAGES in message for message in messages):
        raise ConfigError(
            "The environment shows pictures, and requests to --api hold texts alone. "
            "Choose an environment without pictures."
        )
    return messages
