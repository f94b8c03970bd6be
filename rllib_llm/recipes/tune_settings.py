"""The ``tune`` section of a recipe: trials, schedulers and their checks."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypedDict

from annotated_types import Ge, Gt, Interval

from rllib_llm.algorithms.config.sections import suggestion
from rllib_llm.errors import ConfigError
from rllib_llm.recipes import search_spaces
from rllib_llm.schema import (
    Fraction,
    Hint,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    require,
    show,
)


class TuneSettings(TypedDict, total=False):
    """Settings of ``tune``; ``TUNE_DEFAULTS`` fills in missing ones."""

    num_samples: PositiveInt
    metric: str | None
    mode: Literal["min", "max"] | None
    scheduler: str | dict[str, Any] | None
    max_concurrent_trials: PositiveInt | None
    time_budget_s: PositiveFloat | None
    checkpoint_frequency: NonNegativeInt
    num_to_keep: PositiveInt | None
    max_failures: Annotated[int, Ge(-1)]


class AshaSettings(TypedDict, total=False):
    """Settings of the scheduler ``asha``."""

    name: str
    grace_period: PositiveInt
    reduction_factor: Annotated[
        float, Gt(1), Hint("At a rung, 1 / reduction_factor of the trials continue.")
    ]
    max_t: PositiveInt | None


class PbtSettings(TypedDict, total=False):
    """Settings of the scheduler ``pbt``."""

    name: str
    perturbation_interval: PositiveInt
    quantile_fraction: Annotated[float, Interval(ge=0, le=0.5)]
    resample_probability: Fraction
    burn_in_period: NonNegativeInt


TUNE_DEFAULTS: TuneSettings = {
    "num_samples": 1,
    "metric": None,
    "mode": None,
    "scheduler": None,
    "max_concurrent_trials": None,
    "time_budget_s": None,
    "checkpoint_frequency": 10,
    "num_to_keep": 2,
    "max_failures": 0,
}
# Defaults of each scheduler; None: taken from the recipe.
SCHEDULERS: dict[str, dict[str, Any]] = {
    "asha": {"grace_period": 1, "reduction_factor": 4, "max_t": None},
    "pbt": {
        "perturbation_interval": 5,
        "quantile_fraction": 0.25,
        "resample_probability": 0.25,
        "burn_in_period": 0,
    },
}
# Settings that PBT can change: an algorithm that restores another trial's checkpoint
# takes these from its own config. All others shape the checkpoint or are stored in it.
MUTABLE = (
    "training.lr",
    "training.critic_lr",
    "training.clip_param",
    "training.clip_param_high",
    "training.entropy_coeff",
    "training.ref_kl_coeff",
    "training.vf_loss_coeff",
    "training.vf_clip_param",
    "training.grad_clip",
    "training.gamma",
    "training.num_epochs",
    "generation.temperature",
)
_PBT_TO_KEEP = 4
_KINDS = {"asha": AshaSettings, "pbt": PbtSettings}


def check_tune(given: Any) -> dict[str, Any]:
    """Return the settings of ``tune`` with defaults.

    Raises:
        ConfigError: A setting is unknown or invalid.
    """
    given = {} if given is None else given
    require("tune", given, TuneSettings)
    merged = {**TUNE_DEFAULTS, **given}
    merged["scheduler"] = _check_scheduler(merged["scheduler"])
    if merged["scheduler"] is not None:
        _check_order(merged)
    if is_pbt(merged):
        _check_pbt(merged, given)
    return merged


def is_pbt(tune: dict[str, Any]) -> bool:
    """Return True if the scheduler is PBT, whose trials copy one another."""
    return (tune["scheduler"] or {}).get("name") == "pbt"


def check_search(tune: dict[str, Any], resolved: dict[str, Any]) -> None:
    """Check that the scheduler suits the search spaces of the recipe.

    Raises:
        ConfigError: PBT cannot change a searched setting, or has fewer than two trials.
    """
    if tune["scheduler"] is not None and not is_pbt(tune):
        _check_asha(tune["scheduler"], resolved)
    if not is_pbt(tune):
        return
    paths = paths_searched(resolved)
    for path in paths:
        _check_mutable(path, resolved)
    if not paths:
        raise ConfigError(
            "tune.scheduler: pbt requires at least one setting with a search space. "
            "Give e.g. training.lr={loguniform: [1e-5, 1e-3]}."
        )
    population = num_trials(tune, resolved)
    if population < 2:
        raise ConfigError(
            f"tune.num_samples={tune['num_samples']} gives pbt a population of one; it "
            "needs at least two. Set e.g. num_samples: 4."
        )
    limit = tune["max_concurrent_trials"]
    if limit is not None and limit < population:
        raise ConfigError(
            f"tune.max_concurrent_trials={limit} with pbt must be at least the "
            f"population of {population}, otherwise the remaining trials would start "
            "only when the first have ended. Remove it; pbt pauses trials that do not "
            "fit on the machine."
        )


def paths_searched(resolved: dict[str, Any]) -> list[str]:
    """Return the dotted paths of a recipe's search spaces."""
    return search_spaces.paths_of_spaces(
        {k: v for k, v in resolved.items() if k != "tune"}
    )


