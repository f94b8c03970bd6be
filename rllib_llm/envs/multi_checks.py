"""check_multi_env: what check_env is for one agent, for games of several."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from pettingzoo import AECEnv

from rllib_llm.data.types import Message
from rllib_llm.envs import check_common
from rllib_llm.envs.check_episodes import (
    MOST_TURNS,
    PlayedEpisode,
    Subject,
    always,
    implements,
    raised_by,
    random_or_filler,
)
from rllib_llm.envs.check_remedies import (
    FOREIGN_GAME,
    GAME,
    Advice,
    described,
    where_raised,
)
from rllib_llm.envs.kinds import is_rllib_env
from rllib_llm.envs.make import EnvSpec, make_env
from rllib_llm.envs.multi_agent_adapter import MultiAgentAdapter
from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv
from rllib_llm.envs.one_player import OnePlayer
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.envs.transcript import random_policy

_CYCLES = 100
_MOST_CUTS = 12


def check_multi_env(
    spec: EnvSpec,
    env_config: dict[str, Any] | None = None,
    *,
    tokenizer: Any = None,
    max_context_tokens: int | None = None,
    seeds: Iterable[int] = range(16),
    env_processes: bool = False,
    first_reset_s: float = 0.0,
) -> check_common.CheckReport:
    """Play a multi-agent environment and report everything that would break training.

    One player takes all seats, so that the checks of :func:`rllib_llm.envs.check`
    apply. In addition garbage is tried on every agent, the game is cut after every
    number of turns, and PettingZoo's ``api_test`` and ``seed_test`` (or their parallel
    relatives) are run: a :class:`~rllib_llm.envs.multi_agent_env.MultiAgentTextEnv`
    must pass them, for others it is a warning, since they ask for more than training
    needs. Options and splits are checked for ``MultiAgentTextEnv`` only.

    Args:
        spec: Whatever :func:`~rllib_llm.envs.make_env` accepts.
        env_config: Options of the environment.
        tokenizer: See :func:`~rllib_llm.envs.check`.
        max_context_tokens: With a tokenizer: the longest conversation of any agent.
        seeds: Episodes to play with each of the random and the expert policy.
        env_processes: See :func:`~rllib_llm.envs.check`.
        first_reset_s: Seconds that the first instance and its first reset have taken.

    Returns:
        The problems found, and measurements; returns are sums over agents, and those of
        single agents follow under their names.
    """
    config = dict(env_config or {})

    def build_raw(**changed: Any) -> Any:
        return make_env(spec, {**config, **changed})

    subject = MultiAgentSubject(
        name=check_common.name_of(spec),
        build=lambda **changed: OnePlayer(MultiAgentAdapter(build_raw(**changed))),
        seeds=list(seeds),
        tokenizer=tokenizer,
        max_context_tokens=max_context_tokens,
        env_processes=env_processes,
        first_reset_s=first_reset_s,
        build_raw=build_raw,
    )
    env = subject.build()
    subject.remedies = GAME if env.is_text_env else FOREIGN_GAME
    skipped = () if env.is_text_env else _ONLY_TEXT_ENVS
    if not getattr(env.joint.unwrapped, "has_success", False):
        # Nobody need gain where experts compete for a constant sum.
        skipped = (*skipped, check_common._check_expert)
    chosen = [
        c
        for c in (*check_common.SINGLE_AGENT_CHECKS, *_MORE_CHECKS)
        if c not in skipped
    ]
    report = check_common.run_checks(subject, chosen)
    report.measurements |= _returns_by_agent(subject)
    return report


@dataclasses.dataclass
class MultiAgentSubject(Subject):
    """A subject whose conversations are told apart by agent.

    Attributes:
        build_raw: Makes another instance, as PettingZoo sees it.
    """

    build_raw: Callable[..., Any] = make_env

    def count_tokens(self, play: PlayedEpisode) -> int:
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


def _returns_by_agent(subject: MultiAgentSubject) -> dict[str, float]:
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


class _ValidTexts(UnicodeText):
    """An action space whose samples are what the random policy says.

    PettingZoo's tests act at random; words drawn at random would all be invalid.
    """

    def __init__(self, env: Any, agent: str):
        super().__init__()
        self._env, self._agent = env, agent

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return self._env.unwrapped.random_action(self._agent, self.np_random)


def _speaking(env: Any) -> Any:
    """Let the random policy act in PettingZoo's tests."""
    spaces = {
        agent: _ValidTexts(env, agent)
        if isinstance(env.action_space(agent), UnicodeText)
        else env.action_space(agent)
        for agent in env.possible_agents
    }
    env.action_space = spaces.__getitem__
    return env


