"""``rllib-llm play``: a person, a script or a run's policies in an environment."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from rllib_llm import yaml_io
from rllib_llm.cli.env_options import parse_env
from rllib_llm.cli.session import quiet_loggers
from rllib_llm.cli.terminal import printable
from rllib_llm.env_runner.tasks import TaskSource
from rllib_llm.envs.admissible import ADMISSIBLE
from rllib_llm.errors import ConfigError
from rllib_llm.inference.game import Game, players_of
from rllib_llm.inference.match import PERSON, Match, Move, assign_agents
from rllib_llm.inference.policy import LLMPolicy

_HELP = """\
Type an answer and press Enter; end a line with \\ to go on in the next one.
/expert   let the environment's scripted expert answer
/random   let its random policy answer
/actions  list the admissible actions
/undo     take back your last answer
/quit     stop playing
//...     an answer that begins with a slash"""
_SHOWN_ACTIONS = 12


class _Quit(Exception):
    """The person stops."""


class _Undo(Exception):
    """The person takes a move back."""


def play(
    env: str,
    run: str | None,
    *,
    agents: list[str],
    task: int,
    episodes: int,
    sample: int,
    greedy: bool,
    storage: Path | None,
) -> int:
    """Play held-out tasks one after another; return the exit status.

    Args:
        env: ``NAME[:key=value,...]``.
        run: Whose policies play; None: no policy.
        seats: ``AGENT=PLAYER`` each.
        task: Number of the first held-out task.
        episodes: How many.
        sample: Number of the sample, for policies that sample.
        greedy: Policies take the most likely tokens, or sample as in training.
        storage: Parent of run folders.
    """
    quiet_loggers()
    name, options = parse_env(env)
    policy = None if run is None else _load(run, storage).in_env(name, options)
    make_env = policy.make_env if policy else functools.partial(_make, name, options)
    table = _Table(make_env, policy, _parse_agents(agents), greedy)
    tasks = (
        policy.held_out_tasks(task + episodes)[task:]
        if policy
        else TaskSource(seed=0, split="test").fixed(episodes, first=task)
    )
    try:
        for number, each in enumerate(tasks, start=task):
            each = dataclasses.replace(each, rollout=sample)
            if not table.play(number, each):
                break
    finally:
        if policy is not None:
            policy.close()
    return 0


def _load(run: str, storage: Path | None) -> LLMPolicy:
    from rllib_llm.cli.loading import locate

    return LLMPolicy.from_checkpoint(locate(run, storage).checkpoint)


def _make(name: str, options: dict[str, Any]) -> Any:
    from rllib_llm.env_runner.agents import as_playable
    from rllib_llm.envs.make import make_env

    return as_playable(make_env(name, options))


def _parse_agents(given: list[str]) -> dict[str, str]:
    agents = {}
    for text in given:
        agent, equals, player = text.partition("=")
        if not (agent and equals and player):
            raise ConfigError(
                f"--player {text!r} must read AGENT=PLAYER, e.g. solver=person; "
                "players "
                "are person, expert, random, and with a RUN policy or a policy's name."
            )
        agents[agent] = player
    return agents


