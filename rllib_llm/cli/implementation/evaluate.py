"""``rllib-llm evaluate``: a checkpoint on held-out tasks."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import typer

from rllib_llm.algorithms.reward_model.reward_model import RewardModel
from rllib_llm.cli.env_argument import parse_envs
from rllib_llm.cli.load_run import load_algorithm, locate
from rllib_llm.cli.session import ray_session
from rllib_llm.errors import ConfigError
from rllib_llm.evaluation.outcomes import Outcome
from rllib_llm.evaluation.pair_statistics import PairEvaluation
from rllib_llm.evaluation.success_statistics import Estimate
from rllib_llm.evaluation.summary import Evaluation, evaluate_algorithm

Played = list[tuple[Evaluation, list[Outcome]]]


def evaluate(
    run: str,
    *,
    episodes: int,
    samples: int,
    modes: list[str],
    envs: list[str],
    pairs: list[str],
    as_json: bool,
    out: Path | None,
    storage: Path | None,
    verbose: bool,
) -> int:
    """Evaluate the newest checkpoint of ``run``; return the exit status.

    Args:
        run: Folder or name of a run, trial or checkpoint.
        episodes: Number of held-out tasks of each environment.
        samples: Rollouts per task if tokens are sampled.
        modes: At most one of ``"greedy"``, ``"sampled"`` and ``"both"``; empty: greedy,
            or sampled if there are several samples.
        envs: Environments as ``NAME[:key=value,...]``; empty: the run's.
        pairs: Files with preference pairs, of a reward model.
        as_json: Print JSON.
        out: File for JSON with all outcomes.
        storage: Parent of run folders.
        verbose: Show the output of all processes.
    """
    greedy_modes = _greedy_modes(modes, samples)
    env_specs = parse_envs(envs)
    paths = locate(run, storage)
    with ray_session(verbose=verbose):
        algo = load_algorithm(paths.checkpoint)
        head = {
            "checkpoint": str(paths.checkpoint),
            "iteration": algo.training_iteration,
        }
        if isinstance(algo, RewardModel):
            if envs or modes or samples > 1:
                raise ConfigError(
                    "The run trained a reward model, which plays nothing: leave --env, "
                    "--samples, --greedy, --sampled and --both out."
                )
            result = algo.evaluate_on_pairs(pairs or None, episodes)
            algo.stop()
            return _print_pairs(head, result, as_json=as_json, out=out)
        if pairs:
            raise ConfigError(
                f"--pairs is for runs of RewardModel, not of {type(algo).__name__}. "
                "Remove it."
            )
        chosen: list[dict[str, Any]] = [
            {"env": env, "env_config": options} for env, options in env_specs
        ]
        if not chosen:  # the run's; each environment of a mixture apart
            members = algo.config.mixture_members
            chosen = [{"environment": member.name} for member in members] or [{}]
        played = [
            evaluate_algorithm(
                algo,
                episodes,
                greedy=greedy,
                samples=1 if greedy else samples,
                **environment,
            )
            for environment in chosen
            for greedy in greedy_modes
        ]
        algo.stop()
    return _print(
        head,
        f"checkpoint: {paths.checkpoint}, after {head['iteration']} iterations",
        played,
        as_json=as_json,
        out=out,
    )


def evaluate_api(
    api: str | None,
    model: str | None,
    *,
    run: str | None,
    temperature: float,
    max_new_tokens: int,
    concurrency: int,
    episodes: int,
    samples: int,
    modes: list[str],
    envs: list[str],
    as_json: bool,
    out: Path | None,
    storage: Path | None,
    verbose: bool,
) -> int:
    """Evaluate a model behind an API; return the exit status.

    Args:
        api: Base address of the API.
        model: The model's name there.
        run: Folder or name of a run that plays the same tasks; None: without.
        temperature: Temperature of sampled episodes.
        max_new_tokens: Maximum tokens of a turn.
        concurrency: Episodes at a time.
        episodes: Number of held-out tasks of each environment.
        samples: Episodes per task if tokens are sampled.
        modes: As for :func:`evaluate`.
        envs: Environments as ``NAME[:key=value,...]``; at least one without ``run``.
        as_json: Print JSON.
        out: File for JSON with all outcomes.
        storage: Parent of run folders.
        verbose: Show the output of all processes.
    """
    from rllib_llm.evaluation import api_models

    if api is None:
        raise ConfigError(
            "RUN is missing: give a run's folder or name, or --api URL with --model "
            "and --env."
        )
    if model is None or not (envs or run):
        raise ConfigError(
            "--api needs --model NAME, and --env NAME or a run's folder or name."
        )
    settings = api_models.ApiSettings(
        api, model, max_new_tokens=max_new_tokens, concurrency=concurrency
    )
    greedy_modes = _greedy_modes(modes, samples)
    if run is not None:
        from rllib_llm.cli.implementation.evaluate_beside import evaluate_beside

        return evaluate_beside(
            run,
            settings,
            temperature=temperature,
            episodes=episodes,
            samples=samples,
            greedy_modes=greedy_modes,
            envs=envs,
            as_json=as_json,
            out=out,
            storage=storage,
            verbose=verbose,
        )
    played = [
        api_models.evaluate_api(
            dataclasses.replace(settings, temperature=0.0 if greedy else temperature),
            env,
            env_config,
            episodes,
            samples=1 if greedy else samples,
        )
        for env, env_config in parse_envs(envs)
        for greedy in greedy_modes
    ]
    head = {"api": api, "model": model}
    return _print(head, f"model: {model}, {api}", played, as_json=as_json, out=out)


def _print(
    head: dict[str, Any], title: str, played: Played, *, as_json: bool, out: Path | None
) -> int:
    """Print and write evaluations; return the exit status."""
    if out is not None:
        out.write_text(_as_json(head, played, outcomes=True) + "\n", encoding="utf-8")
    if as_json:
        typer.echo(_as_json(head, played, outcomes=False))
    else:
        typer.echo(title)
        for evaluation, _ in played:
            typer.echo("\n".join(_report(evaluation)))
    return 0 if all(evaluation.episodes for evaluation, _ in played) else 1


def _print_pairs(
    head: dict[str, Any], result: PairEvaluation, *, as_json: bool, out: Path | None
) -> int:
    """Print and write the evaluation of a reward model; return the exit status."""
    text = json.dumps({**head, "pairs": dataclasses.asdict(result)}, indent=2)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
    lines = (
        f"checkpoint: {head['checkpoint']}, after {head['iteration']} iterations",
        f"{result.pairs} preference pairs",
        f"  accuracy     {_with_interval(result.accuracy)}",
        f"  log loss     {result.log_loss:.3f}  (0.693 for equal scores)",
        f"  calibration  {result.calibration_error:.3f}  (expected error of the "
        "probability that the chosen one is better)",
        f"  scores       {result.score_mean:.3f} +- {result.score_std:.3f}",
    )
    typer.echo(text if as_json else "\n".join(lines))
    return 0


def _greedy_modes(modes: list[str], samples: int) -> list[bool]:
    """Return the value of ``greedy`` for each evaluation."""
    if len(modes) > 1:
        raise ConfigError(
            f"{' and '.join(f'--{m}' for m in modes)} exclude each other. Give only "
            "one of --greedy, --sampled and --both."
        )
    mode = modes[0] if modes else "sampled" if samples > 1 else "greedy"
    if mode == "greedy" and samples > 1:
        raise ConfigError(
            f"--samples {samples} cannot be combined with --greedy, since the most "
            "likely tokens are the same every time. Use --sampled or --both."
        )
    return {"greedy": [True], "sampled": [False], "both": [True, False]}[mode]


def _as_json(head: dict[str, Any], played: Played, *, outcomes: bool) -> str:
    evaluations = []
    for evaluation, each in played:
        evaluations.append(dataclasses.asdict(evaluation))
        if outcomes:
            evaluations[-1]["outcomes"] = [dataclasses.asdict(o) for o in each]
    return json.dumps({**head, "evaluations": evaluations}, indent=2)


def _report(result: Evaluation) -> list[str]:
    mode = "greedy" if result.greedy else f"{result.samples} sampled"
    options = ", ".join(f"{k}={v}" for k, v in result.env_config.items())
    lines = [
        f"{result.env}{f' ({options})' if options else ''}: {result.tasks} held-out "
        f"tasks, {mode}"
    ]
    if result.failures:
        reasons = ", ".join(f"{k} {v}" for k, v in result.failures.items())
        lines.append(f"  failed    {sum(result.failures.values())}  ({reasons})")
    if result.success is not None:
        lines.append(f"  success   {_with_interval(result.success)}")
    for k, estimate in result.pass_at.items():
        lines.append(f"  {f'pass@{k}':<9} {_with_interval(estimate)}")
    if result.optimal_value is not None:
        lines.append(
            f"  optimal   {result.optimal_value:.3f}  (best policy, the same tasks)"
        )
    if result.episode_return is not None:
        lines += [
            f"  return    {_with_interval(result.episode_return)}",
            f"  turns     {result.turns:.1f}",
            f"  tokens    {result.tokens:.1f}",
        ]
    ends = ", ".join(f"{k} {v}" for k, v in result.stop_reasons.items())
    return [*lines, f"  ended by  {ends or 'nothing: every episode failed'}"]


def _with_interval(estimate: Estimate) -> str:
    if estimate.low is None:
        return f"{estimate.mean:.3f}  (no interval from one task)"
    return (
        f"{estimate.mean:.3f}  (95% interval {estimate.low:.3f} to {estimate.high:.3f})"
    )
