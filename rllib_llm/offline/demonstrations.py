"""Play an environment's scripted expert, deliberately imperfect."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rllib_llm.connectors.tool_prompts import opening
from rllib_llm.env_runner.agents import agents_of, texts_of
from rllib_llm.env_runner.tasks import stable_seed
from rllib_llm.errors import ConfigError
from rllib_llm.offline.parallel_episodes import play_all


@dataclasses.dataclass(slots=True)
class Demonstration:
    """One scripted episode as text.

    Attributes:
        observations: What the environment said, one more than there are turns.
        completions: What the script answered.
        rewards: One per turn.
        success: Whether the task was solved, where that is defined.
        agent_id: Whose conversation it is; None where there is one agent.
        infos: What the environment said beside each observation; none if it has no
            tools to speak of.
    """

    observations: list[str]
    completions: list[str]
    rewards: list[float]
    success: bool | None
    agent_id: str | None = None
    infos: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def info(self, number: int) -> dict[str, Any]:
        """Return what was said beside an observation."""
        return self.infos[number] if self.infos else {}


def demonstrate_together(
    env: Any, *, seed: int, mistake_rate: float, split: str = "train"
) -> list[Demonstration]:
    """Play one episode of a MultiAgentAdapter; return the conversation of each agent
    that acted.

    Rewards are left out: imitation does not read them.

    Raises:
        ConfigError: If the environment has no scripted experts.
    """
    rng = np.random.default_rng([seed, 1])
    game, told = env.unwrapped, env.reset(seed=seed, options={"split": split})
    if not hasattr(game, "expert_action"):  # not one of this package's own
        raise _no_expert(f"{type(game).__name__} has no scripted expert.")
    demos: dict[str, Demonstration] = {}
    try:
        while not told.is_over:
            actions = {}
            for agent, observation in told.observations.items():
                if env.number_spaces(agent) is not None:  # nothing to imitate
                    actions[agent] = env.random_numbers(agent, rng)
                    continue
                demo = demos.setdefault(agent, Demonstration([], [], [], None, agent))
                mistake = rng.random() < mistake_rate
                act = game.random_action if mistake else game.expert_action
                actions[agent] = act(agent, rng)
                demo.observations.append(observation)
                demo.completions.append(actions[agent])
                demo.rewards.append(0.0)
            told = env.step(actions)
    except NotImplementedError as error:
        raise _no_expert(error) from error
    for demo in demos.values():
        demo.observations.append("")  # nothing follows the last turn
        demo.success = told.success
    return list(demos.values())


def _no_expert(why: NotImplementedError | str) -> ConfigError:
    return ConfigError(
        f"sft needs demonstrations: {why} Write expert_action() and "
        "random_action(), or leave .sft() out."
    )


def demonstrate(
    env: Any, *, seed: int, mistake_rate: float, split: str = "train"
) -> Demonstration:
    """Play one episode with the expert, each turn random with ``mistake_rate``.

    Raises:
        ConfigError: If the environment has no scripted expert.
    """
    # Not default_rng(seed): that is the environment's own stream.
    rng = np.random.default_rng([seed, 1])
    observation, info = env.reset(seed=seed, options={"split": split})
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
    env: Any, seed: int, mistake_rate: float, split: str = "train"
) -> list[Demonstration]:
    """Play one episode; return the conversation of each agent that acted."""
    how: dict[str, Any] = {"mistake_rate": mistake_rate, "split": split}
    if agents_of(env) is None:
        return [demonstrate(env, seed=seed, **how)]
    return demonstrate_together(env, seed=seed, **how)


def demonstrations(
    make_env: Callable[[], Any],
    count: int,
    *,
    seed: int,
    mistake_rate: float,
    most_envs: int = 1,
    on_progress: Callable[[float], None] | None = None,
) -> list[Demonstration]:
    """Play ``count`` episodes on training instances.

    Args:
        make_env: Builds an environment.
        count: Episodes.
        seed: Decides the instances and the mistakes.
        mistake_rate: Share of random turns.
        most_envs: Environments that may be played at a time.
        on_progress: Called with the finished share.

    Returns:
        One demonstration per episode; of a MultiAgentAdapter one per episode and agent.
    """
    seeds = [stable_seed(seed, "demonstration", i) for i in range(count)]
    return demonstrations_of(
        make_env, seeds, mistake_rate, most_envs=most_envs, on_progress=on_progress
    )


def demonstrations_of(
    make_env: Callable[[], Any],
    seeds: Sequence[int],
    mistake_rate: float,
    *,
    most_envs: int = 1,
    on_progress: Callable[[float], None] | None = None,
) -> list[Demonstration]:
    """Play the training instances of these seeds; see :func:`demonstrations`."""

    def play(env: Any, seed: int) -> list[Demonstration]:
        return play_expert_with_mistakes(env, seed, mistake_rate)

    played = play_all(
        make_env, seeds, play, most_envs=most_envs, on_progress=on_progress
    )
    return [demo for demos in played for demo in demos]


def transcript_texts(
    make_env: Callable[[], Any],
    *,
    seed: int,
    count: int = 300,
    most_envs: int = 1,
    on_progress: Callable[[float], None] | None = None,
) -> list[str]:
    """Return observations and completions of mixed play, to train a tokenizer on.

    An environment without a scripted expert gives its first observations only.
    """
    how: dict[str, Any] = {"most_envs": most_envs, "on_progress": on_progress}
    try:
        demos = demonstrations(make_env, count, seed=seed, mistake_rate=0.5, **how)
    except ConfigError:
        seeds = [stable_seed(seed, "text", i) for i in range(count)]
        firsts = play_all(make_env, seeds, _first_texts, **how)
        return [text for texts in firsts for text in texts]
    texts: list[str] = []
    for demo in demos:
        texts += demo.observations + demo.completions
        if demo.info(0).get("tools"):  # the tiny template cannot present them
            said, _ = opening(
                demo.observations[0], demo.info(0), system=None, renderer=None
            )
            texts.append(said[0]["content"])
    return texts


def _first_texts(env: Any, seed: int) -> list[str]:
    told = env.reset(seed=seed)
    return [told[0]] if agents_of(env) is None else list(texts_of(env, told).values())
