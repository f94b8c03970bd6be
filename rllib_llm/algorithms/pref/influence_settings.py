"""The setting ``influence`` of Pref, and its checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.errors import ConfigError
from rllib_llm.schema import PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from rllib_llm.algorithms.pref.pref_config import PrefConfig


class InfluenceGiven(TypedDict, total=False):
    """Weight of influence, tasks it is measured on, and length of the step."""

    weight: PositiveFloat
    validation_tasks: PositiveInt
    step_size: PositiveFloat


INFLUENCE_DEFAULTS: InfluenceGiven = {
    "weight": 0.5,
    "validation_tasks": 8,
    "step_size": 0.01,
}


def validate_influence(config: PrefConfig) -> None:
    """Check that influence can be measured and is read.

    Raises:
        ConfigError: With the value, the rule, and the remedy.
    """
    if config.match != "step":
        why = f"match={config.match!r} reads no values of turns. Use match='step'."
        refuse_without_effect(config, ("influence",), why)
    if config.influence is None:
        return
    given = f"influence={config.influence!r}"
    if config.sharding is not None:
        raise ConfigError(
            f"{given} moves whole parameters and restores them, but "
            f"learners.sharding={config.sharding!r} keeps parts of them. Leave one of "
            "the two out."
        )
    for module_id in config.trained_module_ids:
        policy = config.get_config_for_module(module_id)
        for name, value, exact in (
            ("dtype", policy.lm_dtype, "float32"),
            ("autocast", policy.lm_autocast, None),
        ):
            if value != exact:
                raise ConfigError(
                    f"{given} compares losses before and after a small step, which "
                    f"language_model.{name}={value!r} would round away. Use {exact}, "
                    "or leave influence out."
                )
