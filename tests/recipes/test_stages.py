"""Staged recipes: common settings, settings of a stage, and invalid ones."""

from __future__ import annotations

import copy

import pytest

from rllib_llm import yaml_io
from rllib_llm.errors import ConfigError
from rllib_llm.recipes import StagedRecipe, recipe_from_dict
from rllib_llm.recipes.stages import merge
from rllib_llm.runs import folders

STAGED = {
    "algo": "GRPO",
    "env": "guess_number-v0",
    "env_config": {"upper": 7},
    "rollouts": {"episodes_per_iteration": 16},
    "sft": {"demonstrations": 5},
    "stop": {"training_iteration": 4},
    "stages": [
        {"name": "sft", "algo": "SFT", "training": {"lr": 1e-2}},
        {"name": "rl", "rollouts": {"group_size": 4}, "expect": {"return_std": 1}},
        {"name": "hard", "env_config": {"upper": 9}, "stop": {"training_iteration": 9}},
    ],
}


def staged(*overrides, **changes):
    return recipe_from_dict(copy.deepcopy({**STAGED, **changes}), "game", overrides)


def with_stage(index, **changes):
    stages = copy.deepcopy(STAGED["stages"])
    stages[index] |= changes
    return {"stages": stages}


def test_stages_merge_common_and_own_settings():
    recipe = staged()
    assert isinstance(recipe, StagedRecipe)
    sft, rl = recipe.stages[:2]
    assert [s.algo for s in recipe.stages] == ["SFT", "GRPO", "GRPO"]
    assert recipe.folders == ["1_sft", "2_rl", "3_hard"]
    assert (sft.config.lr, rl.config.group_size) == (1e-2, 4)
    assert all(s.config.episodes_per_iteration == 16 for s in recipe.stages)
    assert [s.config.env_config["upper"] for s in recipe.stages] == [7, 7, 9]
    assert [s.stop["training_iteration"] for s in recipe.stages] == [4, 4, 9]
    assert (sft.expect, rl.expect) == ({}, {"return_std": {"min": 1}})
    recipe.validate()


def test_only_the_first_stage_runs_sft():
    demos = [s.config.sft_demonstrations for s in staged().stages]
    assert demos == [5, 0, 0]
    with pytest.raises(ConfigError, match="stage 'rl': sft is not allowed here"):
        staged(**with_stage(1, sft={"demonstrations": 3}))


def test_null_removes_settings_and_components_are_replaced():
    common = {"a": {"b": 1, "c": 2}, "loss": {"name": "threshold", "levels": [1]}}
    stage = {"a": {"b": None, "d": None}, "loss": {"name": "horizon", "turns": [2]}}
    assert merge(common, stage) == {"a": {"c": 2, "d": None}, "loss": stage["loss"]}
    assert common["a"] == {"b": 1, "c": 2}


def test_resolved_recipe_loads_again():
    recipe = staged("seed=3", "stages.rl.training.lr=1e-5")
    again = recipe_from_dict(yaml_io.parse(yaml_io.dump(recipe.resolved), "dump"))
    assert again.resolved == recipe.resolved and again.folders == recipe.folders
    assert [s.resolved for s in again.stages] == [s.resolved for s in recipe.stages]


def test_overrides_reach_one_stage_or_all():
    recipe = staged("stages.hard.env_config.upper=11", "seed=3")
    assert [s.config.env_config["upper"] for s in recipe.stages] == [7, 7, 11]
    assert [s.config.seed for s in recipe.stages] == [3, 3, 3]
    with pytest.raises(ConfigError, match="Did you mean 'hard'"):
        staged("stages.hart.training.lr=1")
    names = with_stage(1, training={"lr": 1})["stages"][:2]
    with pytest.raises(ConfigError, match=r"no effect.*stages\.rl\.training\.lr"):
        staged("training.lr=2", stages=names)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"stages": []}, "must be a list of mappings"),
        ({"stages": {"rl": {}}}, "must be a list of mappings"),
        (with_stage(1, name="sft"), "stage 2 .*must have a unique name"),
        (with_stage(1, name="a/b"), "stage 2 .*must have a unique name"),
        (
            with_stage(1, stages=[{"name": "x"}]),
            "stage 'rl': stages is not allowed here",
        ),
        (with_stage(1, trainig={}), "stage 'rl': .*Did you mean 'training'"),
        (with_stage(0, training={"clip_param": 1}), "stage 'sft': .*clip_param"),
        (with_stage(2, stop=None), "stage 'hard': .*'stop' is missing"),
        ({"trainig": {}}, "^Unknown field 'trainig'"),
        ({"seed": {"grid": [0, 1]}}, "stage 'sft': a stage must be a single trial"),
        (
            with_stage(1, tune={"num_samples": 2}),
            "stage 'rl': a stage must be a single trial",
        ),
    ],
)
def test_faults_name_the_stage(changes, message):
    with pytest.raises(ConfigError, match=message):
        staged(**changes)


