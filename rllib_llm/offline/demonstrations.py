"""Demonstrations: episodes of an environment's scripted expert with random mistakes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_llm.connectors.tool_prompts import opening
from rllib_llm.data.model_calls import MODEL_REQUEST
from rllib_llm.env_runner.agents import agents_of, texts_of
from rllib_llm.errors import ConfigError
from rllib_llm.offline.parallel_episodes import play_all
from rllib_llm.pictures.contract import PRECEDING
from rllib_llm.seeding import stable_seed

if TYPE_CHECKING:
    import gymnasium as gym

    from rllib_llm.types import PlayableEnv

_TRAIN: Mapping[str, Any] = MappingProxyType({"split": "train"})


@dataclasses.dataclass(slots=True)
class Demonstration:
    """One agent's conversation in a scripted episode.

    Attributes:
        observations: The observations, one more than turns.
        completions: The expert's completions.
        rewards: One per turn.
        success: Whether the task was solved; None if the environment does not say.
        agent_id: The agent; None with a single agent.
        infos: The info of each observation; empty if they hold neither tools nor
            requests of a program.
    """

    observations: list[str]
    completions: list[str]
    rewards: list[float]
    success: bool | None
    agent_id: str | None = None
    infos: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def info(self, number: int) -> dict[str, Any]:
        """Return the info of an observation."""
        return self.infos[number] if self.infos else {}


def demonstrate_together(
    env: PlayableEnv,
    *,
    seed: int,
    mistake_rate: float,
    options: Mapping[str, Any] = _TRAIN,
) -> list[Demonstration]:
    """Play one episode of a MultiAgentAdapter and return the acting agents' parts.

    Rewards are 0: supervised fine-tuning does not read them.

    Raises:
        ConfigError: If the environment has no scripted experts.
    """
    rng = np.random.default_rng([seed, 1])
    step = env.reset(seed=seed, options=dict(options))
    game = env.unwrapped  # of a mixture: the episode's game
    if not hasattr(game, "expert_action"):  # not derived from MultiAgentTextEnv
        raise _no_expert(f"{type(game).__name__} has no scripted expert.")
    demos: dict[str, Demonstration] = {}
    try:
        while not step.is_over:
            actions = {}
            for agent, observation in step.observations.items():
                if env.number_spaces(agent) is not None:  # no language model to train
                    actions[agent] = env.random_numbers(agent, rng)
                    continue
                demo = demos.setdefault(agent, Demonstration([], [], [], None, agent))
                demo.infos.append(step.infos.get(agent, {}))
                mistake = rng.random() < mistake_rate
                act = game.random_action if mistake else game.expert_action
                actions[agent] = act(agent, rng)
                demo.observations.append(observation)
                info = step.infos.get(agent, {})
                if MODEL_REQUEST in info:
                    demo.infos.append(info)
                demo.completions.append(actions[agent])
                demo.rewards.append(0.0)
            step = env.step(actions)
    except NotImplementedError as error:
        raise _no_expert(error) from error
    for demo in demos.values():
        demo.observations.append("")  # an episode needs a final observation
        demo.success = step.success
    return list(demos.values())


def _no_expert(why: NotImplementedError | str) -> ConfigError:
    return ConfigError(
        f"sft needs demonstrations: {why} Implement expert_action() and "
        "random_action(), or remove .sft()."
    )


def demonstrate(
    env: gym.Env,
    *,
    seed: int,
    mistake_rate: float,
    options: Mapping[str, Any] = _TRAIN,
) -> Demonstration:
    """Play one episode with the expert, each turn random with ``mistake_rate``.

    Args:
        env: The environment.
        seed: Seed of the task and of the mistakes.
        mistake_rate: Share of random turns.
        options: Options of ``env.reset``.

    Raises:
        ConfigError: If the environment has no scripted expert.
    """
    # Not default_rng(seed): the environment draws from that stream, and mistakes would
    # be correlated with its instances.
    rng = np.random.default_rng([seed, 1])
    observation, info = env.reset(seed=seed, options=dict(options))
    demo = Demonstration([observation], [], [], None, infos=[info])
    done = False
    try:
        while not done:
            mistake = rng.random() < mistake_rate
            act = (
                env.unwrapped.random_action if mistake else env.unwrapped.expert_action
            )
            completion = act(rng)
            observation, reward, terminated, truncated, info = env.step(completion)
            demo.completions.append(completion)
            demo.observations.append(observation)
            demo.infos.append(info)
            demo.rewards.append(reward)
            done = terminated or truncated
            demo.success = info.get("success")
    except NotImplementedError as error:
        raise _no_expert(error) from error
    return demo


def play_expert_with_mistakes(
    env: PlayableEnv,
    seed: int,
    mistake_rate: float,
    options: Mapping[str, Any] = _TRAIN,
) -> list[Demonstration]:
    """Play one episode with one or several agents; return one part per acting agent."""
    settings: dict[str, Any] = {"mistake_rate": mistake_rate, "options": options}
    if agents_of(env) is None:
        return [demonstrate(env, seed=seed, **settings)]
    return demonstrate_together(env, seed=seed, **settings)


def demonstrations(
    make_env: Callable[[], Any],
    count: int,
    *,
    seed: int,
    mistake_rate: float,
    most_envs: int = 1,
    max_retries: int = 0,
    on_progress: Callable[[float], None] | None = None,
) -> list[Demonstration]:
    """Play ``count`` episodes on training tasks.

    Args:
        make_env: Builds an environment.
        count: Number of episodes.
        seed: Determines tasks and mistakes.
        mistake_rate: Share of random turns.
        most_envs: Maximum number of concurrent environments.
        max_retries: Repetitions of an episode whose environment's process fails.
        on_progress: Called with the finished fraction.

    Returns:
        One demonstration per episode; with several agents one per episode and agent.
    """
    seeds = [stable_seed(seed, "demonstration", i) for i in range(count)]
    return demonstrations_of(
        make_env,
        seeds,
        mistake_rate,
        most_envs=most_envs,
        max_retries=max_retries,
        on_progress=on_progress,
    )


def demonstrations_of(
    make_env: Callable[[], Any],
    seeds: Sequence[int],
    mistake_rate: float,
    *,
    most_envs: int = 1,
    max_retries: int = 0,
    on_progress: Callable[[float], None] | None = None,
) -> list[Demonstration]:
    """Play the training tasks with these seeds; see :func:`demonstrations`."""

    def play(env: PlayableEnv, seed: int) -> list[Demonstration]:
        return play_expert_with_mistakes(env, seed, mistake_rate)

    played = play_all(
        make_env,
        seeds,
        play,
        most_envs=most_envs,
        max_retries=max_retries,
        on_progress=on_progress,
    )
    return [demo for demos in played for demo in demos]


def transcript_texts(
    make_env: Callable[[], Any],
    *,
    seed: int,
    count: int = 300,
    most_envs: int = 1,
    max_retries: int = 0,
    on_progress: Callable[[float], None] | None = None,
) -> list[str]:
    """Return observations and completions to train a tokenizer on.

    Half of the turns are the expert's and half are random. Without a scripted expert
    the texts are first observations only.
    """
    settings: dict[str, Any] = {
        "most_envs": most_envs,
        "max_retries": max_retries,
        "on_progress": on_progress,
    }
    try:
        demos = demonstrations(make_env, count, seed=seed, mistake_rate=0.5, **settings)
    except ConfigError:  # no scripted expert
        seeds = [stable_seed(seed, "text", i) for i in range(count)]
        firsts = play_all(make_env, seeds, _first_texts, **settings)
        return [text for texts in firsts for text in texts]
    texts: list[str] = []
    for demo in demos:
        texts += demo.observations + demo.completions
        if demo.info(0).get("tools") or demo.info(0).get(PRECEDING):
            # The tiny model's template has no tools: the prompt lists them as text.
            messages, _ = opening(
                demo.observations[0], demo.info(0), system=None, renderer=None
            )
            texts += [message["content"] for message in messages]
    return texts


def _first_texts(env: PlayableEnv, seed: int) -> list[str]:
    first: Any = env.reset(seed=seed)
    return [first[0]] if agents_of(env) is None else list(texts_of(env, first).values())
