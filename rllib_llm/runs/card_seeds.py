"""Results of a run's other seeds in a model card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rllib_llm.runs.reading import Run, Trial
from rllib_llm.runs.seed_statistics import mean_interval, settings_of

if TYPE_CHECKING:
    from rllib_llm.runs.model_card import Score


def other_seeds(run: Run, trial: Trial) -> list[Trial]:
    """Return the other trials of a run that differ from a trial only in their seed.

    Args:
        run: The run with all its trials.
        trial: One of them.
    """
    for setting in settings_of(run):
        if any(each.path == trial.path for each in setting.trials):
            return [
                each
                for each in setting.trials
                if each.path != trial.path and each.seed != trial.seed
            ]
    return []


def seeds_section(by_seed: Mapping[int | None, Sequence[Score]]) -> str:
    """Return the section with each seed's scores, and their mean over seeds.

    Args:
        by_seed: The scores of each seed, that of the exported policy first; a seed
            without scores says so.
    """
    exported = next(iter(by_seed))
    rows: list[str] = []
    values: dict[str, list[float]] = {}
    for seed, scores in by_seed.items():
        name = f"{seed} (exported)" if seed == exported else str(seed)
        if not scores:
            rows.append(f"| {name} | | | not evaluated |")
        for score in scores:
            values.setdefault(score.environment, []).append(score.success)
            rows.append(
                f"| {name} | {score.environment} | {score.iteration} | "
                f"{score.success:.3f} ({score.low:.3f} to {score.high:.3f}) |"
            )
    means = [
        f"- {environment}: {_mean(successes)}"
        for environment, successes in values.items()
    ]
    return (
        "### Other seeds\n\n"
        "Success on held-out tasks of the trials that differ only in their seed, each "
        "in its last evaluation that is not later than the exported checkpoint.\n\n"
        "| seed | environment | iteration | success (95% interval) |\n"
        "|---|---|---|---|\n" + "\n".join(rows) + "\n\n"
        "Mean over seeds:\n\n" + "\n".join(means)
    )


def _mean(successes: Sequence[float]) -> str:
    interval = mean_interval(successes)
    if interval.low is None or interval.high is None:
        return f"{interval.mean:.3f} (one seed)"
    return (
        f"{interval.mean:.3f}, 95% interval {interval.low:.3f} to {interval.high:.3f} "
        f"(Student's t, {interval.n} seeds)"
    )
