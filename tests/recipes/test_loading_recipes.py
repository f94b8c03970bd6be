"""Recipes are strict: names and types of all fields are checked."""

from __future__ import annotations

import pytest

from rllib_llm import yaml_io
from rllib_llm.algorithms.config.sections import SECTIONS, section_keys
from rllib_llm.errors import ConfigError, MissingExtraError
from rllib_llm.recipes import load_recipe, recipe_from_dict, shipped_recipes
from rllib_llm.recipes.expectations import check_expectations, judge
from rllib_llm.recipes.overrides import apply_overrides

MINIMAL = {
    "algo": "LLMPPO",
    "env": "guess_number-v0",
    "stop": {"training_iteration": 2},
}


def recipe(*overrides, **fields):
    return recipe_from_dict({**MINIMAL, **fields}, overrides=overrides)


# YAML ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, value",
    [
        ("5e-5", 5e-5),
        ("1E3", 1000.0),
        ("+.5e1", 5.0),
        ("-2.5e-1", -0.25),
        ("3.", 3.0),
        ("1e", "1e"),
        ("e5", "e5"),
        ("v1e5x", "v1e5x"),
        ("7", 7),
    ],
)
def test_numbers_are_read_as_yaml_1_2_does(text, value):
    got = yaml_io.parse(f"x: {text}", "test")["x"]
    assert got == value and type(got) is type(value)


def test_duplicate_keys_are_rejected():
    with pytest.raises(ConfigError, match="'lr' occurs twice \\(line 3\\)"):
        yaml_io.parse("training:\n  lr: 1\n  lr: 2\n", "test")


def test_broken_yaml_names_the_file(tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text("algo: [")
    with pytest.raises(ConfigError, match="broken.yaml is not valid YAML"):
        load_recipe(path)


# Strictness ----------------------------------------------------------------------


def test_sections_set_what_the_fluent_methods_set():
    config = recipe(
        env_config={"upper": 7},
        language_model={"model": "tiny", "lora": {"rank": 4}},
        generation={"max_new_tokens": 5},
        rollouts={"episodes_per_iteration": 12, "group_size": 3},
        sft={"demonstrations": 9},
        training={"lr": 2e-5, "lambda_token": 0.9, "lambda_": 0.8, "num_epochs": 3},
        env_runners={"num_envs_per_env_runner": 6},
        evaluation={"evaluation_interval": 4},
        fault_tolerance={"max_num_env_runner_restarts": 2},
        seed=5,
    ).config
    assert config.env_config == {"upper": 7} and config.seed == 5
    assert config.lm_lora == {"rank": 4} and config.max_new_tokens == 5
    assert (config.episodes_per_iteration, config.group_size) == (12, 3)
    assert config.sft_demonstrations == 9
    assert (config.lr, config.lambda_token, config.lambda_) == (2e-5, 0.9, 0.8)
    assert config.num_epochs == 3 and config.num_envs_per_env_runner == 6
    assert config.evaluation_interval == 4
    assert config.max_num_env_runner_restarts == 2


@pytest.mark.parametrize("section", SECTIONS)
def test_an_unknown_key_lists_the_keys_of_its_section(section):
    names = {"league": "SelfPlay", "data": "SFT", "replay": "GRPO"}
    algo = {"algo": names[section]} if section in names else {}
    with pytest.raises(ConfigError) as error:
        recipe(**algo, **{section: {"qqqq": 1}})
    assert f"{section}.qqqq" in str(error.value)
    for key in section_keys(type(recipe(**algo).config), section):
        assert key in str(error.value)


def test_a_misspelt_key_is_recognised():
    with pytest.raises(ConfigError, match="Did you mean 'clip_param'"):
        recipe(training={"clip_parm": 0.1})


def test_keys_of_all_base_classes_are_valid():
    keys = section_keys(type(recipe().config), "training")
    # LLMPPOConfig, LLMConfigMixin, PPOConfig, AlgorithmConfig.
    assert {"gamma_token", "critic_lr", "clip_param", "gamma"} <= set(keys)
    # Deprecated by RLlib.
    assert not {"num_sgd_iter", "vf_share_layers"} & set(keys)


@pytest.mark.parametrize(
    "section, key, remedy",
    [
        ("training", "train_batch_size_per_learner", "episodes_per_iteration"),
        ("env_runners", "rollout_fragment_length", "episodes_per_iteration"),
        ("training", "model", "language_model.model"),
    ],
)
def test_settings_without_effect_are_refused(section, key, remedy):
    with pytest.raises(ConfigError, match=f"no effect.*{remedy}"):
        recipe(**{section: {key: 1}})


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"trainng": {}}, "Did you mean 'training'"),
        ({"algo": "LLMPO"}, "Did you mean 'LLMPPO'"),
        ({"algo": None}, "'algo' is missing"),
        ({"env": None}, "'env' is missing"),
        ({"stop": None}, "'stop' is missing"),
        ({"stop": {"training_iteration": "ten"}}, "must be a number"),
        ({"training": [1]}, "must be a mapping"),
        ({"training": {5: 1}}, "the key 5 must be the name of a setting"),
        ({"env_config": 3}, "must be a mapping"),
        ({"tune": {"num_sample": 2}}, "Did you mean 'num_samples'"),
        ({"tune": {"mode": "best"}}, "must be one of min, max or None"),
        ({"expect": {"x": "high"}}, "must be a number"),
        ({"expect": {"x": {"least": 1}}}, "expect.x has no setting 'least'"),
    ],
)
def test_invalid_fields_are_rejected(fields, message):
    with pytest.raises(ConfigError, match=message):
        recipe(**fields)


