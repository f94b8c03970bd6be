"""docs/literature.md agrees with its data, the registries and the shipped recipes."""

from __future__ import annotations

import copy
import re
from collections import Counter

import literature
import pytest
from literature import (
    components_of,
    envs_of,
    load_methods,
    markdown,
    read_methods,
)

from rllib_llm import yaml_io
from rllib_llm.components.registry import COMPONENTS
from rllib_llm.envs import TextEnv
from rllib_llm.errors import ConfigError
from rllib_llm.recipes import load_recipe, shipped_recipes
from rllib_llm.recipes.recipe import FIELDS

DATA = yaml_io.read(literature.DATA)
ROWS = load_methods().rows
BY_CONFIG = [row for row in ROWS if row.change]
NUMBERS = {"A": 37, "B": 25, "C": 10, "D": 8, "E": 22, "F": 23, "G": 4, "H": 17, "I": 8}


def test_every_method_has_one_row():
    expected = [f"{group}{i + 1}" for group, n in NUMBERS.items() for i in range(n)]
    assert [row.id for row in ROWS] == expected and len(expected) == 154
    assert len({row.name for row in ROWS}) == 154


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_components_are_registered_and_recipes_shipped(row):
    for component in row.all_components():
        kind, _, name = component.partition(" ")
        assert name in COMPONENTS[kind]
    assert set(row.yaml) <= set(shipped_recipes())
    if row.state in ("works", "by config", "scripted", "text only"):
        assert row.yaml and not row.lacks and row.envs()
    assert (row.state == "incomplete") == bool(row.lacks)


def test_examples_are_the_recipes_without_a_row():
    examples = load_methods().examples
    assert {"frozen_lake_ppo", "kuhn_poker"} <= set(examples)
    assert "gigpo" not in examples
    assert list(examples) == sorted(examples)


def test_papers_on_pictures_and_screens_are_text_only_or_incomplete():
    """Replacing pictures, videos or screens by text does not reproduce a paper."""
    exempt = {"F5", "F7", "F8", "F11"}  # papers on robots, or on pages as text
    exempt |= {"F9"}  # whose preset shows pictures
    lacking = {"screens", "pictures", "videos", "judging"}
    for row in ROWS:
        if row.group == "F" and row.id not in exempt | shown_in_pictures():
            assert row.state == "text only" or lacking & set(row.lacks), row.id


def shown_in_pictures():
    """Return the rows whose recipes all have an environment of pictures."""

    def has_pictures(recipe):
        screen = recipe.get("env_config", {}).get("mode") == "screen"
        return screen or any("_pictures-" in name for name in envs_of(recipe))

    rows = (row for row in ROWS if row.yaml)
    return {row.id for row in rows if all(map(has_pictures, row.recipes()))}


def test_rows_on_pictures_differ_from_those_in_text():
    assert {"F2", "F19"} <= shown_in_pictures()
    assert not {"A1", "D4", "F13", "F20"} & shown_in_pictures()


def test_a_script_in_the_place_of_a_model_is_a_state_of_its_own():
    """No count mixes these rows with those whose every part is there."""
    for row in ROWS:
        if row.state in ("works", "by config"):
            assert "in the judge's place" not in row.note, row.id
    assert {row.id for row in ROWS if row.state == "scripted"} >= {"A19", "B19", "E13"}


def test_existing_features_are_not_missing():
    """Stages (alternation) and snapshots (restore) exist, so no row may lack them."""
    missing = load_methods().missing
    assert "alternation" not in missing and hasattr(TextEnv, "snapshot")
    assert "restore" not in missing and "stages" in FIELDS
    assert not {"preferences", "data files"} & set(missing)


@pytest.mark.parametrize("row", BY_CONFIG, ids=lambda row: row.id)
def test_overrides_of_rows_are_valid(row):
    load_recipe(row.yaml[0], row.change).validate()


def test_components_of_a_recipe_include_defaults_and_nested_ones():
    gate = {"name": "gate", "levels": [{"when": "well_formed", "reward": ["f1"]}]}
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


def test_the_page_is_up_to_date():
    page = literature.PAGE.read_text(encoding="utf-8")
    assert page.partition(literature.MARKER)[2].strip() == markdown().strip(), (
        "docs/literature.md is out of date. Run: python scripts/literature.py"
    )


def test_the_readme_counts_the_rows_that_run():
    readme = (literature.PAGE.parents[1] / "README.md").read_text(encoding="utf-8")
    run, others = re.search(
        r": (\d+) of the\s+\[entries of the literature\]\S+ run, (\d+) more", readme
    ).groups()
    states = Counter(row.state for row in ROWS)
    assert int(run) == states["works"] + states["by config"]
    assert int(others) == states["text only"] + states["scripted"]


def test_writing_keeps_the_prose_of_the_page(tmp_path, monkeypatch):
    page = tmp_path / "literature.md"
    page.write_text(f"# Title\n\n{literature.MARKER}\nold rows\n")
    monkeypatch.setattr(literature, "PAGE", page)
    literature.write_page()
    assert page.read_text() == f"# Title\n\n{literature.MARKER}\n{markdown()}"


WORKS = {"id": "A1", "name": "X", "state": "works", "yaml": ["gigpo"]}
LACKS = {"id": "A1", "name": "X", "state": "incomplete", "lacks": ["hidden artefacts"]}


@pytest.mark.parametrize(
    "row, message",
    [
        ({**WORKS, "state": "work"}, "Did you mean 'works'"),
        ({**WORKS, "yaml": ["gigp"]}, "Did you mean 'gigpo'"),
        ({**WORKS, "lacks": ["hidden artefacts"]}, "'works' does not allow 'lacks'"),
        ({"id": "A1", "name": "X", "state": "scripted"}, "requires 'yaml'"),
        ({**LACKS, "lacks": ["hidden artefcts"]}, "Did you mean 'hidden artefacts'"),
        ({**LACKS, "components": ["advantage_estimator grup"]}, "Did you mean 'group'"),
        (
            {**LACKS, "components": ["advantage_estimators group"]},
            "Did you mean 'advantage_estimator'",
        ),
        ({**LACKS, "env": "sokobn-v0"}, "Did you mean 'sokoban-v0'"),
        ({"id": "A1", "name": "X", "state": "works"}, "requires 'yaml'"),
        ({**WORKS, "id": "Z1"}, "Z1: an id is a letter"),
        (
            {
                **WORKS,
                "state": "by config",
                "yaml": ["gigpo", "loop"],
                "change": ["a=1"],
            },
            "requires exactly one recipe",
        ),
    ],
)
def test_invalid_rows_are_rejected(row, message):
    with pytest.raises(ConfigError, match=message):
        read_methods({**DATA, "methods": [row]})


def test_missing_names_are_unregistered_and_used():
    data = copy.deepcopy(DATA)
    data["methods"][0] = {**LACKS, "lacks": ["positive only"]}
    data["missing"]["positive only"] = "an advantage transform that is there"
    with pytest.raises(ConfigError, match="is a advantage_transform now"):
        read_methods(data)
    data = copy.deepcopy(DATA)
    data["missing"]["telepathy"] = "nobody lacks it"
    with pytest.raises(ConfigError, match="no row lacks 'telepathy'"):
        read_methods(data)
