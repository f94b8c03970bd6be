"""Graders: functions that decide whether an answer is right; see docs/graders.md.

Graders never execute model-written code in the process that trains.
"""

from rllib_llm.graders.json_text import json_problem
from rllib_llm.graders.math_answers import MathGrader
from rllib_llm.graders.query_results import rows_match, set_match, values_match
from rllib_llm.graders.short_answers import (
    best_f1,
    exact_match,
    normalise,
    number_match,
    read_number,
    word_f1,
)
from rllib_llm.graders.unit_tests import Case, CaseReport, run_tests

__all__ = [
    "Case",
    "CaseReport",
    "MathGrader",
    "best_f1",
    "exact_match",
    "json_problem",
    "normalise",
    "number_match",
    "read_number",
    "rows_match",
    "run_tests",
    "set_match",
    "values_match",
    "word_f1",
]