def test_objects_are_named_by_module(monkeypatch):
    path = "ray.rllib.core.learner.learner:Learner"
    config = recipe(learners={"learner_class": path}).config
    assert config.learner_class.__name__ == "Learner"
    with pytest.raises(ConfigError, match="cannot be imported"):
        recipe(learners={"learner_class": "no_such_module:X"})


def test_validate_builds_the_environment():
    with pytest.raises(ConfigError, match="Did you mean 'upper'"):
        recipe(env_config={"uper": 3}).validate()
    with pytest.raises(ConfigError, match="Did you mean 'guess_number-v0'"):
        recipe(env="guess_numbr-v0").validate()
    with pytest.raises(ConfigError, match="Try episodes_per_iteration=63"):
        recipe(rollouts={"group_size": 7}).validate()


# Names ---------------------------------------------------------------------------


def test_unknown_recipes_are_suggested():
    with pytest.raises(ConfigError, match="Did you mean 'frozen_lake_ppo'"):
        load_recipe("frozen_lake_pp")
    with pytest.raises(ConfigError, match="does not exist.*'frozen_lake_ppo'"):
        load_recipe("elsewhere/frozen_lake_ppo.yaml")


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipes_are_sound(name):
    loaded = load_recipe(name)
    assert loaded.name == name
    assert loaded.description and all(s.total_iterations for s in loaded.stages)
    # What was measured can be expected again; what was not says so.
    says = shipped_recipes()[name].read_text()
    assert any(s.expect for s in loaded.stages) != ("Not measured" in says)
    try:
        loaded.validate()
    except MissingExtraError as error:
        pytest.skip(str(error))


# Overrides -----------------------------------------------------------------------


def test_overrides_win_and_are_yaml():
    loaded = recipe(
        "training.lr=2e-5",
        "seed=3",
        "env_config.upper=7",
        "stop.env_runners/episode_return_mean=0.9",
        "language_model.lora.rank=8",
        training={"lr": 1.0, "gamma": 0.5},
    )
    assert loaded.config.lr == 2e-5 and loaded.config.gamma == 0.5
    assert loaded.config.seed == 3 and loaded.config.env_config == {"upper": 7}
    assert loaded.stop["env_runners/episode_return_mean"] == 0.9
    assert loaded.config.lm_lora == {"rank": 8}
    assert loaded.resolved["training"] == {"lr": 2e-5, "gamma": 0.5}


@pytest.mark.parametrize("override", ["training.lr", "=3", "a..b=1", "algo.x=1"])
def test_faulty_overrides_are_refused(override):
    with pytest.raises(ConfigError, match="override"):
        recipe(override)


def test_overrides_do_not_change_their_source():
    data = {"training": {"lr": 1}}
    assert apply_overrides(data, ["training.lr=2"]) == {"training": {"lr": 2}}
    assert data == {"training": {"lr": 1}}


# RLlib's flat YAML ---------------------------------------------------------------


