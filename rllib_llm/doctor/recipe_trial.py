"""Trial of a recipe: template, prompts, memory, log-probabilities, an iteration."""

from __future__ import annotations

import math
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from rllib_llm.algorithms.driver.memory_plan import Memory
from rllib_llm.data.episode_data import episode_data
from rllib_llm.doctor.activations import pass_bytes
from rllib_llm.doctor.findings import FAIL, OK, WARN, Finding, size
from rllib_llm.doctor.machine import memory
from rllib_llm.doctor.mismatch import mismatch_by_module
from rllib_llm.errors import RLlibLLMError
from rllib_llm.recipes import Recipe, StagedRecipe, load_recipe, search_spaces
from rllib_llm.recipes.dry_run import make_plan

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig

_EPISODES = 8
_FLOAT32_GAP = 1e-3  # nats; the tolerance of the package's tests
_LOW_PRECISION_GAP = 0.02  # mean; docs/troubleshooting.md


def examine_recipe(
    name: str, overrides: list[str], describe: Callable[[BaseException], str]
) -> Iterator[Finding]:
    """Try the first stage of a recipe without SFT; Ray must run.

    Args:
        name: Name of a shipped recipe, or a YAML file.
        overrides: Dotted overrides, as for ``rllib-llm train``.
        describe: Returns the description of an error.

    Yields:
        Findings as they are made; the first failure is the last one.
    """
    steps = _Steps(name, overrides)
    for title, step in (
        ("recipe", steps.load),
        ("chat template", steps.template),
        ("prompts", steps.plan),
        ("memory estimate", steps.memory),
        ("engine", steps.engine),
        ("sampling", steps.sample),
        ("log-probabilities", steps.compare),
        ("iteration", steps.iterate),
    ):
        try:
            finding = step()
        except Exception as error:  # any error here would end the run
            is_package_error = isinstance(error, RLlibLLMError)
            observed = str(error) if is_package_error else describe(error)
            remedy = (
                "See the message."
                if is_package_error
                else "Run with --verbose for more."
            )
            yield Finding(title, FAIL, observed, remedy)
            break
        yield finding
        if finding.status == FAIL:
            break
    steps.close()


