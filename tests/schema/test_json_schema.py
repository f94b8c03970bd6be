"""JSON Schema of recipes: what editors complete and refuse is what the loader does."""

import copy
import json
from pathlib import Path

import jsonschema
import pytest

from rllib_llm import yaml_io
from rllib_llm.algorithms.config.schema import settings_of
from rllib_llm.algorithms.registry import ALGORITHMS
from rllib_llm.recipes.json_schema import recipe_schema, recipe_schema_text

EXAMPLES = sorted(Path("tuned_examples").resolve().rglob("*.yaml"))
RECIPE = {"algo": "GRPO", "env": "frozen_lake-v0", "stop": {"training_iteration": 3}}


@pytest.fixture(scope="module")
def validator():
    schema = json.loads(recipe_schema_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_tuned_example_is_valid(validator, path):
    data = yaml_io.read(path)
    problems = [f"{e.json_path}: {e.message}" for e in validator.iter_errors(data)]
    assert not problems, problems


@pytest.mark.parametrize(
    "change",
    [
        {"algo": "GRPOO"},
        {"trainig": {}},
        {"training": {"lrr": 1e-3}},
        {"training": {"lr": "fast"}},
        {"training": {"clip_param": -1}},
        {"generation": {"max_new_tokens": 1.5}},
        {"generation": {"max_new_tokens": 0}},
        {"language_model": {"lora": {"rank": 0}}},
        {"language_model": {"lora": {"rnk": 4}}},
        {"training": {"lr": {"gird": [1, 2]}}},
        {"tune": {"mode": "most"}},
        {"stop": {"training_iteration": "ten"}},
        {"league": {}},  # self-play's section
    ],
    ids=str,
)
def test_mistakes_are_refused(validator, change):
    assert validator.is_valid(RECIPE)
    assert not validator.is_valid({**copy.deepcopy(RECIPE), **change})


@pytest.mark.parametrize(
    "change",
    [
        {"training": {"lr": {"loguniform": [1e-4, 1e-2]}}},
        {"language_model": {"lora": {"rank": {"grid": [4, 8]}}}},
        {"seed": {"grid": [0, 1]}, "tune": {"num_samples": 2}},
        {"env": "my_module:MyGame"},
        {"env_config": {"anything": [1]}},
    ],
    ids=str,
)
def test_search_spaces_and_own_names_are_accepted(validator, change):
    assert validator.is_valid({**RECIPE, **change})


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_setting_of_every_algorithm_is_described(name):
    schema = recipe_schema()
    special = {
        rule["if"]["properties"]["algo"]["const"]: rule["then"]["properties"]
        for rule in schema["allOf"]
    }
    for setting in settings_of(ALGORITHMS.get(name).config_class()).values():
        sections = schema["properties"] | special[name]
        entry = sections[setting.section]["properties"][setting.key]
        if setting.doc:
            assert setting.doc.split("``")[0][:20] in entry["description"]


def test_the_command_writes_it(tmp_path, capsys):
    from rllib_llm.cli.main import main

    for arguments in (["schema", "--out", str(tmp_path / "a.json")], ["schema"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert not ended.value.code
    assert (tmp_path / "a.json").read_text() == capsys.readouterr().out


def test_the_schema_is_the_same_in_every_process():
    assert " object at 0x" not in recipe_schema_text()
