"""The plan of a recipe agrees with the models and buffers built from it."""

from __future__ import annotations

import pytest

from rllib_llm import LLMPPOConfig
from rllib_llm.algorithms.driver.build_vllm_engines import why_vllm
from rllib_llm.cli.plan import _lines
from rllib_llm.recipes import load_recipe
from rllib_llm.recipes.dry_run import make_plan

SMALL = (
    "language_model.tiny={hidden_size: 32, intermediate_size: 64}",
    "rollouts.episodes_per_iteration=8",
    "sft={demonstrations: 0}",
    "training.minibatch_size=4",
    "evaluation.evaluation_interval=null",
)


@pytest.mark.parametrize("most", [None, 3])
def test_a_game_may_have_no_limit_of_turns(most):
    config = LLMPPOConfig().environment("rllib_toys:RelayRLlib")
    config.rollouts(max_turns=most).generation(max_new_tokens=4, max_context_tokens=200)
    plan = make_plan(config)
    assert plan.max_turns == most
    assert plan.episode_tokens == (12 if most else 200)
    shown = "at most 3 turns each" if most else "turns without a limit"
    assert shown in _lines(plan)[0][1]


@pytest.mark.parametrize(
    "gpus, runners, parameters, is_advised",
    [
        ({"num_gpus_per_learner": 1}, 0, 500_000_000, True),
        ({"num_gpus_per_learner": 1}, 0, 499_999_999, False),
        ({"num_gpus_per_learner": 1}, 2, 500_000_000, False),
        ({}, 0, 500_000_000, False),
    ],
)
def test_large_models_on_gpus_are_advised_to_use_vllm(
    gpus, runners, parameters, is_advised
):
    config = LLMPPOConfig().environment("copy_probe-v0")
    config.learners(**gpus).env_runners(num_env_runners=runners)
    assert bool(why_vllm(config, parameters)) == is_advised
    config.generation(engine="vllm")
    assert why_vllm(config, parameters) is None


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(
    "name, change",
    [
        ("frozen_lake_ppo", ()),
        ("frozen_lake_grpo", ("language_model.lora={rank: 2}",)),
        ("duo_action", ()),
        ("duo_action", ("training.critic=own",)),
        ("duo_lora", ("multi_agent.policies_to_train=[bob]",)),
    ],
)
def test_parameters_and_bytes_are_those_of_the_learner(ray_session, name, change):
    recipe = load_recipe(name, (*SMALL, *change))
    plan = make_plan(recipe.build_config())
    algo = recipe.build_config().build_algo()
    (found,) = algo.learner_group.foreach_learner(_weights).result_or_errors
    algo.stop()
    held, trained, num_bytes = found.get()
    assert (plan.parameters, plan.trained) == (held, trained)
    assert plan.memory.weights == num_bytes
    assert plan.memory.gradients == 4 * trained
    assert plan.memory.optimizer == 8 * trained


@pytest.mark.ray
def test_every_policy_counts_with_its_own_context(ray_session):
    """Prompts use the longest context, each policy's cache its own."""

    def plan(*overrides):
        return make_plan(load_recipe("duo_action", (*SMALL, *overrides)).build_config())

    alice = "{generation: {max_context_tokens: 200}}"
    both = plan("generation.max_context_tokens=200")
    one = plan(
        "generation.max_context_tokens=100",
        f"multi_agent.policies={{alice: {alice}, bob: {{}}}}",
    )
    none = plan("generation.max_context_tokens=100")
    assert (both.context_tokens, one.context_tokens) == (200, 200)
    assert none.context_tokens == 100
    assert both.memory.kv_cache == 2 * none.memory.kv_cache
    assert 2 * one.memory.kv_cache == both.memory.kv_cache + none.memory.kv_cache


def _weights(learner):
    """Return the number of parameters (shared ones once), trained ones, and bytes."""
    held, trained = {}, 0
    for module_id in learner.module.keys():
        module = learner.module[module_id].unwrapped()
        held |= {p.data_ptr(): p for p in module.parameters()}
        if learner.should_module_be_updated(module_id):
            optimizers = learner.get_optimizers_for_module(module_id)
            groups = [g for _, o in optimizers for g in o.param_groups]
            trained += sum(p.numel() for g in groups for p in g["params"])
    sizes = [p.numel() * p.element_size() for p in held.values()]
    return sum(p.numel() for p in held.values()), trained, sum(sizes)


def test_a_plan_fine_tunes_no_reference(monkeypatch):
    def refuse(*args):
        raise AssertionError("a plan fine-tunes")

    monkeypatch.setattr("rllib_llm.offline.sft_before_rl.sft", refuse)
    config = load_recipe("on_policy_distillation").build_config()
    # Another seed than other tests', whose models are cached.
    given = {**config.ref_model, "sft": {"demonstrations": 8, "epochs": 3}}
    assert make_plan(config.training(ref_model=given)).parameters
    assert config.ref_model == given
    # Policies may each have one.
    own = {"ref_kl_coeff": 0.1, "ref_model": given}
    team = load_recipe("magrpo").build_config()
    team.multi_agent(policies={name: {"training": own} for name in team.policies})
    assert make_plan(team).parameters
    assert given["sft"]
