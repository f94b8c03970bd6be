"""Shipped self-play recipes, and the settings on their docs page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyspiel")
pytest.importorskip("openskill")

from rllib_llm import SelfPlayConfig
from rllib_llm.algorithms.config.sections import section_keys
from rllib_llm.env_runner.scripted_policies import ScriptedTurn
from rllib_llm.envs import make_env
from rllib_llm.errors import ConfigError
from rllib_llm.recipes import load_recipe, shipped_recipes
from rllib_llm.selfplay.scripted_players import any_number

ROOT = Path(__file__).parents[2]
SLOW = {"tic_tac_toe_exploiter"}  # queries 4,520 positions in every iteration
RECIPES = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name, path in shipped_recipes().items()
    if path.parent.name == "selfplay"
]
SMALL = (
    "language_model.tiny={hidden_size: 32, intermediate_size: 64}",
    "rollouts.episodes_per_iteration=8",
    "sft={demonstrations: 40, lr: 1e-2}",
    "training.minibatch_size=4",
    "league.pool_size=2",
    "league.snapshot_min_games=1",
    "league.snapshot_max_games=2",
    "evaluation.evaluation_duration=4",
)


@pytest.mark.ray
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_train(ray_session, name):
    algo = load_recipe(name, SMALL).config.build_algo()
    for _ in range(3):
        result = algo.train()
    assert result["env_runners"]["num_episodes"] == 8
    assert result["league"]["pool_size"] == 2
    assert result["learners"]["default_policy"]["grad_norm"] > 0
    algo.stop()


def test_the_random_player_of_tic_tac_toe_never_forfeits():
    env = make_env("open_spiel/tic_tac_toe-v0", {"style": "short"})
    rng, words = np.random.default_rng(0), set()
    for seed in range(20):
        env.reset(seed=seed)
        while not any(env.terminations.values()):
            agent = env.agent_selection
            text = env.observe(agent)["text"]
            word = any_number(ScriptedTurn(agent, text, [], rng))
            words.add(word)
            env.step(word)
            assert not env.infos[agent]["invalid_action"]
    assert words == set("123456789")


def test_the_page_has_every_setting_of_the_league_with_its_default():
    page = (ROOT / "docs" / "algorithms" / "selfplay.md").read_text(encoding="utf-8")
    config = SelfPlayConfig()
    for key in section_keys(SelfPlayConfig, "league"):
        default = getattr(config, f"league_{key}")
        assert f"| `{key}` | {default} |" in page, key
    for key in ("role_decay", "advantage_baseline", "advantage_scale"):
        assert f"| `{key}` | {getattr(config, key)} |" in page, key


def test_other_algorithms_have_no_league():
    overrides = ["algo=GRPO", "rollouts.group_size=8"]
    with pytest.raises(ConfigError, match="league: GRPO has no such section"):
        load_recipe("kuhn_poker", overrides)