class _Table:
    """Shows games, and asks people."""

    def __init__(
        self,
        make_env: Callable[[], Any],
        policy: LLMPolicy | None,
        given: dict[str, str],
        greedy: bool,
    ):
        self._make_env, self._policy, self._greedy = make_env, policy, greedy
        self._given = given
        self._console = Console(soft_wrap=True, highlight=False, markup=False)

    def play(self, number: int, task: Any) -> bool:
        """Play one task; return whether to go on."""
        env = self._make_env()
        agents = assign_agents(players_of(env), self._given, self._policy)
        env.close()
        match = Match(
            self._make_env,
            task,
            agents,
            ask=self._ask,
            policy=self._policy,
            greedy=self._greedy,
        )
        who = ", ".join(f"{agent} {player}" for agent, player in agents.items())
        self._say(f"--- task {number}, seed {task.seed}: {who}", style="bold")
        if PERSON in agents.values():
            self._say("/help lists commands.", style="dim")
        try:
            return self._play_match(match)
        finally:
            match.close()

    def _play_match(self, match: Match) -> bool:
        while not match.is_over:
            try:
                moves = match.step()
            except _Undo:
                if not match.undo():
                    self._say("There is nothing to take back.", style="dim")
                continue
            except _Quit:
                self._report(match, "stopped")
                return False
            for move in moves:
                self._show_move(match, move)
            self._show_rewards(match.game)
        if match.game.last_words:
            self._say(match.game.last_words)
        reason = match.game.stop_reason or match.stop_reason
        self._report(match, reason.value)
        return True

    def _show_move(self, match: Match, move: Move) -> None:
        if move.player == PERSON:
            return  # it has just been typed
        self._show_observation(match.game, move.agent, move.observation)
        self._say(f"[{move.player}] {move.action}", style="green")

    def _show_observation(self, game: Game, agent: str, observation: Any) -> None:
        head = "" if game.is_single else f"{agent}, turn {game.turn}:\n"
        self._say(f"{head}{observation}")

    def _show_rewards(self, game: Game) -> None:
        for agent, reward in game.rewards.items():
            of = "" if game.is_single else f" of {agent}"
            self._say(f"reward{of} {reward:+g}", style="yellow")

    def _report(self, match: Match, reason: str) -> None:
        game = match.game
        if game.is_single:
            (earned,) = game.returns.values()
            returns = f"return {earned:g}"
        else:
            returns = ", ".join(f"{a} {r:g}" for a, r in game.returns.items())
            returns = f"return {sum(game.returns.values()):g} ({returns})"
        solved = {None: "", True: ", solved", False: ", not solved"}[game.success]
        self._say(f"--- {reason} after {game.turn} turns: {returns}{solved}", "bold")

    # People --------------------------------------------------------------------------

    def _ask(self, game: Game, agent: str) -> Any:
        self._show_observation(game, agent, game.observations[agent])
        actions = game.infos.get(agent, {}).get(ADMISSIBLE)
        if actions:
            self._list_actions(actions, _SHOWN_ACTIONS)
        while True:
            text = self._read_answer()
            if text.startswith("//"):
                return text[1:]
            if text.startswith("/"):
                action = self._command(text, game, agent, actions)
                if action is not None:
                    self._say(f"[{text[1:]}] {action}", style="green")
                    return action
            elif text.strip():
                return self._as_action(game, agent, text)

    def _command(self, text: str, game: Game, agent: str, actions: Any) -> Any | None:
        """Carry a command out; return an action if it makes one."""
        name = text[1:].strip()
        if name == "quit":
            raise _Quit
        if name == "undo":
            raise _Undo
        if name in ("expert", "random"):
            try:
                return game.move(name, agent)
            except NotImplementedError as error:
                self._say(str(error), style="red")
        elif name == "actions":
            self._list_actions(actions or [], None)
        else:
            if name != "help":
                self._say(f"There is no command {text!r}.", style="red")
            self._say(_HELP, style="dim")
        return None

    def _list_actions(self, actions: list[str], most: int | None) -> None:
        shown = actions if most is None else actions[:most]
        more = len(actions) - len(shown)
        listed = ", ".join(shown) or "The environment lists none."
        rest = f" and {more} more (/actions)" if more else ""
        self._say(f"actions: {listed}{rest}", style="dim")

    def _as_action(self, game: Game, agent: str, text: str) -> Any:
        """Return what the environment takes: text, or of an agent of numbers those."""
        return yaml_io.parse(text, "The action") if game.reads_numbers(agent) else text

    def _read_answer(self) -> str:
        """Return what the person types; the end of the input is a wish to quit."""
        lines = []
        while True:
            try:
                line = input("> " if not lines else "... ")
            except EOFError:
                raise _Quit from None
            if not sys.stdin.isatty():
                self._say(line)  # a terminal shows what is typed by itself
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def _say(self, text: str, style: str | None = None) -> None:
        self._console.print(printable(text), style=style)
