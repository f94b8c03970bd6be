"""Write small run folders as Tune does, without training."""

from __future__ import annotations

import json
from pathlib import Path

from rllib_llm import yaml_io

RECIPE = {"algo": "GRPO", "env": "bandit_probe-v0", "stop": {"training_iteration": 3}}
RETURN = "env_runners/episode_return_mean"


def nested(flat):
    """Return ``{"a/b": 1}`` as ``{"a": {"b": 1}}``."""
    result = {}
    for key, value in flat.items():
        node = result
        *path, last = key.split("/")
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return result


def write_trial(folder, config, rows, done=True):
    """Write a trial: its config, and a result for each of ``rows`` (flat keys)."""
    folder.mkdir(parents=True)
    (folder / "params.json").write_text(json.dumps(config))
    lines = []
    for index, row in enumerate(rows):
        last = done and index == len(rows) - 1
        flat = {"training_iteration": index + 1, "done": last, **row}
        lines.append(json.dumps({**nested(flat), "config": config}) + "\n")
    (folder / "result.json").write_text("".join(lines))
    return folder


def write_run(folder, trials, recipe=None, searched=None, metric=RETURN):
    """Write a run.

    Args:
        folder: Where.
        trials: Pairs of a trial's config and its values of ``metric`` by iteration, or
            its rows.
        recipe: Fields beside :data:`RECIPE`.
        searched: Keys of the config that were searched; None: no record of Tune's.
        metric: What the values are of.
    """
    folder = Path(folder)
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(yaml_io.dump({**RECIPE, **(recipe or {})}))
    states = []
    for index, (config, values) in enumerate(trials):
        rows = [v if isinstance(v, dict) else {metric: v} for v in values]
        write_trial(folder / f"trial_{index:05d}", config, rows)
        params = {key: config[key] for key in searched or ()}
        states.append([json.dumps({"evaluated_params": params}), "{}"])
    if searched is not None:
        record = folder / "experiment_state-2026-01-01_00-00-00.json"
        record.write_text(json.dumps({"trial_data": states}))
    return folder
