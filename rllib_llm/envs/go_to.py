"""Places of environments: snapshots, and replays where there are none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rllib_llm.envs.multi_agent_adapter import MultiAgentAdapter, MultiAgentStep
from rllib_llm.errors import EnvContractError

_MAX_CHARS = 60  # of each text in a message


def snapshot_of(env: Any) -> bytes | None:
    """Return the environment's ``snapshot()``; None if it has none.

    A wrapper may hold a state of its own, so wrapped environments have none; nor have
    those whose state cannot be copied. A MultiAgentAdapter is no such wrapper.
    """
    is_wrapped = getattr(env, "unwrapped", env) is not env
    if is_wrapped and not isinstance(env, MultiAgentAdapter):
        return None
    if not hasattr(env, "snapshot"):
        return None
    try:
        state = env.snapshot()
    except EnvContractError:
        return None
    assert isinstance(state, bytes), "snapshot() must return bytes."
    return state


def step_from_place(env: Any, action: object) -> tuple[bytes | None, Any]:
    """Step the environment; return its snapshot before the step, and the result."""
    return snapshot_of(env), env.step(action)


def go_to(
    env: Any,
    *,
    seed: int,
    options: Mapping[str, Any],
    actions: Sequence[Any],
    observations: Sequence[Any],
    state: bytes | None = None,
) -> None:
    """Bring the environment to a place of an episode.

    Args:
        env: The environment, in any state.
        seed: Seed of the episode.
        options: Options of its reset.
        actions: Texts that the environment received before the place; those of several
            agents by AgentID. [t]
        observations: Texts that it returned, the first one included. [t+1]
        state: Its snapshot at the place; None: the actions are played again.

    Raises:
        EnvContractError: If the environment returns other texts than before.
    """
    if state is not None:
        env.restore(state)
        return
    places = replay(
        env, seed=seed, options=options, actions=actions, observations=observations
    )
    for _ in places:
        pass


def replay(
    env: Any,
    *,
    seed: int,
    options: Mapping[str, Any],
    actions: Sequence[Any],
    observations: Sequence[Any],
) -> Iterator[int]:
    """Play an episode's texts again and yield each turn at its place.

    Args:
        env: The environment, in any state; between two places the caller must not
            change it.
        seed: Seed of the episode.
        options: Options of its reset.
        actions: Texts that the environment received before the last place; those of
            several agents by AgentID. [t]
        observations: Texts that it returned, the first one included. [t+1]

    Yields:
        The number of turns before the place at which the environment is, from 0 to t.

    Raises:
        EnvContractError: If the environment returns other texts than before.
    """
    text, _ = _seen(env.reset(seed=seed, options=dict(options)))
    _check(env, seed, 0, text, observations[0])
    yield 0
    for turn, action in enumerate(actions, start=1):
        text, is_over = _seen(env.step(action))
        if is_over:
            raise EnvContractError(
                f"{_name(env)}, seed {seed}: the episode ended at turn {turn} when its "
                f"texts were played again, but went on before. {_REMEDY}"
            )
        _check(env, seed, turn, text, observations[turn])
        yield turn


def _seen(result: MultiAgentStep | tuple[Any, ...]) -> tuple[Any, bool]:
    """Return what was observed in a reset or step, and whether the episode is over."""
    if isinstance(result, MultiAgentStep):
        return result.observations, result.is_over
    return result[0], any(result[2:4])


_REMEDY = (
    "Forks of an environment without snapshot(), and save_as='expert_replies', "
    "'rollbacks' or 'calibrations', play the same texts again and must arrive at the "
    "same place. Draw all random numbers from the rng or seed of reset(), or implement "
    "snapshot() and restore(). `rllib-llm check --fork` plays such episodes."
)


def _check(env: object, seed: int, turn: int, now: object, then: object) -> None:
    if now == then:
        return
    raise EnvContractError(
        f"{_name(env)}, seed {seed}: after turn {turn} it returned {_clip(then)}, and "
        f"{_clip(now)} when the same texts were played again. {_REMEDY}"
    )


def _name(env: object) -> str:
    return type(getattr(env, "unwrapped", env)).__name__


def _clip(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= _MAX_CHARS else shown[:_MAX_CHARS] + "..."
