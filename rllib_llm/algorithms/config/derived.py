"""Values that follow from several settings, and objects built from them."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rllib_llm.algorithms.config import validation
from rllib_llm.algorithms.config.generation import GenerationSettings
from rllib_llm.algorithms.config.language_model import LanguageModelSettings
from rllib_llm.algorithms.config.multi_agent import MultiAgentSettings
from rllib_llm.algorithms.config.rollouts import RolloutSettings
from rllib_llm.algorithms.config.training import TrainingSettings
from rllib_llm.components.registry import ComponentSpecs
from rllib_llm.data.types import DEFAULT_STOP_POLICIES, StopPolicy, StopReason
from rllib_llm.env_runner.agents import role_prompts
from rllib_llm.envs.mixture_members import (
    COMPONENTS,
    MIXTURE,
    MixtureMember,
    read_members,
)
from rllib_llm.modules.gguf_models import is_gguf
from rllib_llm.modules.lora import lora_settings
from rllib_llm.modules.tiny import BUILT_MODELS

if TYPE_CHECKING:
    from rllib_llm.losses.composed_loss import ComposedLoss
    from rllib_llm.modules.llm_rl_module import LLMRLModule
    from rllib_llm.remote_calls import TimeLimit


class DerivedSettings(
    LanguageModelSettings,
    GenerationSettings,
    RolloutSettings,
    MultiAgentSettings,
    TrainingSettings,
):
    """Values that follow from settings of several sections.

    Attributes:
        resolved_model: Folder of the prepared model; None until it is built.
    """

    resolved_model: str | None
    sample_ahead: int

    if TYPE_CHECKING:

        @property
        def call_limit(self) -> TimeLimit: ...

        @property
        def engine_resources(self) -> dict[str, float]: ...

    @property
    def uses_reference(self) -> bool:
        """True if a frozen reference policy is needed."""
        return self.ref_kl_coeff != 0.0 or self.components_need("reference")

    @property
    def engine_is_exact(self) -> bool:
        """True if engine and learner compute equal log-probabilities, up to rounding.

        That holds for the embedded engine in float32: same weights, same arithmetic.
        """
        return (
            self.generation_engine == "torch"
            and self.lm_dtype == "float32"
            and self.lm_autocast is None
        )

    def build_composed_loss(self) -> ComposedLoss:
        """Return one policy's loss components (docs/losses.md)."""
        from rllib_llm.losses.composed_loss import ComposedLoss

        return ComposedLoss(
            self.policy_loss, self.loss_terms, self.token_advantage_transforms
        )

    def components_need(self, need: str) -> bool:
        """Return whether a component needs an input of ``losses.token_batch.NEEDS``."""
        return need in self.build_composed_loss().needs

    def resolved_tis(self) -> str | None:
        """Return the level of truncated importance sampling, None for none."""
        if self.tis != "auto":
            return self.tis
        is_exact = self.engine_is_exact and not self.sample_ahead
        return "token" if self.old_logps == "learner" and not is_exact else None

    @property
    def corrects_staleness(self) -> bool:
        """True if older weights' samples are weighted by importance ratios."""
        return self.old_logps == "engine" or self.mismatch_settings() is not None

    def mismatch_settings(self) -> dict[str, Any] | None:
        """Return the arguments of ``mismatch_weights``, None without correction."""
        token_band = (self.is_mask_low, self.is_mask_high)
        sequence_band = (self.is_sequence_mask_low, self.is_sequence_mask_high)
        settings = {
            "tis": self.resolved_tis(),
            "tis_clip": self.tis_clip,
            "token_band": token_band,
            "sequence_band": sequence_band,
        }
        is_off = settings["tis"] is None and not any((*token_band, *sequence_band))
        return None if is_off else settings

    @property
    def scored_old_logps(self) -> str:
        """Source of the old log-probabilities among the scores of rows."""
        return self.old_logps

    @property
    def old_logps_may_wait(self) -> bool:
        """True if the first training pass can compute the old log-probabilities.

        If it is the update's only one, they are those of the policy that it trains. It
        cannot if they are needed before it, or for whole sequences.
        """
        by_sequence = self.is_sequence_mask_low or self.is_sequence_mask_high
        return (
            self.old_logps == "learner"
            and not (self.uses_reference and self.ref_kl_in == "reward")
            and not self.components_need("scores")
            and not (by_sequence or self.resolved_tis() == "sequence")
        )

    def resolved_stop_policies(self) -> dict[StopReason, StopPolicy]:
        """Return the policy of every stop reason."""
        given = {StopReason(k): StopPolicy(v) for k, v in self.stop_policies.items()}
        return {**DEFAULT_STOP_POLICIES, **given}

    def resolved_loss_agg_constant(self) -> float | None:
        """Return the constant of ``seq-mean-token-sum-norm``, else None."""
        # Other modes refuse a constant.
        if self.loss_agg_mode != "seq-mean-token-sum-norm":
            return None
        return self.loss_agg_constant

    def resolved_context_tokens(self) -> int:
        """Return the longest conversation in tokens."""
        from rllib_llm.modules.context_length import model_context_length

        limit = model_context_length(self.resolved_model or self.lm_model)
        # The default is bounded, since the cache of keys and values is sized by it and
        # many models allow 128k positions.
        return min(self.max_context_tokens or 2048, limit or 2048)

    def resolved_freeze(self) -> list[str]:
        """Return the parts of a vision-language model that are not trained."""
        if self.lm_freeze is not None:
            return list(self.lm_freeze)
        if self.lm_model in BUILT_MODELS or is_gguf(self.lm_model):
            return []  # a random tower, or a model of text
        if not self.chat_renderer().pictures:
            return []
        return ["vision", "projector"] if self.lm_lora else ["vision"]

    def trained_beside_adapters(self) -> list[str]:
        """Return the parts whose weights are trained although there are adapters."""
        adapted = lora_settings(self.lm_lora or {})["parts"]
        still = {*self.resolved_freeze(), *adapted}
        return [part for part in ("vision", "projector") if part not in still]

    def sampling_params(self, *, explore: bool) -> dict[str, Any]:
        """Return the SamplingParams keywords that do not depend on the request."""
        renderer = self.chat_renderer()
        return {
            # RLlib's `explore=False` means greedy decoding here.
            "temperature": self.temperature if explore else 0.0,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop_token_ids": renderer.stop_token_ids,
            "stop_strings": tuple(self.stop_strings),
        }

    def chat_renderers(self) -> dict[str, Any]:
        """Return every policy's renderer; None for those without a model."""
        return {
            module_id: self.get_config_for_module(module_id).chat_renderer()
            if module_id in self.llm_module_ids
            else None
            for module_id in self.module_ids
        }

    def system_prompts(self) -> dict[str, str]:
        """Return the configured system prompts, by policy."""
        prompts = {
            module_id: self.get_config_for_module(module_id).system_prompt
            for module_id in self.module_ids
        }
        return {m: p for m, p in prompts.items() if p}

    def role_prompts(self) -> dict[str, str]:
        """Return the environment's prompt for each of its agents."""
        env = self.make_text_env()
        prompts = role_prompts(env)
        env.close()
        return prompts

    def chat_renderer(self) -> Any:
        """Return the renderer of the model's chat template."""
        return _renderer(
            self.resolved_model or self.lm_model,
            self.history,
            # As text, because the cache below needs hashable arguments.
            json.dumps(self.chat_template_kwargs, sort_keys=True),
        )

    def make_text_env(self) -> Any:
        """Return one new environment."""
        return validation.make_env(self.env, self.env_config)

    @property
    def mixture_members(self) -> list[MixtureMember]:
        """The environments of a mixture; empty without a mixture."""
        return read_members(self.env_config) if self.env == MIXTURE else []

    def make_each_env(self) -> dict[str, Any]:
        """Return one new environment of each kind that is sampled, by its name."""
        members = self.mixture_members
        if not members:
            return {str(self.env): self.make_text_env()}
        return {m.name: validation.make_env(m.env, m.env_config) for m in members}

    def component_specs(self) -> dict[str | None, ComponentSpecs]:
        """Return rewards, filters and curriculum of each environment, by its name.

        The name is None without a mixture.
        """
        of_run = {name: getattr(self, name) for name in COMPONENTS}
        members = self.mixture_members
        if not members:
            return {None: ComponentSpecs(**of_run)}
        return {m.name: ComponentSpecs(**(of_run | m.components)) for m in members}

    def make_sampled_env(self) -> Any:
        """Return one new environment for an EnvRunner, in this process or its own."""
        if not self.env_processes:
            return self.make_text_env()
        from ray import cloudpickle

        from rllib_llm.envs.process_env import ProcessEnv

        maker = validation.env_maker(self.env, self.env_config)
        # cloudpickle, so that functions of a notebook or script work, too.
        return ProcessEnv(cloudpickle.dumps(maker))

    @property
    def most_envs_in_threads(self) -> int:
        """Number of environments that the driver may play in threads at a time."""
        return 1 if self.env_processes else self.num_envs_per_env_runner

    def build_task_source(self, *, offset: int = 0, in_evaluation: bool = False) -> Any:
        """Return the source of training or evaluation tasks.

        Args:
            offset: Number of a runner that draws its own tasks, to separate its seeds.
            in_evaluation: Evaluation tasks are of the held-out split and independent of
                the run's seed, so that all runs are compared on the same ones.
        """
        from rllib_llm.env_runner.task_groups import (
            TaskSource,
            environment_tasks,
            held_out_source,
        )

        if in_evaluation:
            # Independent of the run's seed: evaluations of all runs use the same tasks.
            return held_out_source(self.env, self.env_config)
        # A prime above any usual number of seeds, so that EnvRunners of different runs
        # do not share tasks.
        shift = 100_003 * offset
        return TaskSource(
            seed=(self.seed or 0) + shift,
            group_size=self.group_size,
            split="train",
            environments=environment_tasks(self.env, self.env_config, shift),
        )

    def build_generation_engine(
        self,
        module: LLMRLModule,
        share: float = 1.0,
        planned_bytes: int | None = None,
    ) -> Any:
        """Return the engine that samples with ``module``'s language model.

        Args:
            module: The LLMRLModule.
            share: Share of the memory for keys and values; other engines get the rest.
            planned_bytes: Bytes that the process will need beside them on the device;
                None: those that it has now.
        """
        from rllib_llm.algorithms.driver.build_engines import torch_engine

        if self.generation_engine != "torch":
            from rllib_llm.algorithms.driver.build_vllm_engines import build_engine

            return build_engine(self)
        return torch_engine(self, [module], share=share, planned_bytes=planned_bytes)

    def build_generation_engines(
        self, modules: Mapping[str, Any], *, beside_learner: bool = False
    ) -> dict[str, Any]:
        """Return the engine that samples for each policy.

        Policies whose adapters have the same base model share an engine, and so its
        batches.

        Args:
            modules: The LLMRLModules, by ModuleID.
            beside_learner: Whether this process will train on the same device.
        """
        from rllib_llm.algorithms.driver.build_engines import build_engines

        return build_engines(self, modules, beside_learner=beside_learner)


@functools.lru_cache(maxsize=8)
def _renderer(model: str, history: str, template_kwargs: str) -> Any:
    from rllib_llm.connectors.chat import ChatRenderer
    from rllib_llm.modules.loading import load_tokenizer
    from rllib_llm.pictures.spec import image_spec

    # Cached: loading takes longer than a step of the tiny model, and every policy and
    # EnvRunner of the process asks for it.
    tokenizer = load_tokenizer(os.path.expanduser(model))
    kwargs = json.loads(template_kwargs)
    return ChatRenderer(tokenizer, history, kwargs, image_spec(model))