class _Steps:
    """The steps of a trial in order; each requires those before."""

    def __init__(self, name: str, overrides: list[str]):
        self._name, self._overrides = name, overrides
        self._algo: Any = None

    def close(self) -> None:
        """Stop the algorithm and delete its folder."""
        if self._algo is not None:
            self._algo.stop()
            shutil.rmtree(self._algo.logdir)

    def load(self) -> Finding:
        """Check every setting."""
        recipe: Recipe | StagedRecipe = load_recipe(self._name, self._overrides)
        recipe.validate()
        stage = recipe.stages[0]
        self._config = stage.build_config(search_spaces.first_of)
        self._config.validate()
        self._starts_from_sft = self._config.sft_demonstrations > 0
        self._config.sft(demonstrations=0)
        of = f", stage {stage.name}" if isinstance(recipe, StagedRecipe) else ""
        observed = f"{recipe.name}{of}: {stage.algo} on {self._config.env}"
        return Finding("recipe", OK, observed)

    def template(self) -> Finding:
        """Check the chat templates of all policies."""
        from rllib_llm.algorithms.driver.prepared_models import with_models

        self._config = with_models(self._config)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            renderers = self._config.chat_renderers()
        renderers = {m: r for m, r in renderers.items() if r is not None}
        rewriting = [m for m, r in renderers.items() if r.rewrites]
        if rewriting and self._config.history == "append":
            return Finding(
                "chat template",
                WARN,
                f"rewrites earlier turns of {', '.join(rewriting)}; under "
                "history='append' the model keeps seeing what it sampled",
                "Usual for RL. language_model.history=rerender follows the template.",
            )
        ends = {
            r.tokenizer.convert_ids_to_tokens(r.end_of_turn_id)
            for r in renderers.values()
        }
        roles = all(r.supports_system for r in renderers.values())
        observed = f"turns end with {', '.join(sorted(ends))}"
        lacking = "; no system role, so its text goes into the first message"
        return Finding("chat template", OK, observed + ("" if roles else lacking))

    def plan(self) -> Finding:
        """Check that first prompts and answers fit into the context."""
        self._plan = plan = make_plan(self._config)
        room = plan.context_tokens - plan.first_prompt_tokens
        observed = (
            f"first prompt {plan.first_prompt_tokens} tokens, context "
            f"{plan.context_tokens}"
        )
        if self._config.action_head != "generate":
            return Finding("prompts", OK, observed)
        answer = self._config.max_new_tokens
        observed = f"{observed}, at most {answer} per turn"
        turns = room // answer
        limit = plan.max_turns
        if limit and turns < limit and self._config.history != "latest":
            return Finding(
                "prompts",
                WARN,
                f"{observed}: full after about {turns} of {limit} turns if every "
                "answer has the maximum length",
                "Raise generation.max_context_tokens, or lower max_new_tokens; "
                "docs/metrics.md: stop/context_overflow.",
            )
        return Finding("prompts", OK, observed)

    def memory(self) -> Finding:
        """Compare the memory estimate with the available memory."""
        needs = self._plan.memory
        activations = self._activations()
        total = needs.total + activations
        on_gpu = torch.cuda.is_available() and self._config.num_gpus_per_learner
        free = torch.cuda.mem_get_info()[0] if on_gpu else memory()[1]
        where = "of the device" if on_gpu else "of the machine"
        observed = (
            f"about {size(total)} by formula ({_parts(needs)}, activations "
            f"{size(activations)}); {size(free)} {where} available"
        )
        if total > free:
            return Finding(
                "memory estimate",
                WARN,
                observed,
                "Lower training.micro_batch_tokens, generation.max_context_tokens or "
                "env_runners.num_envs_per_env_runner, or use lora, bfloat16 or "
                "gradient_checkpointing.",
            )
        return Finding("memory estimate", OK, observed)

    def engine(self) -> Finding:
        """Check that the engine suits the device and the size of the model."""
        name, why = self._config.generation_engine, self._plan.why_vllm
        if why is None:
            return Finding("engine", OK, name)
        return Finding("engine", WARN, why, "generation.engine=vllm; docs/engines.md.")

    def sample(self) -> Finding:
        """Sample a few training episodes."""
        config = _shrunk(self._config)
        self._algo = config.build_algo()
        began = time.perf_counter()
        groups = config.episodes_per_iteration // config.group_size
        self._episodes = self._algo.play_extra_tasks(
            config.build_task_source().next_groups(groups), explore=True
        )
        seconds = time.perf_counter() - began
        tokens = sum(episode_data(e).num_sampled for e in self._episodes)
        returns = [e.get_return() for e in self._episodes]
        observed = (
            f"{len(self._episodes)} episodes, {tokens} tokens in {seconds:.1f} s, mean "
            f"return {sum(returns) / len(returns):.3f} (without SFT)"
        )
        return Finding("sampling", OK, observed)

    def compare(self) -> Finding:
        """Compare the engine's log-probabilities with the Learner's."""
        mismatches = mismatch_by_module(self._algo, self._episodes)
        if not mismatches:
            return Finding("log-probabilities", OK, "no policy samples tokens")
        parts, status = [], OK
        for module_id, mismatch in mismatches.items():
            config = self._config.get_config_for_module(module_id)
            exact = config.lm_dtype == "float32" and not config.lm_autocast
            parts.append(
                f"{module_id} mean {mismatch.mean:.1e}, largest "
                f"{mismatch.largest:.1e} nats over {mismatch.tokens} tokens"
            )
            if exact and mismatch.largest > _FLOAT32_GAP:
                status = FAIL
            elif not exact and mismatch.mean > _LOW_PRECISION_GAP and status == OK:
                status = WARN
        remedy = None
        if status != OK:
            remedy = (
                "Inference and training disagree about the same tokens: try dtype "
                "float32; see docs/troubleshooting.md, 'The train-inference mismatch "
                "is large'."
            )
        return Finding("log-probabilities", status, "; ".join(parts), remedy)

    def iterate(self) -> Finding:
        """Train for one small iteration."""
        began = time.perf_counter()
        result = self._algo.train()
        seconds = time.perf_counter() - began
        observed = (
            f"{self._algo.config.episodes_per_iteration} episodes, {seconds:.1f} s"
        )
        norms = [
            value["grad_norm"]
            for value in result.get("learners", {}).values()
            if isinstance(value, dict) and "grad_norm" in value
        ]
        if not all(map(math.isfinite, norms)):
            return Finding(
                "iteration",
                FAIL,
                f"{observed}, gradient norms {norms}",
                "Gradients are not finite: lower training.lr, look for extreme "
                "rewards.",
            )
        if any(norms):
            return Finding("iteration", OK, f"{observed}, gradients finite")
        observed = f"{observed}, no learning signal: all returns of a task were equal"
        if self._starts_from_sft:
            observed = f"{observed}, as is usual without SFT"
            return Finding("iteration", OK, observed)
        remedy = "Make the task easier, make rewards differ, or run SFT first."
        return Finding("iteration", WARN, observed, remedy)

    def _activations(self) -> int:
        """Return the activation bytes of the policy with the largest ones."""
        ids = self._config.llm_module_ids
        return max(map(self._activations_of, ids))

    def _activations_of(self, module_id: str) -> int:
        from transformers import AutoConfig

        config = self._config.get_config_for_module(module_id)
        model = AutoConfig.from_pretrained(config.resolved_model)
        everything = config.episodes_per_iteration * self._plan.context_tokens
        tokens = min(config.micro_batch_tokens or everything, everything)
        return pass_bytes(config, model, tokens)


def _shrunk(config: LLMConfig) -> LLMConfig:
    """Return the config reduced to one process and a few episodes."""
    from rllib_llm.algorithms.grpo.grpo import GRPOConfig

    config = config.copy(copy_frozen=False)
    group = config.group_size
    episodes = group * math.ceil(_EPISODES / group)
    config.rollouts(episodes_per_iteration=episodes)
    config.env_runners(
        num_env_runners=0,
        num_envs_per_env_runner=min(config.num_envs_per_env_runner, episodes),
    )
    config.learners(num_learners=0)
    config.evaluation(evaluation_interval=None)
    config.training(minibatch_size=None)
    if isinstance(config, GRPOConfig):
        # So that the update is tried also with equal returns.
        config.drop_zero_variance_groups = False
        config.dynamic_sampling_rounds = 0
    return config


def _parts(needs: Memory) -> str:
    names = ["weights", "gradients", "optimizer", "step", "kv_cache"]
    if needs.optimizer_host:
        names.append("optimizer_host")
    return ", ".join(f"{n.replace('_', ' ')} {size(getattr(needs, n))}" for n in names)
