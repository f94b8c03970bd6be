"""Checks of multi-agent environments, the counterpart of check_env."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

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
from rllib_llm.envs.check_forks import check_forks
from rllib_llm.envs.check_remedies import (
    FOREIGN_GAME,
    GAME,
    Advice,
    described,
    where_raised,
)
from rllib_llm.envs.env_kinds import is_rllib_env
from rllib_llm.envs.make import EnvSpec, make_env
from rllib_llm.envs.multi_agent_adapter import MultiAgentAdapter
from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv
from rllib_llm.envs.one_player import OnePlayer
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.envs.transcript import random_policy

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv
    from transformers import PreTrainedTokenizerBase

_CYCLES = 100
_MOST_CUTS = 12


def check_multi_env(
    spec: EnvSpec,
    env_config: dict[str, Any] | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_context_tokens: int | None = None,
    seeds: Iterable[int] = range(16),
    env_processes: bool = False,
    first_reset_s: float = 0.0,
    forks: bool = False,
) -> check_common.CheckReport:
    """Play a multi-agent environment and report everything that would break training.

    One player acts for all agents, so that the checks of :func:`rllib_llm.envs.check`
    apply. In addition, every agent's parser is tested with garbage, the game is
    truncated after every number of turns, and PettingZoo's ``api_test`` and
    ``seed_test`` (or their parallel counterparts) run. A
    :class:`~rllib_llm.envs.multi_agent_env.MultiAgentTextEnv` must pass these tests;
    for other environments a failure is a warning, because training needs less. Options
    and splits are checked for ``MultiAgentTextEnv`` only.

    Args:
        spec: Any argument of :func:`~rllib_llm.envs.make_env`.
        env_config: Options of the environment.
        tokenizer: See :func:`~rllib_llm.envs.check`.
        max_context_tokens: With a tokenizer: the maximum length of any agent's
            conversation, in tokens.
        seeds: Episodes to play with each of the random and the expert policy.
        env_processes: See :func:`~rllib_llm.envs.check`.
        first_reset_s: Time of the first construction and reset, in seconds.
        forks: Also fork episodes at random turns, and compare how they go on.

    Returns:
        Problems and measurements. Returns are summed over agents; those of single
        agents follow under their names.
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
    if not getattr(env.adapter.unwrapped, "has_success", False):
        # In a constant-sum game between experts no return needs to be positive.
        skipped = (*skipped, check_common._check_expert)
    chosen = [
        c
        for c in (*check_common.SINGLE_AGENT_CHECKS, *_MORE_CHECKS)
        if c not in skipped
    ]
    if forks:
        chosen.append(check_forks)
    report = check_common.run_checks(subject, chosen)
    report.measurements |= _returns_by_agent(subject)
    return report


@dataclasses.dataclass
class MultiAgentSubject(Subject):
    """A subject with a separate conversation per agent.

    Attributes:
        build_raw: Returns another instance with its own (PettingZoo) interface.
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
        # Each agent has a context of its own, so the longest one decides.
        return max((len(encode(c, add_special_tokens=False)) for c in chats), default=0)


def _returns_by_agent(subject: MultiAgentSubject) -> dict[str, float]:
    numbers = {}
    for policy, plays in (("random", subject.random), ("expert", subject.expert)):
        sound = [play for play in plays if play.error is None]
        for agent in subject.build().adapter.possible_agents if sound else ():
            returns = [
                sum(
                    r for i in p.transcript.infos for a, r in i["rewards"] if a == agent
                )
                for p in sound
            ]
            numbers[f"{policy}_return/{agent}"] = float(np.mean(returns))
    return numbers


class _ValidTexts(UnicodeText):
    """An action space that samples from the random policy.

    PettingZoo's tests sample actions, and random words would all be invalid.
    """

    def __init__(self, env: AECEnv | ParallelEnv, agent: str):
        super().__init__()
        self._env, self._agent = env, agent

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return self._env.unwrapped.random_action(self._agent, self.np_random)


def _with_valid_texts(env: AECEnv | ParallelEnv) -> Any:
    """Replace the action spaces of text by samples of the random policy."""
    spaces = {
        agent: _ValidTexts(env, agent)
        if isinstance(env.action_space(agent), UnicodeText)
        else env.action_space(agent)
        for agent in env.possible_agents
    }
    env.action_space = spaces.__getitem__
    return env


def _check_pettingzoo(subject: MultiAgentSubject) -> Iterator[str]:
    """Run PettingZoo's own tests."""
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
            line = "" if where in fails else f"\n      Failing line: {where}"
            yield Advice(f"{fails}{line}\n      Training works without this property.")
            return


