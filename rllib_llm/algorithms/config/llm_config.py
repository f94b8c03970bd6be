"""Settings and derived values that all algorithms' configs share."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from typing import Any, Self

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.annotations import override
from ray.util import log_once

from rllib_llm.algorithms.config import validation
from rllib_llm.algorithms.config.alarms import AlarmSettings
from rllib_llm.algorithms.config.calls import check_attributes, check_calls
from rllib_llm.algorithms.config.check_non_llm import non_llm_specs
from rllib_llm.algorithms.config.check_policies import validate_trained
from rllib_llm.algorithms.config.evaluation import EvaluationSettings
from rllib_llm.algorithms.config.fault_tolerance import FaultToleranceSettings
from rllib_llm.algorithms.config.generation import GenerationSettings
from rllib_llm.algorithms.config.language_model import LanguageModelSettings
from rllib_llm.algorithms.config.multi_agent import MultiAgentSettings
from rllib_llm.algorithms.config.rollouts import RolloutSettings
from rllib_llm.algorithms.config.sft import SFTSettings
from rllib_llm.algorithms.config.training import TrainingSettings
from rllib_llm.callbacks.defaults import install_defaults
from rllib_llm.data.types import DEFAULT_STOP_POLICIES, StopPolicy, StopReason
from rllib_llm.env_runner.agents import role_prompts
from rllib_llm.errors import ConfigError


class LLMConfigMixin(
    LanguageModelSettings,
    GenerationSettings,
    RolloutSettings,
    MultiAgentSettings,
    SFTSettings,
    TrainingSettings,
    EvaluationSettings,
    AlarmSettings,
    FaultToleranceSettings,
):
    """Mixin that adds language-model settings to an RLlib AlgorithmConfig.

    Put it before the AlgorithmConfig class in the bases and call
    :meth:`_set_llm_defaults` after ``super().__init__``. RLlib's methods keep their
    meaning; settings that mean nothing for whole episodes of text
    (``rollout_fragment_length``, ``train_batch_size``) are derived.
    """

    # Only imitation may train prompt tokens: SFT has a setting of this name.
    observation_weight = 0.0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_calls(cls)

    def _set_llm_defaults(self) -> None:
        # fmt: off
        # __sphinx_doc_begin__
        self._set_language_model_defaults()
        self._set_generation_defaults()
        self._set_rollouts_defaults()
        self._set_multi_agent_defaults()
        self._set_sft_defaults()
        self._set_training_defaults()
        self._set_evaluation_defaults()
        self._set_alarm_defaults()
        self._set_fault_tolerance_defaults()
        # RLlib's defaults that do not suit language agents.
        self.num_env_runners = 0
        self.num_envs_per_env_runner = 64
        self.num_learners = 0
        self.batch_mode = "complete_episodes"
        self.rollout_fragment_length = "auto"
        self.sample_timeout_s = None
        self.evaluation_sample_timeout_s = None
        self.evaluation_duration_unit = "episodes"
        self.evaluation_duration = 64
        self.episodes_to_numpy = False
        self.grad_clip = 1.0
        self.minibatch_size = None
        self.num_epochs = 1
        self.seed = 0
        self.add_default_connectors_to_learner_pipeline = False
        install_defaults(self)  # exact means, transcripts
        # __sphinx_doc_end__
        # fmt: on
        # Folder of the prepared model; written when the algorithm is built.
        self.resolved_model: str | None = None
        # Checkpoint from which a later stage initialises its policies.
        self.initial_checkpoint: str | None = None
        # Where the trial's processes publish their progress; set when building.
        self.live_topic: str | None = None

    # Hooks that RLlib calls ----------------------------------------------------------

    @override(AlgorithmConfig)
    def api_stack(
        self,
        enable_rl_module_and_learner: bool = NotProvided,
        enable_env_runner_and_connector_v2: bool = NotProvided,
    ) -> Self:
        """Refuse RLlib's old API stack, which language agents do not have.

        Args:
            enable_rl_module_and_learner: True or not given.
            enable_env_runner_and_connector_v2: True or not given.
        """
        super().api_stack(
            enable_rl_module_and_learner=enable_rl_module_and_learner,
            enable_env_runner_and_connector_v2=enable_env_runner_and_connector_v2,
        )
        self._require_new_api_stack()
        return self

    def _require_new_api_stack(self) -> None:
        for name in (
            "enable_rl_module_and_learner",
            "enable_env_runner_and_connector_v2",
        ):
            if getattr(self, name) is not True:
                raise ConfigError(
                    f"api_stack.{name}={getattr(self, name)!r} must be True: language "
                    "agents are RLModules on RLlib's new API stack. Leave .api_stack() "
                    "out."
                )

    @override(AlgorithmConfig)
    def validate(self) -> None:
        """Check every setting; errors give value, rule and remedy."""
        check_attributes(self)
        self._require_new_api_stack()
        self._use_sharing_mode()
        install_defaults(self)  # again: .callbacks() may have replaced them
        validation.register_env(self.env, self.env_config)
        if self.env_runner_cls is None:
            from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

            self.env_runner_cls = LLMEnvRunner
        validate_trained(self)
        # RLlib compares minibatch_size, which counts episodes here, with time steps.
        self.train_batch_size_per_learner = max(
            self.episodes_per_iteration, self.minibatch_size or 0
        )
        # RLlib would advise leaving its new API stack, which api_stack() refuses.
        log_once(f"{self.algo_class.__name__}_on_new_api_stack")
        super().validate()
        self.resolve_policies()
        self.validate_alarms()
        self.validate_fault_tolerance()
        if not self.in_evaluation:
            validation.validate(self)

    @override(AlgorithmConfig)
    def validate_train_batch_size_vs_rollout_fragment_length(self) -> None:
        """Check nothing: batches are counted in whole episodes."""

    @override(AlgorithmConfig)
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        from rllib_llm.modules.llm_rl_module import LLMRLModule

        return RLModuleSpec(
            module_class=LLMRLModule, model_config=self.language_model_config()
        )

    @override(AlgorithmConfig)
    def get_multi_rl_module_spec(self, **kwargs: Any) -> Any:
        """Return RLlib's specification, each policy with its own settings."""
        from rllib_llm.modules.critic import CRITIC_MODULE
        from rllib_llm.modules.scripted import ScriptedRLModule

        critic = self.critic_module_spec()
        inference_only = bool(kwargs.get("inference_only"))
        spec = super().get_multi_rl_module_spec(**kwargs)
        if critic is not None and not inference_only:
            spec.rl_module_specs[CRITIC_MODULE] = critic
        non_llm_ids = non_llm_specs(self, inference_only=inference_only)
        spec.rl_module_specs.update(non_llm_ids)
        for module_id, part in spec.rl_module_specs.items():
            if module_id not in self.module_ids or module_id in non_llm_ids:
                continue
            if self.script_of(module_id) is not None:
                part.module_class, part.model_config = ScriptedRLModule, {}
                continue
            module_config = self.get_config_for_module(module_id)
            settings = module_config.language_model_config()
            part.model_config = {**settings, "module_id": module_id}
        return spec

    def critic_module_spec(self) -> RLModuleSpec | None:
        """Return the specification of a critic that policies share, None for none."""
        return None

    def value_head_settings(self) -> dict[str, Any]:
        """Return the settings of a ValueHead."""
        return {"kind": self.lm_value_head, "detach": self.lm_value_head_detach}

    def language_model_config(self) -> dict[str, Any]:
        """Return the RLModule's ``model_config``."""
        has_head = self.use_critic and not self.critic_view
        return {
            "model": self.resolved_model or self.lm_model,
            "dtype": self.lm_dtype,
            "autocast": self.lm_autocast,
            "lora": self.lm_lora,
            "value_head": self.value_head_settings() if has_head else None,
            "value_model": self.lm_value_model,
            "reference": self.uses_reference,
            "temperature": self.temperature,
            "vocabulary": self._vocabulary(),
            "init_seed": self.seed or 0,
            "gradient_checkpointing": self.gradient_checkpointing,
            "compile": self.lm_compile,
            "head_chunk_tokens": self.head_chunk_tokens,
            "model_kwargs": self.lm_model_kwargs,
            "turns": {
                "max_new_tokens": self.max_new_tokens,
                "max_context_tokens": self.resolved_context_tokens(),
                "max_slots": self.num_envs_per_env_runner,
                "seed": self.seed or 0,
            },
        }

    def _vocabulary(self) -> int | None:
        """Return the tokenizer's number of ids; None while there is no model."""
        if self.resolved_model is None and self.lm_model == "tiny":
            return None
        return self.chat_renderer().vocabulary

    @override(AlgorithmConfig)
    def build_env_to_module_connector(
        self, env: Any = None, spaces: Any = None, device: Any = None
    ) -> Any:
        from rllib_llm.connectors.pipelines import env_to_module_pipeline

        return env_to_module_pipeline(self, env, spaces, device)

    @override(AlgorithmConfig)
    def build_module_to_env_connector(self, env: Any = None, spaces: Any = None) -> Any:
        from rllib_llm.connectors.pipelines import module_to_env_pipeline

        return module_to_env_pipeline(self, env, spaces)

    @override(AlgorithmConfig)
    def build_learner_connector(
        self,
        input_observation_space: Any = None,
        input_action_space: Any = None,
        device: Any = None,
    ) -> Any:
        from rllib_llm.connectors.pipelines import learner_pipeline

        return learner_pipeline(
            self, input_observation_space, input_action_space, device
        )

    def advantage_connectors(self, configs: Mapping[str, Any]) -> list[Any]:
        """Return the learner connectors that estimate advantages from values.

        Args:
            configs: Configs of the trained policies, by ModuleID.
        """
        if not self.use_critic:
            return []
        from rllib_llm.connectors.pipelines import token_gae

        return [token_gae(configs)]

    @property
    def advantages_cross_agents(self) -> bool:
        """True if an agent's advantage depends on the values of others' messages."""
        return False

    @property
    def critic_view(self) -> str | None:
        """Rows of a critic that is an RLModule of its own; None without one."""
        return None

    # Derived settings ----------------------------------------------------------------

    @property
    def uses_reference(self) -> bool:
        """True if a frozen reference policy is needed."""
        return self.ref_kl_coeff != 0.0 or self.components_need("reference")

    def resolved_stop_policies(self) -> dict[StopReason, StopPolicy]:
        """Return the policy of every stop reason."""
        given = {StopReason(k): StopPolicy(v) for k, v in self.stop_policies.items()}
        return {**DEFAULT_STOP_POLICIES, **given}

    def resolved_loss_agg_constant(self) -> float | None:
        """Return the constant of ``seq-mean-token-sum-norm``, else None."""
        if self.loss_agg_mode != "seq-mean-token-sum-norm":
            return None
        return self.loss_agg_constant

    def resolved_context_tokens(self) -> int:
        """Return the longest conversation in tokens."""
        from rllib_llm.modules.context_length import model_context_length

        limit = model_context_length(self.resolved_model or self.lm_model)
        return min(self.max_context_tokens or 2048, limit or 2048)

    def sampling_params(self, *, explore: bool) -> dict[str, Any]:
        """Return the SamplingParams keywords that do not depend on the request."""
        renderer = self.chat_renderer()
        return {
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
            json.dumps(self.chat_template_kwargs, sort_keys=True),
        )

    def make_text_env(self) -> Any:
        """Return one new environment."""
        return validation.make_env(self.env, self.env_config)

    def make_sampled_env(self) -> Any:
        """Return one new environment for an EnvRunner, in this process or its own."""
        if not self.env_processes:
            return self.make_text_env()
        from ray import cloudpickle

        from rllib_llm.envs.process_env import ProcessEnv

        maker = validation.env_maker(self.env, self.env_config)
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
        from rllib_llm.env_runner.task_groups import TaskSource

        if in_evaluation:
            return TaskSource(seed=0, split="test")
        seed = (self.seed or 0) + 100_003 * offset
        return TaskSource(seed=seed, group_size=self.group_size, split="train")

    def build_generation_engine(self, module: Any, share: float = 1.0) -> Any:
        """Return the engine that samples with ``module``'s language model.

        Args:
            module: The LLMRLModule.
            share: Share of the memory for keys and values; other engines get the rest.
        """
        from rllib_llm.algorithms.driver.build_engines import torch_engine

        if self.generation_engine != "torch":
            from rllib_llm.algorithms.driver.build_vllm_engines import build_engine

            return build_engine(self)
        return torch_engine(self, [module], share=share)

    def build_generation_engines(self, modules: Mapping[str, Any]) -> dict[str, Any]:
        """Return the engine that samples for each policy.

        Policies whose adapters have the same base model share an engine, and so its
        batches.

        Args:
            modules: The LLMRLModules, by ModuleID.
        """
        from rllib_llm.algorithms.driver.build_engines import build_engines

        return build_engines(self, modules)


@functools.lru_cache(maxsize=8)
def _renderer(model: str, history: str, template_kwargs: str) -> Any:
    from rllib_llm.connectors.chat import ChatRenderer
    from rllib_llm.modules.loading import load_tokenizer

    tokenizer = load_tokenizer(os.path.expanduser(model))
    return ChatRenderer(tokenizer, history, json.loads(template_kwargs))