@pytest.mark.parametrize(
    "changes, message",
    [
        (with_stage(2, env_config={"upper": 0}), "stage 'hard': "),
        (with_stage(1, rollouts={"group_size": 3}), "stage 'rl': .*group_size"),
        (
            with_stage(1, language_model={"tiny": {"hidden_size": 64}}),
            "stage 'rl': language_model.tiny=.*stage before",
        ),
        (with_stage(1, language_model={"lora": {"rank": 2}}), "stage 'rl': .*lora=.*"),
        (
            {
                "language_model": {"lora": {"rank": 2}},
                **with_stage(1, training={"ref_kl_coeff": 0.1}),
            },
            "stage 'rl': it needs a reference policy.*under LoRA",
        ),
    ],
)
def test_all_stages_are_validated_before_the_first_begins(changes, message):
    with pytest.raises(ConfigError, match=message):
        staged(**changes).validate()


def test_value_heads_must_agree_where_both_have_one():
    ppo = {"algo": "LLMPPO", "rollouts": {"group_size": 1}}
    linear = {"language_model": {"value_head": "linear"}}
    stages = [{"name": "a", **ppo}, {"name": "b", **ppo, **linear}]
    with pytest.raises(ConfigError, match="stage 'b': language_model.value_head"):
        staged(stages=stages).validate()
    staged(stages=[{"name": "sft", "algo": "SFT"}, stages[1]]).validate()


def test_trained_policies_must_be_in_the_stage_before():
    def roles(*names):
        table = dict(zip(("alice", "bob"), names, strict=True))
        policies = sorted(set(names))
        return {"policies": policies, "policy_mapping_fn": table}

    stages = [
        {"name": "one", "multi_agent": roles("a", "b")},
        {"name": "two", "multi_agent": roles("a", "c")},
    ]
    team = {"env": "secret_sum-v0", "env_config": None, "stages": stages}
    with pytest.raises(ConfigError, match="stage 'two': it trains the policy 'c'"):
        staged(**team).validate()


# Run folders -------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    from test_run_folders import write_checkpoint

    recipe = staged()
    run = tmp_path / "run"
    for folder, stage in zip(recipe.folders, recipe.stages, strict=True):
        (run / folder).mkdir(parents=True)
        (run / folder / "recipe.yaml").write_text(yaml_io.dump(stage.resolved))
    (run / "recipe.yaml").write_text(yaml_io.dump(recipe.resolved))
    # The later stage's is the older file, as it may be after copying.
    write_checkpoint(run / "2_rl" / "trial_a" / "checkpoint_000000")
    write_checkpoint(run / "1_sft" / "trial_a" / "checkpoint_000005")
    return run


def test_the_newest_checkpoint_is_the_last_stages(run):
    newest = run / "2_rl" / "trial_a" / "checkpoint_000000"
    assert folders.locate_checkpoint(run).checkpoint == newest
    first = folders.locate_checkpoint(run / "1_sft").checkpoint
    assert first.parent.parent == run / "1_sft"
    for inside in (run, run / "2_rl", newest.parent, newest):
        assert folders.run_folder(inside) == run


def test_only_stop_may_change_on_resume_in_every_stage(run):
    from rllib_llm.recipes.resuming import recipe_of_run
    from rllib_llm.recipes.run_stages import next_stage

    longer = recipe_of_run(run, overrides=["stages.hard.stop.training_iteration=99"])
    assert longer.stages[2].stop == {"training_iteration": 99}
    assert next_stage(longer, run) == 2
    with pytest.raises(ConfigError, match=r"differs in stages\.rl\.training\.lr\."):
        recipe_of_run(run, overrides=["stages.rl.training.lr=1"])
    with pytest.raises(ConfigError, match=r"differs in env_config\.upper"):
        recipe_of_run(run, staged("env_config.upper=8"))
    built_upon = recipe_of_run(run, overrides=["stages.sft.stop.training_iteration=9"])
    with pytest.raises(ConfigError, match="1_sft differs from the"):
        next_stage(built_upon, run)
