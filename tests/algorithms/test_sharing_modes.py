"""Ways of sharing weights as one setting that Tune may search."""

from __future__ import annotations

import pytest
from ray import tune
from team_helpers import Pair, team_config

from rllib_llm import LLMPPOConfig
from rllib_llm.errors import ConfigError
from rllib_llm.recipes import recipe_from_dict

OWN = {
    "policies": {"a": {"training": {"lr": 1e-2}}, "b": None},
    "policy_mapping_fn": {"ann": "a", "ben": "b"},
}
MODES = {"own": OWN, "shared": {"policies": ["team"], "policy_mapping_fn": "team"}}
RECIPE = {
    "algo": "LLMPPO",
    "env": "secret_sum-v0",
    "multi_agent": {
        "sharing_modes": {
            "own": {
                "policies": ["a", "b"],
                "policy_mapping_fn": {"alice": "a", "bob": "b"},
            },
            "shared": {"policies": ["team"], "policy_mapping_fn": "team"},
        },
        "sharing_mode": {"grid": ["own", "shared"]},
    },
    "stop": {"training_iteration": 1},
}


def test_a_mode_sets_what_it_holds():
    config = ppo().multi_agent(sharing_modes=MODES, sharing_mode="own")
    config.validate()
    assert config.trained_module_ids == ("a", "b")
    assert config.get_config_for_module("a").lr == 1e-2
    config.multi_agent(sharing_mode="shared")
    config.validate()
    assert config.trained_module_ids == ("team",)
    assert config.policy_mapping_fn("ben_0") == "team"


def test_a_mode_that_tune_draws_holds_from_validate_on():
    config = ppo().multi_agent(
        sharing_modes=MODES, sharing_mode=tune.grid_search(["own", "shared"])
    )
    drawn = {**config.to_dict(), "sharing_mode": "own"}
    of_trial = LLMPPOConfig().update_from_dict(drawn)
    of_trial.validate()
    assert of_trial.trained_module_ids == ("a", "b")
    assert of_trial.get_config_for_module("a").lr == 1e-2


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"sharing_mode": "onw"}, "sharing_mode='onw'.*Did you mean 'own'"),
        ({"sharing_mode": tune.grid_search(["own"])}, "must be one of sharing_modes"),
        ({}, "sharing_mode=None must be one of sharing_modes"),
        ({"policies": ["a"]}, "beside sharing_modes would have no effect"),
        (
            {"sharing_modes": {"x": {"sharing_mode": "x"}}, "sharing_mode": "x"},
            r"sharing_modes\.x=.*must hold settings of multi_agent",
        ),
        (
            {"sharing_modes": {"x": {"policy": ["a"]}}, "sharing_mode": "x"},
            "Unknown setting multi_agent.policy. Did you mean 'policies'",
        ),
    ],
)
def test_impossible_modes_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ppo().multi_agent(**{"sharing_modes": MODES, **settings}).validate()


def test_every_mode_of_a_recipe_is_checked_before_the_start():
    recipe_from_dict(RECIPE).validate()
    section = RECIPE["multi_agent"]
    modes = {**section["sharing_modes"], "odd": {"policies": ["a"]}}
    middle = {"grid": ["own", "odd", "shared"]}
    odd = {"sharing_modes": modes, "sharing_mode": middle}
    with pytest.raises(ConfigError, match="default_policy"):
        recipe_from_dict({**RECIPE, "multi_agent": odd}).validate()


def ppo():
    return team_config(Pair, LLMPPOConfig)
