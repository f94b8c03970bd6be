"""Validation of settings against type annotations with ranges and choices."""

from rllib_llm.schema.annotations import (
    Fraction,
    Hint,
    InfinityAllowed,
    NonNegativeFloat,
    NonNegativeInt,
    OneOf,
    PositiveFloat,
    PositiveInt,
    Rule,
    SubclassOf,
)
from rllib_llm.schema.checking import (
    Problem,
    find_problem,
    hints_of,
    is_number,
    refuse,
    require,
)
from rllib_llm.schema.describing import bounds_of, choices_of, describe, show

__all__ = [
    "Fraction",
    "Hint",
    "InfinityAllowed",
    "NonNegativeFloat",
    "NonNegativeInt",
    "OneOf",
    "PositiveFloat",
    "PositiveInt",
    "Problem",
    "Rule",
    "SubclassOf",
    "bounds_of",
    "choices_of",
    "describe",
    "find_problem",
    "hints_of",
    "is_number",
    "refuse",
    "require",
    "show",
]
