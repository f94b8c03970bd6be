"""Settings and derived values that all algorithms' configs share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.annotations import override
from ray.util import log_once

from rllib_llm.algorithms.config import validation
from rllib_llm.algorithms.config.alarms import AlarmSettings
from rllib_llm.algorithms.config.check_calls import check_attributes, check_calls
from rllib_llm.algorithms.config.check_non_llm import non_llm_specs
from rllib_llm.algorithms.config.check_policies import validate_trained
from rllib_llm.algorithms.config.declarations import setting, state
from rllib_llm.algorithms.config.derived import DerivedSettings
from rllib_llm.algorithms.config.evaluation import EvaluationSettings
from rllib_llm.algorithms.config.fault_tolerance import FaultToleranceSettings
from rllib_llm.algorithms.config.learners import LearnerSettings
from rllib_llm.algorithms.config.resources import ResourceSettings
from rllib_llm.algorithms.config.sampling_ahead import SamplingAheadSettings
from rllib_llm.algorithms.config.saving import validate_saving
from rllib_llm.algorithms.config.sft import SFTSettings
from rllib_llm.callbacks.defaults import install_defaults
from rllib_llm.errors import ConfigError
from rllib_llm.modules.fast_dtype import resolve_dtype
from rllib_llm.modules.gguf_models import is_gguf
from rllib_llm.modules.tiny import BUILT_MODELS

if TYPE_CHECKING:
    import gymnasium as gym

    from rllib_llm.algorithms.config.preferences import PreferencePass
    from rllib_llm.algorithms.driver.learner_group import LLMLearnerGroup
    from rllib_llm.types import Device, Spaces


class LLMConfigMixin(
    DerivedSettings,
    SFTSettings,
    ResourceSettings,
    LearnerSettings,
    EvaluationSettings,
    AlarmSettings,
    FaultToleranceSettings,
    SamplingAheadSettings,
):
    """Mixin that adds language-model settings to an RLlib AlgorithmConfig.

    Put it before the AlgorithmConfig class in the bases and call
    :meth:`_set_llm_defaults` after ``super().__init__``. RLlib's methods keep their
    meaning; settings that mean nothing for whole episodes of text
    (``rollout_fragment_length``, ``train_batch_size``) are derived.
    """

    # RLlib's defaults that do not suit language agents ------------------------------

    # Sampling in this process shares the Learner's parameters and needs no transfer of
    # weights.
    num_env_runners = setting(0)
    num_envs_per_env_runner = setting(64)
    num_learners = setting(0)
    # Returns and groups exist for whole episodes only.
    batch_mode = setting("complete_episodes")
    rollout_fragment_length = setting("auto")
    # Longer than any evaluation: RLlib would drop the episodes of slow EnvRunners, and
    # fails with None once it loses all of them.
    evaluation_sample_timeout_s = setting(604_800.0)
    evaluation_duration_unit = setting("episodes")
    evaluation_duration = setting(64)
    # Ragged arrays and texts do not survive RLlib's conversion.
    episodes_to_numpy = setting(False)
    grad_clip = setting(1.0)
    # Fixed by default, so that a run can be repeated; RLlib's None cannot.
    seed = setting(0)
    # RLlib's default connectors build one row per time step.
    add_default_connectors_to_learner_pipeline = setting(False)

    # State --------------------------------------------------------------------------

    resolved_model: str | None = state(None)  # written when the algorithm is built
    resolved_ref_model: str | None = state(None)  # likewise
    # Checkpoint from which a later stage initialises its policies.
    initial_checkpoint: str | None = state(None)
    # Folders of the episodes that earlier stages save, by the stage's name; None: the
    # stage has not run yet.
    earlier_stages: dict[str, str | None] = state({})
    # Where the trial's processes publish their progress; set when building.
    live_topic: str | None = state(None)
    tune_trial: str = state("none")  # its id, which RLlib's config objects drop
    # Only imitation may train prompt tokens: SFT has a setting of this name.
    observation_weight = 0.0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_calls(cls)

    @property
    def uses_replay(self) -> bool:
        """True if earlier episodes join the updates; not every algorithm can."""
        return False

    @property
    def uses_scorer(self) -> bool:
        """True if a scorer is trained beside the policy; not every algorithm can."""
        return False

    @property
    def action_labels(self) -> int | None:
        """Number of labels of parsed actions that a scorer learns; None without one."""
        return None

    @property
    def preference_pass(self) -> PreferencePass | None:
        """The preference loss that Learners compute; None: the algorithm has none."""
        return None

    @property
    def mixes_pairs(self) -> bool:
        """True if pairs join the updates of sampled episodes."""
        return False

    @property
    def mixes_files(self) -> bool:
        """True if conversations of files join the updates of sampled episodes."""
        return False

    def _set_llm_defaults(self) -> None:
        self._set_declared_defaults()
        install_defaults(self)  # exact means, transcripts

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
        # First: attributes can be set directly, past the checks of the fluent methods.
        check_attributes(self)
        self._require_new_api_stack()
        self._use_sharing_mode()
        install_defaults(self)  # again: .callbacks() may have replaced them
        validation.register_env(self.env, self.env_config)
        if self.env_runner_cls is None:
            from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

            self.env_runner_cls = LLMEnvRunner
        self.lm_dtype = resolve_dtype(self.lm_dtype, self.num_gpus_per_learner)
        validate_trained(self)
        # RLlib compares minibatch_size, which counts episodes here, with time steps.
        self.train_batch_size_per_learner = max(
            self.episodes_per_iteration, self.minibatch_size or 0
        )
        # RLlib would wait for the episodes in progress at the end of every iteration.
        self._dont_auto_sync_env_runner_states = bool(self.sample_ahead)
        # RLlib would advise leaving its new API stack, which api_stack() refuses.
        log_once(f"{self.algo_class.__name__}_on_new_api_stack")
        self.place_actors()
        super().validate()
        validate_saving(self)
        self.resolve_policies()
        self.validate_alarms()
        self.validate_fault_tolerance()
        self.validate_learners()
        if not self.in_evaluation:
            self.validate_sampling_ahead()
            self.validate_placement()
            validation.validate(self)

    @override(AlgorithmConfig)
    def validate_train_batch_size_vs_rollout_fragment_length(self) -> None:
        """Check nothing: batches are counted in whole episodes."""

    @override(AlgorithmConfig)
    def build_learner_group(
        self,
        *,
        env: Any = None,
        spaces: Spaces | None = None,
        rl_module_spec: Any = None,
        placement_group: Any = None,
    ) -> LLMLearnerGroup:
        """Return RLlib's LearnerGroup, whose calls end within a time limit."""
        from rllib_llm.algorithms.driver.learner_group import LLMLearnerGroup

        spec = rl_module_spec or self.get_multi_rl_module_spec(env=env, spaces=spaces)
        return LLMLearnerGroup(
            config=self.copy(), module_spec=spec, placement_group=placement_group
        )

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
        from rllib_llm.modules.scorer import SCORER_MODULE
        from rllib_llm.modules.scripted import ScriptedRLModule

        critic, scorer = self.critic_module_spec(), self.scorer_module_spec()
        inference_only = bool(kwargs.get("inference_only"))
        spec = super().get_multi_rl_module_spec(**kwargs)
        # EnvRunners sample only, so critics and scorers exist in Learners alone.
        for module_id, extra in ((CRITIC_MODULE, critic), (SCORER_MODULE, scorer)):
            if extra is not None and not inference_only:
                spec.rl_module_specs[module_id] = extra
        non_llm_ids = non_llm_specs(self, inference_only=inference_only)
        spec.rl_module_specs.update(non_llm_ids)
        for module_id, part in spec.rl_module_specs.items():
            # Critic, scorer and non-LLM modules have their model_config already.
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

    def scorer_module_spec(self) -> RLModuleSpec | None:
        """Return the specification of the scorer, None without one."""
        return None

    def value_head_settings(self) -> dict[str, Any]:
        """Return the settings of a ValueHead."""
        return {"kind": self.lm_value_head, "detach": self.lm_value_head_detach}

    def language_model_config(self) -> dict[str, Any]:
        """Return the RLModule's ``model_config``."""
        # A critic that policies share has the only head, in a module of its own.
        has_head = self.use_critic and not self.critic_view
        return {
            "model": self.resolved_model or self.lm_model,
            "dtype": resolve_dtype(self.lm_dtype, self.num_gpus_per_learner),
            "autocast": self.lm_autocast,
            "lora": self.lm_lora,
            "freeze": self.resolved_freeze(),
            "value_head": self.value_head_settings() if has_head else None,
            "value_model": self.lm_value_model,
            "reference": self.uses_reference,
            "ref_model": self.resolved_ref_model,
            "mask_policy": self.mask_top_p is not None,
            "temperature": self.temperature,
            "vocabulary": self._vocabulary(),
            # Equal in all processes: new heads and adapters must start with the same
            # weights.
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
        # Such a model has no tokenizer before it is prepared.
        is_built = self.lm_model in BUILT_MODELS or is_gguf(self.lm_model)
        if self.resolved_model is None and is_built:
            return None
        return self.chat_renderer().vocabulary

    @override(AlgorithmConfig)
    def build_env_to_module_connector(
        self,
        env: gym.Env | None = None,
        spaces: Spaces | None = None,
        device: Device | None = None,
    ) -> Any:
        from rllib_llm.connectors.pipelines import env_to_module_pipeline

        return env_to_module_pipeline(self, env, spaces, device)

    @override(AlgorithmConfig)
    def build_module_to_env_connector(
        self, env: gym.Env | None = None, spaces: Spaces | None = None
    ) -> Any:
        from rllib_llm.connectors.pipelines import module_to_env_pipeline

        return module_to_env_pipeline(self, env, spaces)

    @override(AlgorithmConfig)
    def build_learner_connector(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        device: Device | None = None,
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
