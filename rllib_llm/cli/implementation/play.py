"""``rllib-llm play``: people, scripts or policies play tasks."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rllib_llm import yaml_io
from rllib_llm.cli.env_argument import parse_env
from rllib_llm.cli.session import quiet_loggers
from rllib_llm.cli.terminal import printable
from rllib_llm.env_runner.task_groups import held_out_source
from rllib_llm.envs.admissible import ADMISSIBLE
from rllib_llm.errors import ConfigError
from rllib_llm.inference.game import Game, players_of
from rllib_llm.inference.match import PERSON, Match, Move, assign_agents
from rllib_llm.inference.policy import LLMPolicy

if TYPE_CHECKING:
    from rllib_llm.data.types import Task

_HELP = """\
Type an answer and press Enter; end a line with \\ to continue on the next one.
/expert   let the environment's scripted expert answer
/random   let its random policy answer
/actions  list the admissible actions
/undo     undo your last answer
/quit     stop playing
//...     an answer that begins with a slash"""
_SHOWN_ACTIONS = 12


class _Quit(Exception):
    """The person stops playing."""


class _Undo(Exception):
    """The person undoes a move."""


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
    """Play held-out tasks in sequence; return the exit status.

    Args:
        env: ``NAME[:key=value,...]``.
        run: Run whose policies play; None: no policy.
        agents: Assignments, ``AGENT=PLAYER`` each.
        task: Index of the first held-out task.
        episodes: Number of tasks.
        sample: Index of the sample, for policies that sample.
        greedy: Whether policies choose the most likely tokens or sample as in training.
        storage: Parent of run folders.
    """
    quiet_loggers()
    name, options = parse_env(env)
    policy = None if run is None else _load(run, storage).in_env(name, options)
    make_env = policy.make_env if policy else functools.partial(_make, name, options)
    console = _GameConsole(make_env, policy, _parse_agents(agents), greedy)
    tasks = (
        policy.held_out_tasks(task + episodes)[task:]
        if policy
        else held_out_source(name, options).fixed(episodes, first=task)
    )
    try:
        for number, each in enumerate(tasks, start=task):
            each = dataclasses.replace(each, rollout=sample)
            if not console.play(number, each):
                break
    finally:
        if policy is not None:
            policy.close()
    return 0


def _load(run: str, storage: Path | None) -> LLMPolicy:
    from rllib_llm.cli.load_run import locate

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
                f"--player {text!r} must have the form AGENT=PLAYER, e.g. "
                "solver=person. "
                "Players are person, expert and random, and with a RUN also policy or "
                "the name of a policy."
            )
        agents[agent] = player
    return agents


class _GameConsole:
    """Console of a game: prints moves and reads those of people."""

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

    def play(self, number: int, task: Task) -> bool:
        """Play one task; return False if the person quits."""
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
        players = ", ".join(f"{agent} {player}" for agent, player in agents.items())
        self._print(f"--- task {number}, seed {task.seed}: {players}", style="bold")
        if PERSON in agents.values():
            self._print("/help lists commands.", style="dim")
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
                    self._print("There is nothing to undo.", style="dim")
                continue
            except _Quit:
                self._report(match, "stopped")
                return False
            for move in moves:
                self._show_move(match, move)
            self._show_rewards(match.game)
        if match.game.final_observation:
            self._print(match.game.final_observation)
        reason = match.game.stop_reason or match.stop_reason
        self._report(match, "" if reason is None else reason.value)
        return True

    def _show_move(self, match: Match, move: Move) -> None:
        if move.player == PERSON:
            return  # the terminal shows what was typed
        self._show_observation(match.game, move.agent, move.observation)
        self._print(f"[{move.player}] {move.action}", style="green")

    def _show_observation(self, game: Game, agent: str, observation: object) -> None:
        head = "" if game.is_single else f"{agent}, turn {game.turn}:\n"
        self._print(f"{head}{observation}")

    def _show_rewards(self, game: Game) -> None:
        for agent, reward in game.rewards.items():
            of = "" if game.is_single else f" of {agent}"
            self._print(f"reward{of} {reward:+g}", style="yellow")

    def _report(self, match: Match, reason: str) -> None:
        game = match.game
        if game.is_single:
            (episode_return,) = game.returns.values()
            returns = f"return {episode_return:g}"
        else:
            returns = ", ".join(f"{a} {r:g}" for a, r in game.returns.items())
            returns = f"return {sum(game.returns.values()):g} ({returns})"
        solved = {None: "", True: ", solved", False: ", not solved"}[game.success]
        self._print(f"--- {reason} after {game.turn} turns: {returns}{solved}", "bold")

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
                    self._print(f"[{text[1:]}] {action}", style="green")
                    return action
            elif text.strip():
                return self._as_action(game, agent, text)

    def _command(
        self, text: str, game: Game, agent: str, actions: list[str] | None
    ) -> Any | None:
        """Run a command; return its action, or None if it does not have one."""
        name = text[1:].strip()
        if name == "quit":
            raise _Quit
        if name == "undo":
            raise _Undo
        if name in ("expert", "random"):
            try:
                return game.move(name, agent)
            except NotImplementedError as error:
                self._print(str(error), style="red")
        elif name == "actions":
            self._list_actions(actions or [], None)
        else:
            if name != "help":
                self._print(f"Unknown command {text!r}.", style="red")
            self._print(_HELP, style="dim")
        return None

    def _list_actions(self, actions: list[str], most: int | None) -> None:
        shown = actions if most is None else actions[:most]
        more = len(actions) - len(shown)
        listed = ", ".join(shown) or "The environment does not list any."
        rest = f" and {more} more (/actions)" if more else ""
        self._print(f"actions: {listed}{rest}", style="dim")

    def _as_action(self, game: Game, agent: str, text: str) -> Any:
        """Return the text, or its parsed value if the agent's actions are numeric."""
        return yaml_io.parse(text, "The action") if game.reads_numbers(agent) else text

    def _read_answer(self) -> str:
        """Return the typed answer; raise _Quit at the end of the input."""
        lines: list[str] = []
        while True:
            try:
                line = input("> " if not lines else "... ")
            except EOFError:
                raise _Quit from None
            if not sys.stdin.isatty():
                self._print(line)  # a terminal echoes its input itself
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def _print(self, text: str, style: str | None = None) -> None:
        self._console.print(printable(text), style=style)