def num_trials(tune: dict[str, Any], resolved: dict[str, Any]) -> int:
    """Return the number of trials of a recipe."""
    return tune["num_samples"] * math.prod(search_spaces.grid_sizes(resolved))


def _check_scheduler(given: Any) -> dict[str, Any] | None:
    if given is None:
        return None
    given = {"name": given} if isinstance(given, str) else given
    name = given.get("name") if isinstance(given, dict) else None
    if not isinstance(name, str) or name not in SCHEDULERS:
        raise ConfigError(
            f"tune.scheduler={show(given)} must be one of {', '.join(SCHEDULERS)}, or "
            f"a mapping such as {{name: asha, grace_period: 2}}. "
            f"{suggestion(str(name), SCHEDULERS)}".rstrip()
        )
    require(f"tune.scheduler ({name})", given, _KINDS[name])
    return {"name": name, **SCHEDULERS[name], **given}


def _check_order(tune: dict[str, Any]) -> None:
    missing = [key for key in ("metric", "mode") if tune[key] is None]
    if missing:
        raise ConfigError(
            f"tune.scheduler compares trials, but tune.{missing[0]} is missing. Set "
            "e.g. metric: env_runners/episode_return_mean, mode: max."
        )


def _check_asha(asha: dict[str, Any], resolved: dict[str, Any]) -> None:
    longest = asha["max_t"] or (resolved.get("stop") or {}).get("training_iteration")
    if longest is None:
        raise ConfigError(
            "tune.scheduler: asha requires the maximum length of a trial. Set "
            "stop.training_iteration, or max_t of the scheduler."
        )
    if asha["grace_period"] > longest:
        raise ConfigError(
            f"tune.scheduler (asha).grace_period={asha['grace_period']} must be at "
            f"most {longest:g}, the iterations of the longest trial."
        )


def _check_pbt(merged: dict[str, Any], given: dict[str, Any]) -> None:
    if "num_to_keep" not in given:
        merged["num_to_keep"] = _PBT_TO_KEEP
    kept = merged["num_to_keep"]
    if kept is not None and kept < _PBT_TO_KEEP:
        raise ConfigError(
            f"tune.num_to_keep={kept} with pbt must be at least {_PBT_TO_KEEP}, or "
            "null "
            "(all), otherwise a checkpoint may be deleted before another trial copies "
            "it."
        )


def _check_mutable(path: str, resolved: dict[str, Any]) -> None:
    if path == "seed":
        raise ConfigError(
            "tune.scheduler: pbt cannot search the seed, since a trial that copies "
            "another takes its seed too. Start one run per seed."
        )
    if path not in MUTABLE:
        raise ConfigError(
            f"tune.scheduler: pbt cannot change {path}, because it shapes the "
            "checkpoint "
            "or is stored in it, and trials copy checkpoints. Search over "
            f"{', '.join(MUTABLE)}, or use asha."
        )
    if path == "training.ref_kl_coeff":
        space = search_spaces.at_path(resolved, path)
        if 0 in search_spaces.arguments_of(space):
            raise ConfigError(
                f"training.ref_kl_coeff={space!r} with pbt must not contain 0: a trial "
                "without a reference model cannot load the checkpoint of one that has "
                "it. Use a small value, e.g. 1e-4."
            )
        if resolved["training"].get("ref_kl_target") is not None:
            raise ConfigError(
                "pbt cannot search training.ref_kl_coeff together with ref_kl_target, "
                "which adapts it. Remove one of them."
            )
