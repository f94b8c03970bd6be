"""The ``tune`` section: how many trials, which scheduler, which settings it changes."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypedDict

from annotated_types import Ge, Gt, Interval

from rllib_llm.algorithms.config.sections import suggestion
from rllib_llm.errors import ConfigError
from rllib_llm.recipes import spaces
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
    """Settings of ``tune``; missing ones take ``TUNE_DEFAULTS``."""

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
        float, Gt(1), Hint("Of the trials at a rung, one in so many goes on.")
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
# Settings of each scheduler; None: decided by the recipe.
SCHEDULERS: dict[str, dict[str, Any]] = {
    "asha": {"grace_period": 1, "reduction_factor": 4, "max_t": None},
    "pbt": {
        "perturbation_interval": 5,
        "quantile_fraction": 0.25,
        "resample_probability": 0.25,
        "burn_in_period": 0,
    },
}
# What an algorithm that goes on from another's checkpoint takes from its own config.
# Everything else shapes the checkpoint, or is kept in it.
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
        ConfigError: For an unknown or impossible setting.
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
    """Whether trials copy one another while they train."""
    return (tune["scheduler"] or {}).get("name") == "pbt"


def check_search(tune: dict[str, Any], resolved: dict[str, Any]) -> None:
    """Hold the scheduler against the search spaces of a whole recipe.

    Raises:
        ConfigError: If population based training could not change a setting, or has no
            population.
    """
    if tune["scheduler"] is not None and not is_pbt(tune):
        _check_asha(tune["scheduler"], resolved)
    if not is_pbt(tune):
        return
    found = paths_searched(resolved)
    for path in found:
        _check_mutable(path, resolved)
    if not found:
        raise ConfigError(
            "tune.scheduler: pbt changes the settings that have search spaces, and "
            "none has. Give e.g. training.lr={loguniform: [1e-5, 1e-3]}."
        )
    population = num_trials(tune, resolved)
    if population < 2:
        raise ConfigError(
            f"tune.num_samples={tune['num_samples']} with pbt is a population of one. "
            "Set e.g. num_samples: 4."
        )
    most = tune["max_concurrent_trials"]
    if most is not None and most < population:
        raise ConfigError(
            f"tune.max_concurrent_trials={most} with pbt must not be below the "
            f"population of {population}: later trials would begin when the first have "
            "ended. Leave it out; trials take turns on the machine they have."
        )


def paths_searched(resolved: dict[str, Any]) -> list[str]:
    """Return the dotted paths of a recipe's search spaces."""
    return spaces.paths_of_spaces({k: v for k, v in resolved.items() if k != "tune"})


def num_trials(tune: dict[str, Any], resolved: dict[str, Any]) -> int:
    """Return how many trials a recipe makes."""
    return tune["num_samples"] * math.prod(spaces.grid_sizes(resolved))


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
            "tune.scheduler: asha needs to know how long a trial may become. Set "
            "stop.training_iteration, or max_t of the scheduler."
        )
    if asha["grace_period"] > longest:
        raise ConfigError(
            f"tune.scheduler (asha).grace_period={asha['grace_period']} must not be "
            f"above the longest trial's {longest:g} iterations."
        )


def _check_pbt(merged: dict[str, Any], given: dict[str, Any]) -> None:
    if "num_to_keep" not in given:
        merged["num_to_keep"] = _PBT_TO_KEEP
    kept = merged["num_to_keep"]
    if kept is not None and kept < _PBT_TO_KEEP:
        raise ConfigError(
            f"tune.num_to_keep={kept} with pbt must be at least {_PBT_TO_KEEP}, or "
            "null: a checkpoint may be deleted before another trial has copied it."
        )


def _check_mutable(path: str, resolved: dict[str, Any]) -> None:
    if path == "seed":
        raise ConfigError(
            "seed cannot be searched with tune.scheduler: pbt: a trial that copies "
            "another takes its seed, too. Start one run per seed."
        )
    if path not in MUTABLE:
        raise ConfigError(
            f"tune.scheduler: pbt cannot change {path}: a trial goes on from another's "
            f"checkpoint, which {path} shapes or is kept in. Search over "
            f"{', '.join(MUTABLE)}; for other settings use asha."
        )
    if path == "training.ref_kl_coeff":
        space = spaces.at_path(resolved, path)
        if 0 in spaces.arguments_of(space):
            raise ConfigError(
                f"training.ref_kl_coeff={space!r} with pbt must not "
                "hold 0: trials without a reference model cannot go on from a "
                "checkpoint of one that has it. Use a small value, e.g. 1e-4."
            )
        if resolved["training"].get("ref_kl_target") is not None:
            raise ConfigError(
                "training.ref_kl_coeff cannot be searched with pbt beside "
                "ref_kl_target, which steers it. Take one of them away."
            )
