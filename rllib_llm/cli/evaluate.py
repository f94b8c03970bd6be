"""``rllib-llm evaluate``: a checkpoint on held-out tasks."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import typer

from rllib_llm.cli.loading import load_algorithm, locate
from rllib_llm.cli.session import ray_session
from rllib_llm.evaluation.runner import local_runner

_Z95 = 1.959964


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What an evaluation measured.

    Attributes:
        checkpoint: The checkpoint's folder.
        env: The environment's name.
        iteration: Training iterations behind the policy.
        episodes: Episodes played to their end; failed ones are not among them.
        greedy: Most likely tokens (True) or sampled as in training.
        success_rate: Share of solved tasks; None where the task knows no success.
        success_low: Lower end of the 95 % Wilson interval.
        success_high: Its upper end.
        return_mean: Mean return.
        return_stderr: Its standard error.
        turns_mean: Mean turns per episode.
        optimal_value: Success rate of the best possible policy on the same tasks,
            where the environment can tell.
    """

    checkpoint: str
    env: str
    iteration: int
    episodes: int
    greedy: bool
    success_rate: float | None
    success_low: float | None
    success_high: float | None
    return_mean: float
    return_stderr: float
    turns_mean: float
    optimal_value: float | None


def evaluate(
    run: str,
    *,
    episodes: int,
    greedy: bool,
    as_json: bool,
    storage: Path | None,
    verbose: bool,
) -> None:
    """Evaluate the newest checkpoint of ``run`` and print the result."""
    paths = locate(run, storage)
    with ray_session(verbose=verbose):
        algo = load_algorithm(paths.checkpoint)
        result = evaluate_algorithm(algo, episodes, greedy, str(paths.checkpoint))
        algo.stop()
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(result), indent=2))
    else:
        typer.echo("\n".join(_report(result)))


def evaluate_algorithm(
    algo: Any, num_episodes: int, greedy: bool, checkpoint: str = ""
) -> Evaluation:
    """Play held-out tasks with the algorithm's policy; the same ones every time."""
    from rllib_llm.connectors.episode_data import episode_data

    config = algo.config
    tasks = config.build_task_source(in_evaluation=True).fixed(num_episodes)
    played = local_runner(algo).sample(tasks=tasks, explore=not greedy)
    returns = np.array([e.get_return() for e in played])
    solved = [episode_data(e).success for e in played]
    solved = [s for s in solved if s is not None]
    rate = sum(solved) / len(solved) if solved else None
    low, high = wilson_interval(sum(solved), len(solved)) if solved else (None, None)
    return Evaluation(
        checkpoint=checkpoint,
        env=str(config.env),
        iteration=algo.training_iteration,
        episodes=len(played),
        greedy=greedy,
        success_rate=rate,
        success_low=low,
        success_high=high,
        return_mean=float(returns.mean()),
        return_stderr=float(returns.std() / math.sqrt(len(returns))),
        turns_mean=float(np.mean([len(e) for e in played])),
        optimal_value=_optimal_value(config, tasks),
    )


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a success probability (Wilson 1927).

    Unlike the normal approximation it stays within [0, 1] and has a width at 0 and 1.
    """
    p, z2 = successes / trials, _Z95**2
    centre = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    spread = math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2))
    half = _Z95 * spread / (1 + z2 / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


def _optimal_value(config: Any, tasks: list[Any]) -> float | None:
    """Return the best policy's mean value on these tasks, if the env knows it."""
    env = config.make_text_env()
    if not hasattr(env.unwrapped, "optimal_value"):
        return None
    values = []
    for task in tasks:
        env.reset(seed=task.seed, options=task.options)
        values.append(env.unwrapped.optimal_value())
    env.close()
    return float(np.mean(values))


def _report(result: Evaluation) -> list[str]:
    how = "greedy" if result.greedy else "sampled"
    lines = [
        f"{result.env}: {result.episodes} held-out episodes, {how}, after "
        f"{result.iteration} iterations"
    ]
    if result.success_rate is not None:
        lines.append(
            f"  success  {result.success_rate:.3f}  (95% interval "
            f"{result.success_low:.3f} to {result.success_high:.3f})"
        )
    if result.optimal_value is not None:
        lines.append(
            f"  optimal  {result.optimal_value:.3f}  (best policy, the same tasks)"
        )
    lines += [
        f"  return   {result.return_mean:.3f}  (standard error "
        f"{result.return_stderr:.3f})",
        f"  turns    {result.turns_mean:.1f}",
        f"checkpoint: {result.checkpoint}",
    ]
    return lines
