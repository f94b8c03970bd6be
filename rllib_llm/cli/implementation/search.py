"""``rllib-llm evaluate --search``: search beside plain sampling."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from rllib_llm.cli.env_argument import parse_env, parse_envs
from rllib_llm.cli.load_run import load_algorithm, locate
from rllib_llm.cli.session import ray_session
from rllib_llm.envs.parsing import require_choice, require_int
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.evaluation.beam import BeamSettings
from rllib_llm.evaluation.search_summary import SearchEvaluation, evaluate_search
from rllib_llm.evaluation.success_statistics import Estimate
from rllib_llm.evaluation.tree_search import MctsSettings

_BEST_OF = "best_of"
_MCTS = "mcts"
_BEST_TURN = "best_turn"
_BEAM = "beam"
_NUM = 8  # of best_of and best_turn
_MANY = 10**6


def parse_searches(texts: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of :func:`evaluate_search` that name the searches.

    Args:
        texts: ``mcts``, ``best_of``, ``best_turn`` and ``beam``, each at most once, as
            ``NAME[:key=value,...]``.

    Returns:
        ``mcts``, ``episodes``, ``best_turn`` and ``beam``; None for those without.

    Raises:
        ConfigError: If a name, an option or a value is not allowed.
    """
    given: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, options = parse_env(text)
        require_choice("--search", name, (_MCTS, _BEST_OF, _BEST_TURN, _BEAM))
        if name in given:
            raise ConfigError(f"--search {name} is given twice. Remove one of them.")
        given[name] = options
    settings = {_MCTS: MctsSettings, _BEAM: BeamSettings}
    names = {n: {f.name for f in dataclasses.fields(c)} for n, c in settings.items()}
    names |= {_BEST_OF: {"n"}, _BEST_TURN: {"n"}}
    for name, options in given.items():
        for option in options.keys() - names[name]:
            hint = did_you_mean(option, names[name])
            raise ConfigError(f"--search {name} has no option {option!r}. {hint}")
    episodes = best_turn = None
    if _BEST_OF in given:
        # Beside another search: as many as its tokens allow, unless n is given.
        default = _NUM if given.keys() == {_BEST_OF} else None
        episodes = given[_BEST_OF].get("n", default)
        if episodes is not None:
            require_int("n", episodes, 1, _MANY)
    if _BEST_TURN in given:
        best_turn = given[_BEST_TURN].get("n", _NUM)
        require_int("n", best_turn, 2, _MANY)
    return {
        "mcts": MctsSettings(**given[_MCTS]) if _MCTS in given else None,
        "episodes": episodes,
        "best_turn": best_turn,
        "beam": BeamSettings(**given[_BEAM]) if _BEAM in given else None,
    }


def evaluate(
    run: str | None,
    texts: Sequence[str],
    episodes: int,
    *,
    envs: list[str],
    as_json: bool,
    out: Path | None,
    storage: Path | None,
) -> int:
    """Evaluate search with the newest checkpoint of ``run``; return the exit status.

    Args:
        run: Folder or name of a run, trial or checkpoint.
        texts: The values of ``--search``.
        episodes: Number of held-out tasks of each environment.
        envs: Environments as ``NAME[:key=value,...]``; empty: the run's.
        as_json: Print JSON.
        out: File for JSON with the outcomes of the episodes that count.
        storage: Parent of run folders.

    Raises:
        ConfigError: If ``run`` is None, or an option is not allowed.
    """
    if run is None:
        raise ConfigError("--search needs RUN: a run's folder or name.")
    searches = parse_searches(texts)
    env_specs = parse_envs(envs) or [(None, {})]
    paths = locate(run, storage)
    with ray_session():
        algo = load_algorithm(paths.checkpoint)
        head = {
            "checkpoint": str(paths.checkpoint),
            "iteration": algo.training_iteration,
            **{
                name: dataclasses.asdict(searches[name]) if searches[name] else None
                for name in (_MCTS, _BEAM)
            },
        }
        results = [
            evaluate_search(algo, episodes, **searches, env=env, env_config=options)
            for env, options in env_specs
        ]
        algo.stop()
    if out is not None:
        out.write_text(_as_json(head, results, outcomes=True) + "\n", encoding="utf-8")
    if as_json:
        typer.echo(_as_json(head, results, outcomes=False))
    else:
        typer.echo(
            f"checkpoint: {paths.checkpoint}, after {head['iteration']} iterations"
        )
        for result in results:
            typer.echo("\n".join(report(result)))
    return 0 if all(result.rows for result in results) else 1


def report(result: SearchEvaluation) -> list[str]:
    """Return the lines of an evaluation's table."""
    options = ", ".join(f"{k}={v}" for k, v in result.env_config.items())
    lines = [
        f"{result.env}{f' ({options})' if options else ''}: {result.tasks} held-out "
        "tasks, sampled"
    ]
    if result.failures:
        lines.append(f"  failed    {result.failures} tasks, left out of all rows")
    lines.append(
        f"  {'':<18}{'success':<24}{'return':<24}{'tokens':>9}{'episodes':>10}"
    )
    lines += [
        f"  {row.name:<18}{_cell(row.success):<24}{_cell(row.episode_return):<24}"
        f"{row.tokens:>9.1f}{row.episodes:>10.1f}"
        for row in result.rows
    ]
    return lines


def _cell(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    if estimate.low is None:
        return f"{estimate.mean:.3f}"
    return f"{estimate.mean:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


def _as_json(
    head: dict[str, Any], results: Sequence[SearchEvaluation], *, outcomes: bool
) -> str:
    searches = []
    for result in results:
        searches.append(dataclasses.asdict(result))
        if not outcomes:
            del searches[-1]["outcomes"]
    return json.dumps({**head, "searches": searches}, indent=2)
