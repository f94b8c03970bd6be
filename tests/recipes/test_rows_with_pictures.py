"""Rows of the literature that run on pictures by overrides: every stage trains."""

from __future__ import annotations

import numpy as np
import pytest
from literature import load_methods

from rllib_llm.recipes import load_recipe, search_spaces

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.usefixtures("ray_session"),
]
ROWS = {row.id: row for row in load_methods().rows}
SMALL = [
    "language_model.tiny={hidden_size: 32, num_hidden_layers: 1}",
    "rollouts.episodes_per_iteration=32",
    "env_config={size: 3}",
]
OF_RL = ["sft={demonstrations: 64, lr: 1e-2}"]


@pytest.mark.parametrize("row", ["F1", "F3", "F7", "F23"])
def test_every_stage_trains_on_pictures(row, tmp_path):
    method = ROWS[row]
    name, checkpoint, saved = method.yaml[0], "", {}
    names = getattr(load_recipe(name), "stage_names", [name])
    more = OF_RL if len(names) == 1 else []
    recipe = load_recipe(name, [*method.change, *SMALL, *more])
    for stage_name, stage in zip(names, recipe.stages, strict=True):
        config = stage.build_config(search_spaces.first_of)
        config.earlier_stages = dict(saved)
        if config.save_episodes is True:
            config.save_where = []  # failures too, of this untrained policy
            config.save_episodes = saved[stage_name] = str(tmp_path / stage_name)
        config.evaluation(evaluation_interval=None, evaluation_config={})
        if checkpoint:
            config.initial_checkpoint = checkpoint
        algo = config.build_algo()
        assert algo.config.chat_renderer().pictures is not None
        result = algo.train()
        checkpoint = str(algo.save_to_path(str(tmp_path / f"{stage_name}_weights")))
        algo.stop()
        # DigiRL's critic comes first; a group whose rollouts are equal trains nothing.
        learned = result.get("learners", {})
        if stage.algo != "GRPO" or row == "F3":
            trained = learned["scorer" if row == "F3" else "default_policy"]
            assert np.isfinite(trained["grad_norm"])
            assert trained["grad_norm"] > 0
        else:
            assert result["env_runners"]["num_episodes"] == 32