def _check_pettingzoo(subject: MultiAgentSubject) -> Iterator[str]:
    """PettingZoo's own tests must pass."""
    for name, test in _pettingzoo_tests(subject):
        error = _quietly(test)
        if error is not None:
            fails = f"PettingZoo's {name} fails: {described(error)}"
            if isinstance(subject.build_raw(), MultiAgentTextEnv):
                yield (
                    f"{fails}\n      Leave reset(), step(), observe() and last() to "
                    "MultiAgentTextEnv."
                )
                return
            where = where_raised(error)
            line = "" if where in fails else f"\n      The test's line: {where}"
            yield Advice(
                f"{fails}{line}\n      Training does not need what it asks for."
            )
            return


def _pettingzoo_tests(
    subject: MultiAgentSubject,
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield its tests of the interfaces there are, with nonsense and valid actions."""
    # Imported late: they load pytest and PettingZoo's board games.
    from pettingzoo import test as zoo

    raw, make = subject.build_raw(), subject.build_raw
    if is_rllib_env(raw):
        return
    kinds = [(zoo.parallel_api_test, zoo.parallel_seed_test, make)]
    if isinstance(raw, AECEnv):
        kinds = [(zoo.api_test, zoo.seed_test, make)]
        if isinstance(raw, MultiAgentTextEnv) and raw.simultaneous:
            parallel = zoo.parallel_api_test, zoo.parallel_seed_test
            kinds.append((*parallel, lambda: make().parallel_view()))
    env = subject.build()
    has_random = implements(env, random_policy)
    # api_test compares shapes of agents' observations: text has none beside numbers.
    is_mixed = any(map(env.joint.number_spaces, env.joint.possible_agents))
    for api, seeding, build in kinds:
        speaking = [lambda b=build: _speaking(b())] if has_random else []
        for b in (build, *speaking):
            if not (is_mixed and api is zoo.api_test):
                yield api.__name__, lambda t=api, b=b: t(b(), num_cycles=_CYCLES)
            yield seeding.__name__, lambda t=seeding, b=b: t(b, num_cycles=_CYCLES)


def _quietly(test: Callable[[], Any]) -> Exception | None:
    # The warnings of PettingZoo's tests are about pixels; text has none.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return raised_by(test)


def _check_every_parser(subject: MultiAgentSubject) -> Iterator[str]:
    """Whatever any agent may write, step() must answer."""
    if all(play.error is not None for play in subject.plays):
        return  # it fails on sound text, too
    is_text_env = subject.build().is_text_env
    env = subject.build(max_turns=MOST_TURNS) if is_text_env else subject.build()
    names = env.joint.possible_agents
    for victim in names:
        for text in check_common._GARBAGE:

            def policy(env: Any, rng: Any, who: str = victim, say: str = text) -> str:
                return say if env.agent == who else random_or_filler(env, rng)

            play = PlayedEpisode(
                env, subject.seeds[0], policy, limit=2 * len(names)
            ).finish()
            if play.error is not None and play.transcript.actions:
                shown = repr(text if len(text) < 40 else text[:40] + "...")
                yield (
                    f"{victim!r} saying {shown} raised {described(play.error)}\n"
                    f"      Models write anything: {subject.remedies.garbage}"
                )
                return


def _check_truncation(subject: MultiAgentSubject) -> Iterator[str]:
    """The game may be cut after any turn; every agent then reads once more."""
    longest = max(len(play.transcript.actions) for play in subject.plays)
    cuts = range(1, min(longest, _MOST_CUTS) + 1)
    # Where nothing valid was said, nothing has happened yet when the game is cut.
    for turns, policy in itertools.product(cuts, (random_or_filler, always(""))):
        env = subject.build(max_turns=turns)
        play = PlayedEpisode(env, subject.seeds[0], policy).finish()
        if play.error is not None:
            yield (
                f"With max_turns={turns} {play.where} raised "
                f"{described(play.error)}\n      At the limit prompt_for() is called "
                "for all agents left, whoever's turn it is; let it return '' where "
                "nothing is new."
            )
            return


_MORE_CHECKS: tuple[check_common.Check, ...] = (
    _check_pettingzoo,
    _check_every_parser,
    _check_truncation,
)
_ONLY_TEXT_ENVS = (
    check_common._check_options,
    check_common._check_split,
    _check_truncation,
)
