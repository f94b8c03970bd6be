"""docs/literature.md says of systems what is registered, shipped and valid."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rllib_llm.cli.main import app
from rllib_llm.components.registry import COMPONENTS
from rllib_llm.envs import TextEnv
from rllib_llm.errors import ConfigError
from rllib_llm.recipes import load_recipe, methods, shipped_recipes
from rllib_llm.recipes.methods import (
    components_of,
    load_methods,
    markdown,
    read_methods,
)
from rllib_llm.recipes.recipe import FIELDS

PAGE = Path(__file__).parents[2] / "docs" / "literature.md"
DATA = yaml.safe_load(Path(methods.__file__).with_name("methods.yaml").read_text())
ROWS = load_methods().rows
BY_CONFIG = [row for row in ROWS if row.state in ("by config", "text only")]
NUMBERS = {"A": 37, "B": 25, "C": 10, "D": 8, "E": 22, "F": 23, "G": 4, "H": 17, "I": 8}


def test_every_system_stands_once():
    expected = [f"{group}{i + 1}" for group, n in NUMBERS.items() for i in range(n)]
    assert [row.id for row in ROWS] == expected and len(expected) == 154
    assert len({row.system for row in ROWS}) == 154


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_every_piece_is_registered_and_every_recipe_shipped(row):
    for component in row.all_components():
        kind, _, name = component.partition(" ")
        assert name in COMPONENTS[kind]
    assert set(row.yaml) <= set(shipped_recipes())
    if row.state in ("works", "by config", "text only"):
        assert row.yaml and not row.lacks and row.envs()
    assert (row.state == "part two") == bool(row.lacks)


def test_examples_are_what_no_row_runs():
    examples = load_methods().examples
    assert {"frozen_lake_ppo", "kuhn_poker"} <= set(examples)
    assert "gigpo" not in examples
    assert list(examples) == sorted(examples)


def test_papers_of_pictures_and_screens_are_text_only_or_lack_them():
    """A text in the place of pictures, videos or screens is not what they did."""
    games = {"F5", "F7", "F8", "F11"}  # read pages as text, or robots
    lacking = {"screens", "pictures", "videos", "judging"}
    for row in ROWS:
        if row.group == "F" and row.id not in games:
            assert row.state == "text only" or lacking & set(row.lacks), row.id


def test_what_is_missing_is_not_there():
    """``stages`` and ``snapshot`` exist; no row may lack them."""
    missing = load_methods().missing
    assert "alternation" not in missing and hasattr(TextEnv, "snapshot")
    assert "restore" not in missing and "stages" in FIELDS


@pytest.mark.parametrize("row", BY_CONFIG, ids=lambda row: row.id)
def test_lines_by_config_are_valid(row):
    load_recipe(row.yaml[0], row.change).validate()


def test_pieces_are_read_from_recipes_with_defaults_and_inside_of_gates():
    gate = {"name": "gate", "levels": [{"when": "well_formed", "pay": ["f1"]}]}
    recipe = {"algo": "GRPO", "rollouts": {"rewards": [gate, {"name": "tiers"}]}}
    assert list(components_of(recipe)) == [
        "reward gate",
        "reward well_formed",
        "reward f1",
        "reward tiers",
        "reward evidence",
        "advantage_estimator group",
        "policy_loss ppo_clip",
    ]
    recipe = {"algo": "LLMPPO", "training": {"policy_loss": {"name": "cispo"}}}
    assert list(components_of(recipe)) == ["policy_loss cispo"]


def test_the_page_is_what_is_generated():
    page = PAGE.read_text(encoding="utf-8").partition("<!-- methods -->\n")[2]
    assert page.strip() == markdown().strip(), (
        "docs/literature.md is out of date. "
        "Replace what follows its '<!-- methods -->' "
        'by: python -c "from rllib_llm.recipes.methods import markdown; '
        'print(markdown())"'
    )


def test_list_shows_all_with_their_states():
    shown = CliRunner().invoke(app, ["list", "methods"])
    assert shown.exit_code == 0
    lines = shown.output.splitlines()[1:]
    assert len(lines) == 154
    for line, row in zip(lines, ROWS):
        assert f" {row.id} {row.system} " in line and row.state in line
        assert all(name in line for name in row.yaml)


WORKS = {"id": "A1", "system": "X", "state": "works", "yaml": ["gigpo"]}
LACKS = {"id": "A1", "system": "X", "state": "part two", "lacks": ["branching"]}


@pytest.mark.parametrize(
    "row, message",
    [
        ({**WORKS, "state": "work"}, "Did you mean 'works'"),
        ({**WORKS, "yaml": ["gigp"]}, "Did you mean 'gigpo'"),
        ({**WORKS, "lacks": ["branching"]}, "'lacks' has no place with 'works'"),
        ({**LACKS, "lacks": ["brunching"]}, "Did you mean 'branching'"),
        ({**LACKS, "components": ["advantage_estimator grup"]}, "Did you mean 'group'"),
        (
            {**LACKS, "components": ["advantage_estimators group"]},
            "Did you mean 'advantage_estimator'",
        ),
        ({**LACKS, "env": "sokobn-v0"}, "Did you mean 'sokoban-v0'"),
        ({"id": "A1", "system": "X", "state": "works"}, "needs 'yaml'"),
        ({**WORKS, "id": "Z1"}, "Z1: ids are a letter"),
        (
            {
                **WORKS,
                "state": "by config",
                "yaml": ["gigpo", "loop"],
                "change": ["a=1"],
            },
            "belongs to one recipe",
        ),
    ],
)
def test_faults_are_named(row, message):
    with pytest.raises(ConfigError, match=message):
        read_methods({**DATA, "methods": [row]})


def test_names_of_what_is_missing_must_be_missing():
    data = copy.deepcopy(DATA)
    data["methods"][0] = {**LACKS, "lacks": ["positive only"]}
    data["missing"]["positive only"] = "an advantage transform that is there"
    with pytest.raises(ConfigError, match="is a advantage_transform now"):
        read_methods(data)
    data = copy.deepcopy(DATA)
    data["missing"]["telepathy"] = "nobody lacks it"
    with pytest.raises(ConfigError, match="no row lacks 'telepathy'"):
        read_methods(data)
