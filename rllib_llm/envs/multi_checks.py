"""check_multi_env: what check_env is for one agent, for games of several."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from pettingzoo import AECEnv

from rllib_llm.envs import checks
from rllib_llm.envs.check_plays import Play, Subject, raised_by, random_or_filler
from rllib_llm.envs.joint_env import JointEnv
from rllib_llm.envs.make import EnvSpec, make_env
from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv
from rllib_llm.envs.one_player import OnePlayer
from rllib_llm.types import Message

_CYCLES = 100


def check_multi_env(
    spec: EnvSpec,
    env_config: dict[str, Any] | None = None,
    *,
    tokenizer: Any = None,
    max_context_tokens: int | None = None,
    seeds: Iterable[int] = range(16),
) -> checks.CheckReport:
    """Play a multi-agent environment and report everything that would break training.

    One player takes all seats, so that the checks of :func:`rllib_llm.envs.check_env`
    apply. In addition PettingZoo's ``api_test`` and ``seed_test`` (or their parallel
    relatives) must pass, garbage is tried on every agent, and the game is cut after
    every number of turns. Options and splits are checked for
    :class:`~rllib_llm.envs.multi_agent_env.MultiAgentTextEnv` only.

    Args:
        spec: Whatever :func:`~rllib_llm.envs.make_env` accepts.
        env_config: Options of the environment.
        tokenizer: See :func:`~rllib_llm.envs.check_env`.
        max_context_tokens: With a tokenizer: the longest conversation of any agent.
        seeds: Episodes to play with each of the random and the expert policy.

    Returns:
        The problems found, and measurements; returns are sums over agents, and those of
        single agents follow under their names.
    """
    config = dict(env_config or {})

    def build_raw(**changed: Any) -> Any:
        return make_env(spec, {**config, **changed})

    subject = JointSubject(
        name=checks.name_of(spec),
        build=lambda **changed: OnePlayer(JointEnv(build_raw(**changed))),
        seeds=list(seeds),
        tokenizer=tokenizer,
        max_context_tokens=max_context_tokens,
        build_raw=build_raw,
    )
    chosen = [*checks._CHECKS, *_MORE_CHECKS]
    if not subject.build().is_text_env:
        chosen = [check for check in chosen if check not in _ONLY_TEXT_ENVS]
    report = checks.run_checks(subject, chosen)
    report.measurements |= _returns_by_agent(subject)
    return report


@dataclasses.dataclass
class JointSubject(Subject):
    """A subject whose conversations are told apart by agent.

    Attributes:
        build_raw: Makes another instance, as PettingZoo sees it.
    """

    build_raw: Callable[..., Any] = make_env

    def count_tokens(self, play: Play) -> int:
        """Return the length of the longest conversation of an agent, in tokens."""
        env = self.build()
        talks: dict[str, list[Message]] = {}
        transcript = play.transcript
        turns = zip(
            transcript.observations, transcript.actions, transcript.infos, strict=False
        )
        for text, action, info in turns:
            agent = info["agent"]
            if agent not in talks:
                system = env.system_prompt_for(agent)
                talks[agent] = [{"role": "system", "content": system}] if system else []
            talks[agent] += [
                {"role": "user", "content": text},
                {"role": "assistant", "content": action},
            ]
        chats = [self.as_chat(messages) for messages in talks.values()]
        encode = self.tokenizer.encode
        return max((len(encode(c, add_special_tokens=False)) for c in chats), default=0)


def _returns_by_agent(subject: JointSubject) -> dict[str, float]:
    numbers = {}
    for policy, plays in (("random", subject.random), ("expert", subject.expert)):
        sound = [play for play in plays if play.error is None]
        for agent in subject.build().joint.possible_agents if sound else ():
            earned = [
                sum(
                    r for i in p.transcript.infos for a, r in i["rewards"] if a == agent
                )
                for p in sound
            ]
            numbers[f"{policy}_return/{agent}"] = float(np.mean(earned))
    return numbers


def _check_pettingzoo(subject: JointSubject) -> Iterator[str]:
    """PettingZoo's own tests must pass."""
    # Imported late: they load pytest and PettingZoo's board games.
    from pettingzoo import test as zoo

    raw = subject.build_raw()
    tests = [
        (zoo.parallel_api_test, raw),
        (zoo.parallel_seed_test, subject.build_raw),
    ]
    if isinstance(raw, AECEnv):
        tests = [(zoo.api_test, raw), (zoo.seed_test, subject.build_raw)]
        if isinstance(raw, MultiAgentTextEnv) and raw.simultaneous:
            tests.append((zoo.parallel_api_test, raw.parallel_view()))
    for test, argument in tests:
        # Their warnings are about pixels and numbers; text has neither.
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            error = raised_by(lambda t=test, a=argument: t(a, num_cycles=_CYCLES))
        if error is not None:
            yield (
                f"PettingZoo's {test.__name__} fails: {type(error).__name__}: {error}. "
                "Leave reset(), step(), observe() and last() to MultiAgentTextEnv, or "
                "follow https://pettingzoo.farama.org/api/aec."
            )
            return


def _check_every_parser(subject: JointSubject) -> Iterator[str]:
    """Whatever any agent may write, step() must answer."""
    env, seed = subject.build(), subject.seeds[0]
    names = env.joint.possible_agents
    for victim in names:
        for text in checks._GARBAGE:

            def policy(env: Any, rng: Any, who: str = victim, say: str = text) -> str:
                return say if env.agent == who else random_or_filler(env, rng)

            play = Play(env, seed, policy, limit=2 * len(names)).finish()
            if play.error is not None and play.transcript.actions:
                shown = repr(text if len(text) < 40 else text[:40] + "...")
                yield (
                    f"{victim!r} saying {shown} raised {type(play.error).__name__}: "
                    f"{play.error}. Models write anything: let parse() return None for "
                    "text it cannot read, and check ranges before use."
                )
                return


def _check_truncation(subject: JointSubject) -> Iterator[str]:
    """The game may be cut after any turn; every agent then reads once more."""
    longest = max(len(play.transcript.actions) for play in subject.plays)
    for turns in range(1, min(longest, 12) + 1):
        env = subject.build(max_turns=turns)
        play = Play(env, subject.seeds[0], random_or_filler).finish()
        if play.error is not None:
            yield (
                f"With max_turns={turns} step() raised {type(play.error).__name__}: "
                f"{play.error}. At the limit prompt_for() is called for all agents "
                "left, whoever's turn it is; let it return '' where nothing is new."
            )
            return


_MORE_CHECKS: tuple[checks.Check, ...] = (
    _check_pettingzoo,
    _check_every_parser,
    _check_truncation,
)
_ONLY_TEXT_ENVS = (checks._check_options, checks._check_split, _check_truncation)
