"""The shipped recipes of teams train, at a size that takes seconds."""

from __future__ import annotations

import pytest

from rllib_llm.recipes import load_recipe, shipped_recipes

FAST = {"duo_action", "scout_porter"}  # the others take up to 10 s each
TEAMS = [
    pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow])
    for name, path in shipped_recipes().items()
    if path.parent.name == "marft"
]
SMALL = (
    "language_model.tiny={hidden_size: 32, intermediate_size: 64}",
    "env_runners.num_envs_per_env_runner=8",
    "rollouts.episodes_per_iteration=8",
    # Enough tokens for a valid action, so that all agents act.
    "sft={demonstrations: 200, lr: 1e-2}",
    "training.minibatch_size=4",
    "evaluation.evaluation_interval=null",
)


@pytest.mark.ray
@pytest.mark.parametrize("name", TEAMS)
def test_team_recipes_train(ray_session, name):
    config = load_recipe(name, SMALL).config
    algo = config.build_algo()
    result = algo.train()
    algo.stop()
    assert result["env_runners"]["num_episodes"] == 8
    assert set(config.trained_module_ids) == set(config.module_ids)
    assert result["learners"]["critic"]["num_trained_tokens"] > 0
    for module_id in config.trained_module_ids:
        learned = result["learners"][module_id]
        assert learned["num_trained_tokens"] > 0 and learned["grad_norm"] > 0
