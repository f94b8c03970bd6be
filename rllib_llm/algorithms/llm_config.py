"""The fluent settings that every algorithm of the package shares."""

from __future__ import annotations

import functools
import json
import os
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.annotations import override
from typing_extensions import Self

from rllib_llm.algorithms import validation
from rllib_llm.callbacks.defaults import install_defaults
from rllib_llm.types import DEFAULT_STOP_POLICIES, StopPolicy, StopReason


class LLMConfigMixin:
    """Adds language-model settings to an RLlib AlgorithmConfig.

    Put it before the AlgorithmConfig class in the bases and call
    :meth:`_set_llm_defaults` after ``super().__init__``. RLlib's own methods keep their
    meaning; where one of its settings has no meaning for whole episodes of text
    (``rollout_fragment_length``, ``train_batch_size``) it is derived.
    """

    def _set_llm_defaults(self) -> None:
        # fmt: off
        # __sphinx_doc_begin__
        # .language_model()
        self.lm_model = "tiny"
        self.lm_dtype = "float32"
        self.lm_lora: dict[str, Any] | None = None
        self.lm_tiny: dict[str, Any] = {}
        self.lm_value_head = "mlp"
        self.lm_value_head_detach = True
        self.lm_model_kwargs: dict[str, Any] = {}
        self.gradient_checkpointing = False
        self.history = "append"
        self.chat_template_kwargs: dict[str, Any] = {}
        self.system_prompt: str | None = None
        # .generation()
        self.generation_engine = "torch"
        self.max_new_tokens = 32
        self.max_context_tokens: int | None = None
        self.temperature = 1.0
        self.top_p = 1.0
        self.top_k = 0
        self.stop_strings: tuple[str, ...] = ()
        # .rollouts()
        self.episodes_per_iteration = 64
        self.group_size = 1
        self.max_turns: int | None = None
        self.max_tokens_per_episode: int | None = None
        self.step_timeout_s: float | None = 60.0
        self.turn_timeout_s: float | None = 600.0
        self.episode_timeout_s: float | None = None
        self.max_retries = 2
        self.max_failed_fraction = 0.1
        self.stop_policies: dict[str, str] = {}
        self.row_per_turn = False
        # .warm_start()
        self.warm_start_demonstrations = 0
        self.warm_start_mistake_rate = 0.3
        self.warm_start_epochs = 2
        self.warm_start_lr = 1e-3
        self.warm_start_minibatch_size = 8
        # .training()
        self.critic_lr: float | None = None
        self.critic_warmup_iters = 0
        self.weight_decay = 0.0
        self.micro_batch_tokens: int | None = 8192
        self.old_logps = "learner"
        self.nan_policy = "skip"
        self.loss_agg_mode = "token-mean"
        self.loss_agg_constant: float | None = None
        self.ref_kl_coeff = 0.0
        self.ref_kl_estimator = "k3"
        self.ref_kl_in = "loss"
        self.ref_kl_target: float | None = None
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
        # Where the prepared model lies; written when the algorithm is built.
        self.resolved_model: str | None = None

    # Fluent methods ------------------------------------------------------------------

    def language_model(
        self,
        *,
        model: str = NotProvided,
        dtype: str = NotProvided,
        lora: dict[str, Any] | None = NotProvided,
        tiny: dict[str, Any] = NotProvided,
        value_head: str = NotProvided,
        value_head_detach: bool = NotProvided,
        model_kwargs: dict[str, Any] = NotProvided,
        gradient_checkpointing: bool = NotProvided,
        history: str = NotProvided,
        chat_template_kwargs: dict[str, Any] = NotProvided,
        system_prompt: str | None = NotProvided,
    ) -> Self:
        """Choose the language model.

        Args:
            model: A Hugging Face checkpoint folder or hub id, or ``"tiny"``: a small
                random model with its own tokenizer, built on the spot (default).
            dtype: Parameters' dtype: "float32", "bfloat16", "float16".
            lora: None trains all weights; a dict trains adapters only: ``rank``,
                ``alpha``, ``dropout``, ``target_modules``.
            tiny: Sizes of the tiny model, e.g. ``{"hidden_size": 192}``.
            value_head: "mlp" or "linear" (algorithms with a critic).
            value_head_detach: Keep the critic's gradient out of the trunk (default: a
                critic that moves the trunk moves the policy as well).
            model_kwargs: Passed to ``from_pretrained``, e.g. attn_implementation.
            gradient_checkpointing: Trade compute for memory in the learner.
            history: "append" or "rerender" (see docs/design.md).
            chat_template_kwargs: Given to the chat template, e.g.
                ``{"enable_thinking": False}`` for Qwen3.
            system_prompt: First message of every conversation.
        """
        _assign(
            self,
            lm_model=model,
            lm_dtype=dtype,
            lm_lora=lora,
            lm_tiny=tiny,
            lm_value_head=value_head,
            lm_value_head_detach=value_head_detach,
            lm_model_kwargs=model_kwargs,
            gradient_checkpointing=gradient_checkpointing,
            history=history,
            chat_template_kwargs=chat_template_kwargs,
            system_prompt=system_prompt,
        )
        return self

    def generation(
        self,
        *,
        engine: str = NotProvided,
        max_new_tokens: int = NotProvided,
        max_context_tokens: int | None = NotProvided,
        temperature: float = NotProvided,
        top_p: float = NotProvided,
        top_k: int = NotProvided,
        stop_strings: list[str] = NotProvided,
    ) -> Self:
        """Choose how turns are sampled.

        Args:
            engine: "torch", the embedded engine.
            max_new_tokens: Most tokens per turn (verl ``response_length``).
            max_context_tokens: Most tokens of a conversation; None: the model's own
                limit, at most 2048.
            temperature: Sampling temperature; training uses the same distribution.
            top_p: Nucleus sampling, evaluation only (must be 1.0 in training).
            top_k: Top-k sampling, evaluation only (must be 0 in training).
            stop_strings: Texts that end a turn, beside the end-of-turn token.
        """
        _assign(
            self,
            generation_engine=engine,
            max_new_tokens=max_new_tokens,
            max_context_tokens=max_context_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            stop_strings=stop_strings,
        )
        return self

    def rollouts(
        self,
        *,
        episodes_per_iteration: int = NotProvided,
        group_size: int = NotProvided,
        max_turns: int | None = NotProvided,
        max_tokens_per_episode: int | None = NotProvided,
        step_timeout_s: float | None = NotProvided,
        turn_timeout_s: float | None = NotProvided,
        episode_timeout_s: float | None = NotProvided,
        max_retries: int = NotProvided,
        max_failed_fraction: float = NotProvided,
        stop_policies: dict[str, str] = NotProvided,
        row_per_turn: bool = NotProvided,
    ) -> Self:
        """Choose how many episodes are sampled, and their bounds.

        Args:
            episodes_per_iteration: Episodes per training iteration, over all
                EnvRunners (verl ``train_batch_size`` x ``rollout.n``).
            group_size: Rollouts per task, sharing seed and options (TRL
                ``num_generations``); must divide episodes_per_iteration.
            max_turns: Cut episodes after this many turns, beside the env's own limit.
            max_tokens_per_episode: Cut after this many sampled tokens.
            step_timeout_s: Longest env.reset/env.step call.
            turn_timeout_s: Longest generation of one turn.
            episode_timeout_s: Longest episode.
            max_retries: How often a dropped episode is tried again.
            max_failed_fraction: Share of episodes that may fail for good before
                training stops with an error.
            stop_policies: Stop reason to "train", "bootstrap", "mask" or "drop";
                unnamed ones keep their defaults (docs/design.md).
            row_per_turn: One training row per turn instead of merged rows.
        """
        _assign(
            self,
            episodes_per_iteration=episodes_per_iteration,
            group_size=group_size,
            max_turns=max_turns,
            max_tokens_per_episode=max_tokens_per_episode,
            step_timeout_s=step_timeout_s,
            turn_timeout_s=turn_timeout_s,
            episode_timeout_s=episode_timeout_s,
            max_retries=max_retries,
            max_failed_fraction=max_failed_fraction,
            stop_policies=stop_policies,
            row_per_turn=row_per_turn,
        )
        return self

    def warm_start(
        self,
        *,
        demonstrations: int = NotProvided,
        mistake_rate: float = NotProvided,
        epochs: int = NotProvided,
        lr: float = NotProvided,
        minibatch_size: int = NotProvided,
    ) -> Self:
        """Fine-tune on scripted demonstrations before RL, once, cached.

        The environment's ``expert_action`` plays ``demonstrations`` episodes; with
        probability ``mistake_rate`` a turn is replaced by ``random_action``, so that
        there is something left to learn. The policy imitates all turns.

        Args:
            demonstrations: Episodes; 0 switches the stage off (default).
            mistake_rate: Share of random turns, in [0, 1].
            epochs: Passes over the demonstrations.
            lr: Learning rate, decayed linearly to a tenth.
            minibatch_size: Episodes per optimiser step.
        """
        _assign(
            self,
            warm_start_demonstrations=demonstrations,
            warm_start_mistake_rate=mistake_rate,
            warm_start_epochs=epochs,
            warm_start_lr=lr,
            warm_start_minibatch_size=minibatch_size,
        )
        return self

    def _llm_training(
        self,
        *,
        critic_lr: float | None = NotProvided,
        critic_warmup_iters: int = NotProvided,
        weight_decay: float = NotProvided,
        micro_batch_tokens: int | None = NotProvided,
        old_logps: str = NotProvided,
        nan_policy: str = NotProvided,
        loss_agg_mode: str = NotProvided,
        loss_agg_constant: float | None = NotProvided,
        ref_kl_coeff: float = NotProvided,
        ref_kl_estimator: str = NotProvided,
        ref_kl_in: str = NotProvided,
        ref_kl_target: float | None = NotProvided,
        minibatch_size: int | None = NotProvided,
        num_epochs: int = NotProvided,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Take the training settings that all algorithms share; return the others."""
        _assign(
            self,
            critic_lr=critic_lr,
            critic_warmup_iters=critic_warmup_iters,
            weight_decay=weight_decay,
            micro_batch_tokens=micro_batch_tokens,
            old_logps=old_logps,
            nan_policy=nan_policy,
            loss_agg_mode=loss_agg_mode,
            loss_agg_constant=loss_agg_constant,
            ref_kl_coeff=ref_kl_coeff,
            ref_kl_estimator=ref_kl_estimator,
            ref_kl_in=ref_kl_in,
            ref_kl_target=ref_kl_target,
            minibatch_size=minibatch_size,
            num_epochs=num_epochs,
        )
        return kwargs

    # What RLlib asks for -------------------------------------------------------------

    @override(AlgorithmConfig)
    def validate(self) -> None:
        """Check every setting; the message names value, rule and remedy."""
        install_defaults(self)  # again: .callbacks() may have replaced them
        validation.register_env(self.env, self.env_config)
        if self.env_runner_cls is None:
            from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

            self.env_runner_cls = LLMEnvRunner
        super().validate()
        if not self.in_evaluation:
            validation.validate(self)

    @override(AlgorithmConfig)
    def validate_train_batch_size_vs_rollout_fragment_length(self) -> None:
        """Nothing to check: batches are counted in whole episodes."""

    @override(AlgorithmConfig)
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        from rllib_llm.modules.llm_rl_module import LLMRLModule

        return RLModuleSpec(
            module_class=LLMRLModule, model_config=self.language_model_config()
        )

    def language_model_config(self) -> dict[str, Any]:
        """Return the RLModule's ``model_config``."""
        head = {"kind": self.lm_value_head, "detach": self.lm_value_head_detach}
        return {
            "model": self.resolved_model or self.lm_model,
            "dtype": self.lm_dtype,
            "lora": self.lm_lora,
            "value_head": head if self.use_critic else None,
            "reference": self.uses_reference,
            "temperature": self.temperature,
            "init_seed": self.seed or 0,
            "gradient_checkpointing": self.gradient_checkpointing,
            "model_kwargs": self.lm_model_kwargs,
            "turns": {
                "max_new_tokens": self.max_new_tokens,
                "max_context_tokens": self.resolved_context_tokens(),
                "max_slots": self.num_envs_per_env_runner,
                "seed": self.seed or 0,
            },
        }

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

    # What the package asks for -------------------------------------------------------

    @property
    def uses_reference(self) -> bool:
        """Whether a frozen reference policy is needed."""
        return self.ref_kl_coeff != 0.0

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
        from rllib_llm.modules.preparation import model_context_length

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

    def chat_renderer(self) -> Any:
        """Return the renderer of the model's chat template."""
        return _renderer(
            self.resolved_model or self.lm_model,
            self.history,
            json.dumps(self.chat_template_kwargs, sort_keys=True),
        )

    def make_text_env(self) -> Any:
        """Build one environment."""
        return validation.make_env(self.env, self.env_config)

    def build_task_source(self, *, offset: int = 0, in_evaluation: bool = False) -> Any:
        """Return the source of training or evaluation tasks.

        Args:
            offset: Distinguishes runners that draw their own tasks.
            in_evaluation: Evaluation tasks come from the held-out split and do not
                depend on the run's seed, so that runs are compared on the same ones.
        """
        from rllib_llm.env_runner.tasks import TaskSource

        if in_evaluation:
            return TaskSource(seed=0, split="test")
        seed = (self.seed or 0) + 100_003 * offset
        return TaskSource(seed=seed, group_size=self.group_size, split="train")

    def build_generation_engine(self, module: Any) -> Any:
        """Return the engine that samples with ``module``'s language model."""
        from rllib_llm.engines.torch_engine import TorchEngine

        return TorchEngine(
            module.lm,
            max_slots=self.num_envs_per_env_runner,
            max_context_tokens=self.resolved_context_tokens(),
            tokenizer=self.chat_renderer().tokenizer,
        )


def _assign(config: Any, **settings: Any) -> None:
    for name, value in settings.items():
        if value is not NotProvided:
            setattr(config, name, value)


@functools.lru_cache(maxsize=8)
def _renderer(model: str, history: str, template_kwargs: str) -> Any:
    from rllib_llm.connectors.chat import ChatRenderer
    from rllib_llm.modules.loading import load_tokenizer

    tokenizer = load_tokenizer(os.path.expanduser(model))
    return ChatRenderer(tokenizer, history, json.loads(template_kwargs))
