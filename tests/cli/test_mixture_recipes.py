"""The field ``env`` of a recipe as a mixture."""

import jsonschema
import pytest

from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.cli.env_argument import parse_env, parse_envs
from rllib_llm.errors import ConfigError
from rllib_llm.recipes.json_schema import recipe_schema
from rllib_llm.recipes.recipe import recipe_from_dict
from rllib_llm.yaml_io import dump

GUESS = {"env": "guess_number-v0", "env_config": {"upper": 7}}
LAKE = {"env": "frozen_lake-v0", "env_config": {"size": 3}}
SIZES = {"name": "threshold", "levels": [{"size": 3}, {"size": 4}]}


def data(*environments, **fields):
    return {
        "algo": "GRPO",
        "env": {"mixture": list(environments)},
        "language_model": {"model": "tiny"},
        "rollouts": {"episodes_per_iteration": 8, "group_size": 4},
        "stop": {"training_iteration": 1},
        **fields,
    }


def test_a_mixture_is_loaded_and_validated():
    recipe = recipe_from_dict(data(GUESS, {**LAKE, "weight": 2}))
    recipe.validate()
    members = recipe.build_config().mixture_members
    assert [(m.name, m.weight) for m in members] == [
        ("guess_number-v0", 1.0),
        ("frozen_lake-v0", 2.0),
    ]
    jsonschema.validate(recipe.resolved, recipe_schema())


def test_weights_can_be_searched():
    recipe = recipe_from_dict(
        data(GUESS, {**LAKE, "weight": {"grid": [1, 3]}}, tune={"metric": None})
    )
    recipe.validate()
    assert recipe.has_search
    with pytest.raises(ConfigError, match="weight=-3; it must be a finite number"):
        recipe_from_dict(data(GUESS, {**LAKE, "weight": {"grid": [1, -3]}})).validate()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"env": {"mixtures": []}}, "env: .* must be one name, or a mixture"),
        ({"env": {"mixture": []}}, "must be a list of two or more environments"),
        ({"env_config": {"size": 3}}, "env_config=.* would have no effect beside"),
    ],
)
def test_faults_are_named_when_the_recipe_is_loaded(fields, message):
    with pytest.raises(ConfigError, match=message):
        recipe_from_dict({**data(GUESS, LAKE), **fields})


@pytest.mark.parametrize(
    ("other", "fields", "message"),
    [
        ({"env": "frozen_lake-v9"}, {}, "mixture, frozen_lake-v9: Unknown environment"),
        ({"env": "secret_sum-v0"}, {}, "with one agent .* and with several"),
        (
            {**LAKE, "rewards": ["brevety"]},
            {},
            "mixture, frozen_lake-v0: Unknown reward",
        ),
        (
            {**LAKE, "curriculum": {**SIZES, "levels": [{"width": 3}]}},
            {},
            "mixture, frozen_lake-v0: curriculum 'threshold': .*'width'",
        ),
        (
            LAKE,
            {"rollouts": {"curriculum": SIZES, "group_size": 4}},
            "mixture, guess_number-v0: curriculum 'threshold': .*'size'",
        ),
        (
            {"env": "countdown-v0"},
            {"generation": {"head": "score"}},
            "'countdown-v0' after reset",
        ),
    ],
)
def test_faults_of_environments_are_named_before_training(other, fields, message):
    with pytest.raises(ConfigError, match=message):
        recipe_from_dict({**data(GUESS, other), **fields}).validate()


def test_self_play_refuses_a_mixture():
    games = [{"env": "open_spiel/kuhn_poker-v0"}, {"env": "dilemma-v0"}]
    recipe = {**data(*games), "algo": "SelfPlay"}
    with pytest.raises(ConfigError, match="results of one game, but env is a mixture"):
        recipe_from_dict(recipe).validate()


def test_environments_replace_components_of_the_run():
    rollouts = {"episodes_per_iteration": 8, "group_size": 4, "rewards": ["format"]}
    recipe = recipe_from_dict(
        data(GUESS, {**LAKE, "rewards": [], "curriculum": SIZES}, rollouts=rollouts)
    )
    components = DriverComponents(recipe.build_config()).by_environment
    guess, lake = components["guess_number-v0"], components["frozen_lake-v0"]
    assert guess.rewards.changes_anything and not lake.rewards.changes_anything
    assert guess.curriculum is None and lake.curriculum is not None


def test_the_command_line_reads_a_recipe(tmp_path, call):
    path = tmp_path / "mixed.yaml"
    path.write_text(dump(data(GUESS, {**LAKE, "weight": 2})))
    env, options = parse_env(str(path))
    assert env == "mixture" and len(options["environments"]) == 2
    assert parse_envs([str(path), "taxi-v0"]) == [
        ("guess_number-v0", {"upper": 7}),
        ("frozen_lake-v0", {"size": 3}),
        ("taxi-v0", {}),
    ]
    status, out, _ = call("train", path, "--dry-run")
    assert status == 0
    assert "a mixture of guess_number-v0 33%, frozen_lake-v0 67%" in out
    status, out, _ = call("check", path)
    assert status == 0 and "frozen_lake-v0: " in out
    status, _, err = call("check", path, "size=3")
    assert status == 1 and "a recipe, which has its environment's options" in err
