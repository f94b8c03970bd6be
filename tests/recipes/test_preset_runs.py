"""Presets that no other test trains, trained for two iterations."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from literature import load_methods
from preset_helpers import config_of

from rllib_llm.recipes import load_recipe, search_spaces, shipped_recipes

SMALL = (
    "language_model.tiny={hidden_size: 32, intermediate_size: 64}",
    "env_runners.num_envs_per_env_runner=16",
    "rollouts.episodes_per_iteration=16",
    "training.minibatch_size=8",
    "evaluation.evaluation_interval=null",
)
GROUPS = ("training.drop_zero_variance_groups=false",)
LAKE = ("sft={demonstrations: 100, lr: 1e-2}", "env_config.size=3")
SEARCH = ("sft={demonstrations: 200, lr: 3e-3, mistake_rate: 0.3}",)
# So that some of few episodes differ.
VALID = "rollouts.rewards=[{name: format, valid: 1.0, invalid: 0.0}]"
GAINS = (
    "rollouts.rewards=[{name: format, valid: 1.0, invalid: 0.0}, "
    "{name: asked, of: judge}, {name: gain, options: {tool: false}}]"
)
LENGTH = "rollouts.rewards=[{name: overlong, longest: 130, buffer: 129}]"
SHORT = "rollouts.rewards=[{name: overlong, longest: 48, buffer: 47}]"
TEACHER = "training.ref_model={tiny: {hidden_size: 64}, sft: {demonstrations: 8}}"
# Whose scorer learns in the first iteration, before the policy does.
SCORED = {
    "archer": (*GROUPS, "env_config={}"),
    "coso": GROUPS,
    "digirl": GROUPS,
    "guid_nav": (*GROUPS, "env_config={}"),
    "human_preferences": GROUPS,
    "instruct_gpt": GROUPS,
    "istar": (*GROUPS, "env_config={}"),
    "learning_to_summarize": (),
    "spa_rl": ("env_config={}",),
    "step_agent": ("env_config={}",),
    "sweet_rl": ("env_config={}",),
    "web_gpt": (*GROUPS, *SEARCH, "env_config={}"),
}
CASES = {
    "frozen_lake_ppo": LAKE,
    "frozen_lake_grpo": (*LAKE, *GROUPS),
    "frozen_lake_dpo": LAKE,
    "frozen_lake_dmpo": LAKE,
    "eto": LAKE,
    "agent_q": LAKE,
    "ipr": LAKE,
    "paprika": ("sft={demonstrations: 200, lr: 1e-2}",),
    "pag": ("sft={demonstrations: 200, lr: 3e-3}",),
    "explicit_rollback": (LAKE[0], *GROUPS),
    "remax": LAKE,
    "practitioners_guide": (*LAKE, *GROUPS),
    "colour_grid": ("sft={demonstrations: 200, lr: 1e-2}", *GROUPS),
    "agile_jigsaw": ("sft={demonstrations: 300, lr: 1e-2}", *GROUPS),
    "geo_vista": ("sft={demonstrations: 300, lr: 3e-3}", *GROUPS, VALID),
    "vital": ("sft={demonstrations: 300, lr: 3e-3}", *GROUPS, VALID),
    "colour_grid_dpo": ("sft={demonstrations: 200, lr: 1e-2}",),
    "colour_grid_ppo": ("sft={demonstrations: 200, lr: 1e-2}",),
    "vl_dac": (*LAKE, VALID, "training.critic_warmup_iters=1"),
    "vagen": (*LAKE, VALID, "training.critic_warmup_iters=1"),
    "sokoban_pictures": (
        "sft={demonstrations: 300, lr: 1e-2}",
        "env_config={size: 3, depth: 1, max_turns: 10}",
        *GROUPS,
    ),
    "deepretrieval": SEARCH,
    "webshop_text": ("sft={demonstrations: 100, lr: 3e-3}", *GROUPS, LENGTH),
    "glam": LAKE,
    "twosome": LAKE,
    "llm4teach": (*LAKE, TEACHER),
    "on_policy_distillation": (*LAKE, *GROUPS, TEACHER),
    "dataset_sums": ("sft={demonstrations: 200, lr: 1e-2}", *GROUPS, SHORT),
    "judged": (*GROUPS, "sft={demonstrations: 200, lr: 1e-2}"),
    "swirl": SEARCH,
    "zero_search": (*GROUPS, *SEARCH, VALID),
    "search_planner": (*SEARCH, GAINS),
    "ssrl": (*GROUPS, *SEARCH, VALID),
    "web_rl": (LAKE[0], *GROUPS, VALID),
    "mua_rl": (*GROUPS, "sft={demonstrations: 100, lr: 3e-3}", VALID),
    "memory_as_action": (*GROUPS, *SEARCH, VALID),
    "tti": LAKE,
    "kimi_k2": (*LAKE, *GROUPS),
    "tea_rag": (*SEARCH, VALID),
    "self_rewarding": (*SEARCH, VALID),
    "judged_pairs": ("env_config={}", "sft={demonstrations: 200, lr: 1e-2}"),
    **{n: (*LAKE, *more, "scorer.warmup_iters=1") for n, more in SCORED.items()},
}
# States of methods that their recipes do not reproduce unchanged.
UNTRAINED = ("by config", "incomplete")
# Stages that test_stored_data_recipes and test_written_data_recipes check.
STAGED = {
    *("agent_r", "agent_tuning", "android_gen", "atlas", "auto_coa"),
    *("behavior_priming", "digi_q", "e2cl", "evosyn", "ire_vla", "mask_search"),
    *("mucode", "plan_and_act", "rest", "star", "steca", "toolformer", "webcot"),
}
# Where the others are: modules with CASES by the names of presets.
ELSEWHERE = {
    "recipes": ("test_credit_recipes", "test_reward_recipes", "test_text_recipes"),
    "components": ("test_loss_recipes",),
}


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", CASES)
def test_two_iterations_learn_something(ray_session, name):
    recipe = load_recipe(name, (*SMALL, *CASES[name]))
    algo = recipe.build_config(search_spaces.first_of).build_algo()
    (trained,) = algo.config.trained_module_ids
    results = [algo.train() for _ in range(2)]
    algo.stop()
    for result in results[name in SCORED :]:
        learned = result["learners"][trained]
        assert np.isfinite(learned["grad_norm"]) and learned["grad_norm"] > 0
        assert learned["num_trained_tokens"] > 0
        assert result["env_runners"]["num_episodes"] >= 16
    if name == "llm4teach":
        assert learned["loss_term_distill_actions"] > 0
    if name == "on_policy_distillation":
        assert learned["ref_kl"] > 0.1  # of a teacher of other weights
    if name == "deepretrieval":
        # One turn each, a document found or not.
        mean_return = result["env_runners"]["episode_return_mean"]
        assert result["env_runners"]["turns_mean"] == 1 and -3.5 <= mean_return <= 5


def test_every_preset_is_trained_by_a_test(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "components"))
    trained = set(CASES) | STAGED
    for modules in ELSEWHERE.values():
        for module in modules:
            cases = importlib.import_module(module).CASES
            trained |= {name.partition("/")[0] for name in cases}
    rows = [row for row in load_methods().rows if row.state not in UNTRAINED]
    pages = (Path(__file__).parents[2] / "docs" / "presets").glob("*.md")
    methods = {page.stem for page in pages} & set(shipped_recipes())
    methods |= {name for row in rows for name in row.yaml if row.group in "AEF"}
    assert len(methods) > 30
    assert methods <= trained, methods - trained
    assert all(config_of(name) for name in CASES)
