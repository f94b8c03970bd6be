"""Grading of answers to reasoning-gym's questions without evaluating them.

Some of the library's scorers pass the model's text to ``eval`` or to SymPy, which
evaluates it, too; others can run forever. Tasks are graded here if possible, refused if
not, and otherwise graded by the library's scorers in a process that is killed after a
time limit. All scorers were reviewed in one version of the library; other versions are
refused.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import pickle
from collections.abc import Callable
from typing import Any

from rllib_llm.envs.arithmetic import (
    ExpressionError,
    evaluate,
    numbers_in,
    parse_expression,
)
from rllib_llm.errors import ConfigError, RLlibLLMError
from rllib_llm.graders.line_worker import LineWorker
from rllib_llm.graders.short_answers import number_match

READ_VERSION = "0.1.25"
MAX_CHARS = 4_000
_TIMEOUT_S = 5.0
_FULL = 1.0 - 1e-9

_EVALUATES = "its scorer evaluates the model's text, and there is no other grader"
REFUSED = {
    "codeio": "it runs programs whose outcome differs from run to run",
    "composite": "use one task per episode, in reset(options=...) or a curriculum",
    "intermediate_integration": _EVALUATES,
    "polynomial_multiplication": _EVALUATES,
    "simple_integration": _EVALUATES,
}

# The library compares these answers as texts, some only after an eval of the answer; in
# one task it accepts every answer.
_COMPARED = """
    acre aiw arc_1d base_conversion basic_arithmetic bf binary_alternation binary_matrix
    caesar_cipher count_bits count_primes course_schedule game_of_life_halting gcd
    isomorphic_strings largest_island lcm leg_counting letter_counting list_functions
    mahjong_puzzle maze modulo_grid number_filtering number_sequence ransom_note
    rotate_matrix rotten_oranges simple_equations simple_geometry spiral_matrix
    string_insertion string_manipulation string_splitting string_synthesis syllogism
    word_sequence_reversal
"""
# Scorers that evaluate nothing of the answer, according to a line-by-line review.
_SCORED = """
    ab advanced_geometry arc_agi bitwise_arithmetic boxnet calendar_arithmetic chain_sum
    circuit_logic color_cube_rotation complex_arithmetic cryptarithm decimal_arithmetic
    decimal_chain_sum dice emoji_mystery family_relationships figlet_font
    fraction_simplification futoshiki game_of_life graph_color group_anagrams
    gsm_symbolic jugs kakurasu knight_swap knights_knaves letter_jumble
    manipulate_matrix mini_sudoku needle_haystack number_format number_sorting
    palindrome_generation palindrome_partitioning path_star polynomial_equations
    pool_matrix power_function prime_factorization products propositional_logic
    quantum_lock rearc rectangle_count rubiks_cube rush_hour self_reference
    sentence_reordering shortest_path sokoban spell_backward sudoku survo time_intervals
    tower_of_hanoi tsumego word_ladder word_sorting zebra_puzzles
"""
SCORED = frozenset(_SCORED.split())
# Scorers that accept NaN as a right answer.
_ACCEPTS_NAN = ("complex_arithmetic", "number_sorting")


class ScorerError(RLlibLLMError):
    """The worker failed twice; the answer is neither right nor wrong."""


# One for all environments of a process, started at the first question.
_WORKER = LineWorker("rllib_llm.envs.adapters.reasoning_worker", ScorerError)


def grade(
    task: str, settings: dict[str, Any], instance: dict[str, Any], answer: str
) -> float:
    """Return the score of an answer, in [0, 1]; 1 is right.

    Args:
        task: A name of :func:`gradable`.
        settings: The library's settings of the task.
        instance: The library's question.
        answer: The model's text. Answers beyond ``MAX_CHARS`` characters are wrong.

    Raises:
        ScorerError: If the worker failed twice.
    """
    if len(answer) > MAX_CHARS:
        return 0.0
    if task in _GRADERS:
        return float(_GRADERS[task](answer, instance))
    if task in _ACCEPTS_NAN and "nan" in answer.lower():
        return 0.0
    question = json.dumps([task, _packed(settings), _packed(instance), answer])
    reply = _WORKER.ask(question, _TIMEOUT_S)
    score = None if reply is None else json.loads(reply)  # None: time limit
    # The library's scores may be NaN or leave [0, 1].
    score = 0.0 if score is None or math.isnan(score) else min(max(score, 0.0), 1.0)
    return 1.0 if score >= _FULL else score


def gradable() -> frozenset[str]:
    """Return the names of all tasks that can be graded."""
    return SCORED | set(_GRADERS)


def check_gradable(task: str) -> None:
    """Check that answers to a task can be graded without evaluating them.

    Raises:
        ConfigError: If not, with the reason.
    """
    if task in REFUSED:
        raise ConfigError(f"task={task!r} is not supported: {REFUSED[task]}.")


def _same_text(answer: str, instance: dict[str, Any]) -> bool:
    return _tidy(answer) == _tidy(instance["answer"])


def _is_valid_board(answer: str, instance: dict[str, Any]) -> bool:
    return _tidy(answer) in map(_tidy, instance["metadata"]["valid_answers"])


def _reaches_target(answer: str, instance: dict[str, Any]) -> bool:
    facts = instance["metadata"]
    return _computes(answer, facts["numbers"], facts["target"])


def _makes_24(answer: str, instance: dict[str, Any]) -> bool:
    return _computes(answer, instance["metadata"]["numbers"], 24)


def _same_probability(answer: str, instance: dict[str, Any]) -> bool:
    # Fractions such as 21/32; all other answers must be decimal numbers.
    with contextlib.suppress(ExpressionError, ZeroDivisionError, OverflowError):
        answer = str(float(evaluate(parse_expression(answer))))
    return number_match(answer, instance["answer"], 1e-4)


def _computes(answer: str, numbers: list[int], target: int) -> bool:
    try:
        tree = parse_expression(answer)
        return numbers_in(tree) == sorted(numbers) and evaluate(tree) == target
    except (ExpressionError, ZeroDivisionError):
        return False


def _packed(what: dict[str, Any]) -> str:
    return base64.b64encode(pickle.dumps(what)).decode()


def _tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


_GRADERS: dict[str, Callable[[str, dict[str, Any]], bool]] = {
    **dict.fromkeys(_COMPARED.split(), _same_text),
    "coin_flip": _same_probability,
    "countdown": _reaches_target,
    "n_queens": _is_valid_board,
    "puzzle24": _makes_24,
}