def test_rllib_yaml_loads():
    loaded = recipe_from_dict(
        {
            "my-run": {
                "env": "guess_number-v0",
                "run": "LLMPPO",
                "num_samples": 2,
                "checkpoint_config": {
                    "checkpoint_frequency": 5,
                    "checkpoint_at_end": True,
                },
                "stop": {"training_iteration": 4},
                "config": {
                    "framework": "torch",
                    "env_config": {"upper": 7},
                    "lr": {"grid_search": [1e-3, 1e-4]},
                    "lambda": 0.9,
                    "num_sgd_iter": 3,
                    "num_workers": 2,
                    "evaluation_interval": 5,
                    "max_new_tokens": 9,
                    "sft_demonstrations": 10,
                    "lm_model": "tiny",
                    "seed": 1,
                },
            }
        }
    )
    assert (loaded.name, loaded.algo) == ("my-run", "LLMPPO")
    assert loaded.tune["num_samples"] == 2
    assert loaded.tune["checkpoint_frequency"] == 5
    config = loaded.config
    assert config.lr == {"grid_search": [1e-3, 1e-4]}
    assert (config.lambda_, config.num_epochs, config.num_env_runners) == (0.9, 3, 2)
    assert (config.evaluation_interval, config.max_new_tokens) == (5, 9)
    assert config.sft_demonstrations == 10 and config.seed == 1
    assert config.env_config == {"upper": 7}
    # What it became is a recipe in sections, which loads to the same config.
    again = recipe_from_dict(loaded.resolved)
    assert again.config.to_dict() == config.to_dict()


@pytest.mark.parametrize(
    "body, message",
    [
        ({"config": {"num_sgd_itr": 1}}, "Did you mean 'num_sgd_iter'"),
        ({"config": {"model": {"fcnet_hiddens": [8]}}}, "old API stack"),
        ({"config": {"framework": "tf"}}, "framework"),
        ({"confg": {}}, "Did you mean 'config'"),
        ({"checkpoint_config": {"every": 1}}, "checkpoint_config"),
    ],
)
def test_rllib_yaml_is_strict(body, message):
    body = {"run": "LLMPPO", "env": "guess_number-v0", **body}
    with pytest.raises(ConfigError, match=message):
        recipe_from_dict({"old": {**body, "stop": {"training_iteration": 1}}})


# Search spaces -------------------------------------------------------------------


def test_search_spaces_become_tune_objects():
    from ray.tune.search.sample import Categorical, Float, Integer

    loaded = recipe(
        training={"lr": {"loguniform": [1e-6, 1e-4]}, "gamma": {"grid": [0.9, 1.0]}},
        env_config={"upper": {"randint": [5, 9]}},
        rollouts={"group_size": {"choice": [1, 2]}},
        seed={"grid": [0, 1, 2]},
    )
    config = loaded.config
    assert isinstance(config.lr, Float) and (config.lr.lower, config.lr.upper) == (
        1e-6,
        1e-4,
    )
    assert config.gamma == {"grid_search": [0.9, 1.0]}
    assert isinstance(config.env_config["upper"], Integer)
    assert isinstance(config.group_size, Categorical)
    assert config.seed == {"grid_search": [0, 1, 2]}
    assert loaded.has_search and not recipe().has_search
    loaded.validate()


def test_search_spaces_are_validated_at_their_ends():
    bad = recipe(env_config={"upper": {"grid": [7, 0]}})
    with pytest.raises(ConfigError, match="upper"):
        bad.validate()


@pytest.mark.parametrize(
    "space",
    [
        {"grid": 3},
        {"choice": []},
        {"uniform": [1]},
        {"uniform": [2, 1]},
        {"loguniform": [0, 1]},
        {"randint": [0.5, 2]},
    ],
)
def test_faulty_search_spaces_are_refused(space):
    with pytest.raises(ConfigError, match=next(iter(space))):
        recipe(training={"lr": space})


# Expectations --------------------------------------------------------------------


def test_expectations_are_compared_with_last_values():
    expect = check_expectations({"a": 1, "b": {"max": 2}, "c": {"min": 0, "max": 1}})
    ok = judge(expect, {"t": {"a": 1.0, "b": 2.0, "c": 0.5}})
    assert [v.ok for v in ok] == [True, True, True]
    bad = judge(expect, {"t": {"a": float("nan"), "b": 2.1}})
    assert [v.ok for v in bad] == [False, False, False]
    assert bad[2].value is None
