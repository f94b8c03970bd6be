"""Mutated recipes and overrides: no traceback, no hang, no nonsense accepted."""

import collections

import pytest
from recipe_fuzz import Case, base_texts, nonsense_for, outcome

from rllib_llm.algorithms.config.schema import settings_of
from rllib_llm.algorithms.registry import ALGORITHMS
from rllib_llm.errors import ConfigError
from rllib_llm.recipes.recipe import recipe_from_dict

FEW, MANY = 100, 1000


@pytest.fixture(scope="module")
def bases():
    return base_texts()


def fuzz(numbers, bases, tmp_path):
    counted, failed = collections.Counter(), []
    for number in numbers:
        case = Case(number, bases)
        path = tmp_path / f"case_{number}.yaml"
        path.write_bytes(case.data)
        found = outcome(path, case.overrides)
        counted[found.partition(":")[0]] += 1
        if found.startswith("FAILED"):
            failed.append(f"case {number}, overrides {case.overrides}: {found}")
    assert not failed, "\n".join(failed)
    return counted


def test_bases_are_accepted(bases, tmp_path):
    for name, text in bases.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        assert outcome(path, []) == "accepted", name


def test_mutated_recipes_are_explained(bases, tmp_path):
    counted = fuzz(range(FEW), bases, tmp_path)
    assert counted["refused"] > FEW // 2


@pytest.mark.slow
def test_a_thousand_mutated_recipes_are_explained(bases, tmp_path):
    counted = fuzz(range(FEW, FEW + MANY), bases, tmp_path)
    assert counted["refused"] > MANY // 2 and counted["accepted"] > MANY // 50


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS.names())
def test_nonsense_is_never_accepted(algo):
    env = "secret_sum-v0" if algo == "MARFT" else "guess_number-v0"
    base = {"algo": algo, "env": env, "stop": {"training_iteration": 1}}
    for path, setting in settings_of(ALGORITHMS.get(algo).config_class()).items():
        for text in nonsense_for(setting.key, setting.default):
            with pytest.raises(ConfigError) as refused:
                recipe_from_dict(base, overrides=[f"{path}={text}"])
            assert setting.section in str(refused.value), (path, text)
