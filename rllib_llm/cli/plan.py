"""Output of ``rllib-llm train --dry-run``: the plan of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from rllib_llm.algorithms.driver.memory_plan import Memory
from rllib_llm.cli.progress_bars import preparing
from rllib_llm.doctor.findings import size
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.recipes import Recipe, StagedRecipe, search_spaces
from rllib_llm.recipes.dry_run import Plan, make_plan
from rllib_llm.recipes.tune_settings import num_trials

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig


def show_plan(recipe: Recipe | StagedRecipe) -> None:
    """Print the plan of ``recipe``, with the first value of each search space."""
    model = None
    for index, stage in enumerate(recipe.stages):
        config = stage.build_config(search_spaces.first_of)
        headline = _headline(stage, config)
        if model is not None:  # later stages use the first one's tokenizer and weights
            config.language_model(model=model, tiny={})
        if isinstance(recipe, StagedRecipe):
            typer.echo(f"stage {recipe.folders[index]}")
        with preparing() as on_progress:
            plan = make_plan(config, on_progress)
            if model is None and len(recipe.stages) > 1:
                without_sft = config.copy(copy_frozen=False).sft(demonstrations=0)
                model = prepare_language_model(without_sft, on_progress)
        for name, value in (*headline, *_lines(plan)):
            typer.echo(f"{name:<14} {value}")
    typer.echo("Dry run: nothing was trained. All checks passed.")


def _headline(recipe: Recipe, config: LLMConfig) -> list[tuple[str, str]]:
    stop = ", ".join(f"{k} >= {v:g}" for k, v in recipe.stop.items())
    expect = ", ".join(
        f"{k} {' '.join(f'{side} {b:g}' for side, b in bounds.items())}"
        for k, bounds in recipe.expect.items()
    )
    scheduler = recipe.tune["scheduler"]
    trials = str(num_trials(recipe.tune, recipe.resolved))
    if scheduler is not None:
        trials += f", scheduled by {scheduler['name']}"
    return [
        ("recipe", f"{recipe.name}   {recipe.algo} on {_environment(config)}"),
        (
            "model",
            f"{config.lm_model} {config.lm_dtype}, LoRA {config.lm_lora or 'off'}",
        ),
        ("SFT", f"{config.sft_demonstrations} demonstrations"),
        ("trials", trials),
        ("stop", stop),
        ("expect", expect or "nothing"),
    ]


def _environment(config: LLMConfig) -> str:
    members = config.mixture_members
    if not members:
        return str(config.env)
    total = sum(member.weight for member in members)
    shares = [f"{m.name} {m.weight / total:.0%}" for m in members]
    return f"a mixture of {', '.join(shares)}"


def _turns(plan: Plan) -> str:
    if plan.max_turns is None:
        return "turns without a limit (rollouts.max_turns sets one)"
    return f"at most {plan.max_turns} turns each"


def _lines(plan: Plan) -> list[tuple[str, str]]:
    per_forward = plan.micro_batch_tokens or "all"
    advice = f"{plan.why_vllm}; prefer 'vllm' (docs/engines.md)"
    return [
        (
            "per iteration",
            f"{plan.episodes} episodes = {plan.groups} tasks x {plan.group_size} "
            f"rollouts, {_turns(plan)}",
        ),
        (
            "tokens",
            f"at most {plan.episode_tokens} sampled per episode, "
            f"{plan.iteration_tokens} per iteration; first prompt "
            f"{plan.first_prompt_tokens}, context {plan.context_tokens}",
        ),
        (
            "updates",
            f"{plan.updates} per iteration, {plan.rows_per_update} rows each; "
            f"micro-batches of at most {per_forward} tokens",
        ),
        ("parameters", f"{plan.parameters:,}, trained {plan.trained:,}"),
        ("memory", _memory(plan.memory)),
        *([("engine", advice)] if plan.why_vllm else []),
    ]


def _memory(memory: Memory) -> str:
    parts = ("weights", "gradients", "optimizer", "step", "kv_cache")
    listed = ", ".join(f"{p} {size(getattr(memory, p))}" for p in parts)
    host = f"; optimizer {size(memory.optimizer_host)} in host memory"
    offloaded = host if memory.optimizer_host else ""
    return f"about {size(memory.total)} and activations ({listed}){offloaded}"