def _pettingzoo_tests(
    subject: MultiAgentSubject,
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the tests of the supported interfaces, with invalid and valid actions."""
    # Imported late, because they load pytest and PettingZoo's board games.
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
    # api_test compares the agents' observation shapes; text beside numbers has none.
    is_mixed = any(map(env.adapter.number_spaces, env.adapter.possible_agents))
    for api, seeding, build in kinds:
        valid = [lambda b=build: _with_valid_texts(b())] if has_random else []
        for b in (build, *valid):
            if not (is_mixed and api is zoo.api_test):
                yield api.__name__, functools.partial(_run_api_test, api, b)
            yield seeding.__name__, functools.partial(seeding, b, num_cycles=_CYCLES)


def _run_api_test(test: Callable[..., None], build: Callable[[], Any]) -> None:
    test(build(), num_cycles=_CYCLES)


def _quietly(test: Callable[[], Any]) -> Exception | None:
    # The warnings of PettingZoo's tests concern image observations.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return raised_by(test)


def _check_every_parser(subject: MultiAgentSubject) -> Iterator[str]:
    """Check that step() accepts any text of any agent."""
    if all(play.error is not None for play in subject.plays):
        return  # it also fails on valid text
    is_text_env = subject.build().is_text_env
    # With many turns, so that no truncation hides what follows the garbage.
    env = subject.build(max_turns=MOST_TURNS) if is_text_env else subject.build()
    names = env.adapter.possible_agents
    for victim in names:
        for text in check_common._GARBAGE:
            # Defaults bind the loop's values: a closure would see the last ones.
            def policy(env: Any, rng: Any, who: str = victim, say: str = text) -> str:
                return say if env.agent == who else random_or_filler(env, rng)

            play = PlayedEpisode(
                env, subject.seeds[0], policy, limit=2 * len(names)
            ).finish()
            if play.error is not None and play.transcript.actions:
                shown = repr(text if len(text) < 40 else text[:40] + "...")
                yield (
                    f"{victim!r} writing {shown} raised {described(play.error)}\n"
                    f"      Models write any text: {subject.remedies.garbage}"
                )
                return


def _check_truncation(subject: MultiAgentSubject) -> Iterator[str]:
    """Truncate the game after every turn; each agent then gets a last observation."""
    longest = max(len(play.transcript.actions) for play in subject.plays)
    cuts = range(1, min(longest, _MOST_CUTS) + 1)
    # Invalid actions only: at the limit the game has not changed since the start.
    for turns, policy in itertools.product(cuts, (random_or_filler, always(""))):
        env = subject.build(max_turns=turns)
        play = PlayedEpisode(env, subject.seeds[0], policy).finish()
        if play.error is not None:
            yield (
                f"With max_turns={turns} {play.where} raised "
                f"{described(play.error)}\n      At the limit prompt_for() is called "
                "for all remaining agents, even out of turn; return '' from it if "
                "nothing is new."
            )
            return


_MORE_CHECKS: tuple[Callable[..., Iterator[str]], ...] = (
    _check_pettingzoo,
    _check_every_parser,
    _check_truncation,
)
_ONLY_TEXT_ENVS = (
    check_common._check_options,
    check_common._check_split,
    _check_truncation,
)
