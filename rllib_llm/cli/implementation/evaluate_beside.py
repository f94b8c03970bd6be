"""``rllib-llm evaluate RUN --api``: a run and a model of an API on the same tasks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rllib_llm.algorithms.reward_model.reward_model import RewardModel
from rllib_llm.cli.env_argument import parse_envs
from rllib_llm.cli.load_run import load_algorithm, locate
from rllib_llm.cli.session import ray_session
from rllib_llm.cli.tables import print_paired, print_table
from rllib_llm.errors import ConfigError
from rllib_llm.evaluation.api_models import ApiModel, ApiSettings, evaluate_api
from rllib_llm.evaluation.outcomes import Outcome
from rllib_llm.evaluation.paired_outcomes import Paired, paired_outcomes
from rllib_llm.evaluation.runner import env_config_in
from rllib_llm.evaluation.summary import Evaluation, evaluate_algorithm

if TYPE_CHECKING:
    from rllib_llm.types import LLMAlgorithm, LLMConfig

_MODEL, _RUN = "model", "run"


@dataclasses.dataclass(frozen=True)
class Beside:
    """Evaluations of a model of an API and of a run on the same tasks.

    Attributes:
        model: Evaluation of the API's model.
        run: Evaluation of the run.
        paired: Tests of their difference, run minus model, on the tasks that both
            played without a failure; empty if there are none.
        left_out: Number of the other tasks.
        model_outcomes: Outcomes of the API's model.
        run_outcomes: Outcomes of the run.
    """

    model: Evaluation
    run: Evaluation
    paired: list[Paired]
    left_out: int
    model_outcomes: list[Outcome]
    run_outcomes: list[Outcome]


def evaluate_beside(
    run: str,
    settings: ApiSettings,
    *,
    temperature: float,
    episodes: int,
    samples: int,
    greedy_modes: Sequence[bool],
    envs: list[str],
    as_json: bool,
    out: Path | None,
    storage: Path | None,
    verbose: bool,
) -> int:
    """Evaluate ``run`` beside a model behind an API; return the exit status.

    Args:
        run: Folder or name of a run, trial or checkpoint.
        settings: The API; its temperature is replaced.
        temperature: Temperature of the API's sampled episodes.
        episodes: Number of held-out tasks of each environment.
        samples: Episodes per task if tokens are sampled.
        greedy_modes: For each evaluation whether it is greedy.
        envs: Environments as ``NAME[:key=value,...]``; empty: the run's.
        as_json: Print JSON.
        out: File for JSON with all outcomes.
        storage: Parent of run folders.
        verbose: Show the output of all processes.

    Raises:
        ConfigError: The run trained a reward model, or an option is not allowed.
    """
    ApiModel(settings)  # a wrong address or a missing extra: before the run is loaded
    env_specs = parse_envs(envs)
    paths = locate(run, storage)
    with ray_session(verbose=verbose):
        algo = load_algorithm(paths.checkpoint)
        if isinstance(algo, RewardModel):
            raise ConfigError(
                "The run trained a reward model, which plays nothing and cannot be "
                "compared with a model of --api. Remove --api."
            )
        head = {
            "checkpoint": str(paths.checkpoint),
            "iteration": algo.training_iteration,
            "api": settings.url,
            "model": settings.model,
        }
        results = [
            _play(
                algo,
                dataclasses.replace(
                    settings, temperature=0.0 if greedy else temperature
                ),
                environment,
                episodes,
                greedy=greedy,
                samples=1 if greedy else samples,
            )
            for environment in _environments(algo.config, env_specs)
            for greedy in greedy_modes
        ]
        algo.stop()
    _report(head, results, as_json=as_json, out=out)
    return 0 if all(result.paired for result in results) else 1


@dataclasses.dataclass(frozen=True)
class _Environment:
    """An environment that both play.

    Attributes:
        env: The environment.
        env_config: Its options.
        of_run: Arguments of ``evaluate_algorithm`` that select it.
    """

    env: Any
    env_config: dict[str, Any]
    of_run: dict[str, Any]


def _environments(
    config: LLMConfig, env_specs: Sequence[tuple[Any, dict[str, Any]]]
) -> Iterator[_Environment]:
    """Yield the given environments, else the run's, each of a mixture apart."""
    for env, options in env_specs:
        of_run = {"env": env, "env_config": options}
        yield _Environment(env, env_config_in(config, env, options), of_run)
    if not env_specs:
        members = config.mixture_members
        for member in members:
            name = {"environment": member.name}
            yield _Environment(member.env, dict(member.env_config), name)
        if not members:
            yield _Environment(config.env, dict(config.env_config), {})


def _play(
    algo: LLMAlgorithm,
    settings: ApiSettings,
    environment: _Environment,
    episodes: int,
    *,
    greedy: bool,
    samples: int,
) -> Beside:
    # The API first: if it does not answer, that shows at once.
    model, model_outcomes = evaluate_api(
        settings,
        environment.env,
        environment.env_config,
        episodes,
        samples=samples,
        max_turns=algo.config.max_turns,
    )
    evaluation, outcomes = evaluate_algorithm(
        algo, episodes, greedy=greedy, samples=samples, **environment.of_run
    )
    paired, left_out = paired_outcomes(model_outcomes, outcomes)
    return Beside(model, evaluation, paired, left_out, model_outcomes, outcomes)


def _report(
    head: dict[str, Any], results: Sequence[Beside], *, as_json: bool, out: Path | None
) -> None:
    """Print and write the results."""
    if out is not None:
        out.write_text(_as_json(head, results, outcomes=True) + "\n", encoding="utf-8")
    if as_json:
        typer.echo(_as_json(head, results, outcomes=False))
        return
    typer.echo(f"{_RUN}:   {head['checkpoint']}, after {head['iteration']} iterations")
    typer.echo(f"{_MODEL}: {head['model']}, {head['api']}")
    for result in results:
        _print(result)


def _print(result: Beside) -> None:
    options = ", ".join(f"{k}={v}" for k, v in result.run.env_config.items())
    mode = "greedy" if result.run.greedy else f"{result.run.samples} sampled"
    typer.echo(
        f"\n{result.run.env}{f' ({options})' if options else ''}: the same "
        f"{result.run.tasks} held-out tasks, {mode}"
    )
    if result.left_out:
        typer.echo(f"excluded, because an episode failed: {result.left_out} tasks")
    if result.paired:
        print_paired(result.paired, _MODEL, _RUN)
    rows = [
        (name, _number(getattr(result.model, name)), _number(getattr(result.run, name)))
        for name in ("turns", "tokens")
    ]
    failed = [str(sum(e.failures.values())) for e in (result.model, result.run)]
    print_table(["", _MODEL, _RUN], [*rows, ("failed", *failed)])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _as_json(head: dict[str, Any], results: Sequence[Beside], *, outcomes: bool) -> str:
    comparisons = []
    for result in results:
        comparisons.append(dataclasses.asdict(result))
        if not outcomes:
            del comparisons[-1]["model_outcomes"], comparisons[-1]["run_outcomes"]
    return json.dumps({**head, "comparisons": comparisons}, indent=2)
