"""Plots of learning curves with intervals over seeds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rllib_llm.errors import ConfigError, MissingExtraError
from rllib_llm.runs.folders import flat_recipe
from rllib_llm.runs.reading import Run, Trial
from rllib_llm.runs.seed_statistics import Interval, Setting, hashable, without_seed

FORMATS = (".png", ".svg", ".pdf")
# Fields of a recipe that do not affect how a trial learns; seeds are averaged.
_IGNORED = ("name", "description", "versions", "seed", "stop", "expect", "tune")


@dataclasses.dataclass(frozen=True)
class Line:
    """One curve: trials of one or several runs that differ only in their seed.

    Attributes:
        label: Text for the legend.
        setting: The trials.
    """

    label: str
    setting: Setting

    def points(self, metric: str) -> list[tuple[int, Interval]]:
        """Return mean and interval by iteration."""
        return self.setting.curve(metric)


def lines_of(runs: Sequence[Run]) -> list[Line]:
    """Return the curves of runs; trials that differ only in the seed form one curve.

    Labels have the differences between curves: names of recipes, searched settings,
    and, if these are equal, the keys in which the recipes differ.
    """
    groups: dict[str, list[tuple[Run, Trial]]] = {}
    for run in runs:
        base = {k: v for k, v in run.recipe.items() if k not in _IGNORED}
        origin = base or str(run.path)
        for trial in run.trials:
            key = hashable([origin, without_seed(trial.params)])
            groups.setdefault(key, []).append((run, trial))
    members = list(groups.values())
    labels = _labels([group[0] for group in members])
    return [
        Line(
            label, Setting(without_seed(group[0][1].params), tuple(t for _, t in group))
        )
        for label, group in zip(labels, members, strict=True)
    ]


def _labels(firsts: list[tuple[Run, Trial]]) -> list[str]:
    recipes = [_learning(run.recipe) for run, _ in firsts]
    names = [run.recipe.get("name", run.name) for run, _ in firsts]
    keys = sorted({k for r in recipes for k in r})
    keys = [k for k in keys if any(r.get(k) != recipes[0].get(k) for r in recipes)]
    labels = []
    for index, (_, trial) in enumerate(firsts):
        parts = describe(without_seed(trial.params))
        label = f"{names[index]} {parts}".strip() if len(set(names)) > 1 else parts
        labels.append(label or names[index])
    if len(set(labels)) < len(labels):
        labels = [
            f"{label} {describe({k: recipe.get(k) for k in keys})}".strip()
            for label, recipe in zip(labels, recipes, strict=True)
        ]
    return labels


def _learning(recipe: dict[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in recipe.items() if k not in _IGNORED}
    return flat_recipe(kept)


def describe(params: dict[str, Any]) -> str:
    """Return settings as text, e.g. ``lr=0.0001, temperature=1.0``."""
    return ", ".join(f"{key}={shown(value)}" for key, value in params.items())


def shown(value: object) -> str:
    """Return a short text for the value of a setting."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        rest = {k: v for k, v in value.items() if k != "name"}
        return f"{value['name']}({describe(rest)})" if rest else value["name"]
    if isinstance(value, dict | list):
        return json.dumps(value)
    return str(value)


def check_plotting(out: Path) -> None:
    """Check that ``out`` can be drawn, before anything else is computed.

    Raises:
        MissingExtraError: matplotlib is not installed.
        ConfigError: The file name has an unknown suffix.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError.for_extra("matplotlib", "plots") from error
    if out.suffix not in FORMATS:
        raise ConfigError(
            f"The file name {str(out)!r} must end in {', '.join(FORMATS)}, e.g. "
            f"{out.with_suffix('.png').name}."
        )


def plot_lines(lines: Sequence[Line], metrics: Sequence[str], out: Path) -> None:
    """Draw one panel per metric: means, and bands of 95 % intervals over seeds.

    Args:
        lines: The curves.
        metrics: Result keys.
        out: The file to write.
    """
    check_plotting(out)
    from matplotlib.figure import Figure

    width = 5.5 * len(metrics)
    figure = Figure(figsize=(width, 3.6 + 0.16 * len(lines)), layout="constrained")
    panels = figure.subplots(1, len(metrics), squeeze=False)[0]
    for panel, metric in zip(panels, metrics, strict=True):
        for line in lines:
            _draw(panel, line, metric)
        panel.set(xlabel="iteration", ylabel=metric)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid(alpha=0.3)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", fontsize=7, ncols=1)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)


def _draw(panel: Any, line: Line, metric: str) -> None:
    points = line.points(metric)
    iterations = [i for i, _ in points]
    seeds = max((interval.n for _, interval in points), default=0)
    label = f"{line.label} (n={seeds})"
    (drawn,) = panel.plot(iterations, [v.mean for _, v in points], label=label)
    if seeds > 1:
        low = [v.mean if v.low is None else v.low for _, v in points]
        high = [v.mean if v.high is None else v.high for _, v in points]
        panel.fill_between(iterations, low, high, alpha=0.2, color=drawn.get_color())
