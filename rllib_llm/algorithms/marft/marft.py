"""MARFT: multi-agent reinforcement fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Interval
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.algorithms.config.declarations import setting
from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.algorithms.ppo.llm_ppo import LLMPPOConfig
from rllib_llm.connectors.learner.multi_agent_gae import LEVELS, TEAM_REWARDS
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.errors import ConfigError
from rllib_llm.modules.critic import CRITIC_MODULE
from rllib_llm.schema import OneOf, PositiveInt

CRITICS = ("own", "shared", "central")
SCHEDULES = ("joint", "alternate", "sequential")
_OpenUnitInterval = Annotated[float, Interval(gt=0, lt=1)]

_LLMPPO_ONLY = (
    "preference_loss",
    "gae_level",
    "lambda_critic",
    "lambda_length_alpha",
    "value_loss",
    "value_huber_delta",
    "vf_clip_range",
)


class MARFTConfig(LLMPPOConfig):
    """Configuration of :class:`MARFT`.

    Example:
        >>> config = (
        ...     MARFTConfig()
        ...     .environment("secret_sum-v0")
        ...     .multi_agent(
        ...         policies=["alice", "bob"],
        ...         policy_mapping_fn={"alice": "alice", "bob": "bob"},
        ...     )
        ...     .training(level="action", critic="central")
        ... )
    """

    level: Annotated[str, OneOf(LEVELS)] = setting(
        "action",
        """"action" (MARFT-A): one ratio, advantage and value per message; "token"
        (MARFT-T): one per token, ``gamma_token`` and ``lambda_token`` inside
        messages.""",
    )
    critic: Annotated[str, OneOf(CRITICS)] = setting(
        "shared",
        """Estimator of values. "own": each policy's head, from its agent's
        conversation. "shared" (MARFT): one RLModule for all, from each agent's
        conversation. "central" (MAPPO): the same, from all agents' prompts and turns.
        As an RLModule it is a frozen copy of the base with a trained head; with
        ``value_head_detach=False`` all of it is trained.""",
    )
    team_reward: Annotated[str, OneOf(TEAM_REWARDS)] = setting(
        "mean",
        """"mean" or "sum" over the agents' rewards.""",
    )
    message_logp: Literal["mean", "sum"] = setting(
        "mean",
        """The log-ratio of a message is the "mean" over its tokens (GSPO's length
        normalisation) or their "sum" (MARFT's code).""",
    )
    update_schedule: Annotated[str, OneOf(SCHEDULES)] = setting(
        "joint",
        """"joint": all policies together; "alternate": one after the other,
        ``alternate_every`` iterations each; "sequential": one after the other within
        an update, each corrected for those before it (HAPPO).""",
    )
    alternate_every: PositiveInt = setting(
        10, "Iterations per policy (MARFT ``agent_iteration_interval``)."
    )
    sequential_ratio_clip: _OpenUnitInterval = setting(
        0.2, "Clip of each message's ratio in the correction, in (0, 1)."
    )
    sequential_factor_clip: _OpenUnitInterval = setting(
        0.5, "Clip of the ratios' product, in (0, 1)."
    )
    # Dr. MAS shows that standardising agents together is unstable.
    whiten_by = setting("agent")

    def __init__(self, algo_class: type[Any] | None = None):
        super().__init__(algo_class=algo_class or MARFT)

    @override(AlgorithmConfig)
    def validate(self) -> None:
        super().validate()
        self._refuse_components()
        if not self.in_evaluation:
            self._validate_team()

    def _refuse_components(self) -> None:
        """Refuse settings that read single tokens or replace GAE over agents."""
        refuse_without_effect(
            self,
            _LLMPPO_ONLY,
            "MARFT does not support this setting. Omit it, or use LLMPPO.",
        )
        if self.loss_agg_mode != "token-mean":
            raise ConfigError(
                f"loss_agg_mode={self.loss_agg_mode!r}: MARFT averages over messages "
                "or tokens. Use 'token-mean'."
            )
        for module_id in self.llm_module_ids:
            if self.get_config_for_module(module_id).action_head == "score":
                raise ConfigError(
                    "head='score' takes one step per turn, but MARFT's advantages "
                    "need sampled messages. Use LLMPPO or GRPO, or head='generate'."
                )
        if self.level == "token":
            return
        for module_id in self.trained_module_ids:
            module_config = self.get_config_for_module(module_id)
            if module_config.build_composed_loss():
                raise ConfigError(
                    "policy_loss, loss_terms and token_advantage_transforms read "
                    "single tokens, but level='action' has one ratio per message. Use "
                    "level='token', or omit them."
                )

    def _validate_team(self) -> None:
        from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

        env = self.make_text_env()
        agents = agents_of(env)
        env.close()
        if agents is None:
            raise ConfigError(
                f"MARFT trains teams, but {self.env!r} has a single agent. Use LLMPPO."
            )
        if not self.trained_module_ids:
            raise ConfigError(
                "MARFT's advantages pass through language models, but none is "
                "trained. Name one in policies_to_train, or use LLMPPO."
            )
        if self.update_schedule != "joint" and len(self.trained_module_ids) < 2:
            raise ConfigError(
                f"update_schedule={self.update_schedule!r} updates policies in turn, "
                f"but only {self.trained_module_ids} is trained: agents that share a "
                "policy change together. Give each agent its own policy, or use "
                "'joint'."
            )
        if CRITIC_MODULE in self.module_ids and self.critic != "own":
            raise ConfigError(
                f"{CRITIC_MODULE!r} is the ModuleID of the critic={self.critic!r}. "
                "Give the policy another name, or use critic='own'."
            )
        if not issubclass(self.env_runner_cls, LLMEnvRunner):
            raise ConfigError(
                "MARFT needs LLMEnvRunner, which records the step of every message "
                f"and reward; {self.env_runner_cls.__name__} does not. Leave "
                "env_runner_cls unset."
            )
        refuse_without_effect(
            self,
            ("shared_reward_fraction",),
            "MARFT uses team_reward. Omit it.",
        )
        self._validate_equal_settings()

    def _validate_equal_settings(self) -> None:
        """Refuse settings that differ between policies but must be equal in a team."""
        configs = {m: self.get_config_for_module(m) for m in self.trained_module_ids}
        for name in ("gamma", "lambda_", "gamma_token", "lambda_token"):
            values = {m: getattr(c, name) for m, c in configs.items()}
            if len(set(values.values())) > 1:
                raise ConfigError(
                    f"{name} is {values}; GAE from agent to agent needs one value. "
                    "Set it in training, not per policy."
                )
        models = {m: c.lm_model for m, c in configs.items()}
        if self.critic != "own" and len(set(models.values())) > 1:
            raise ConfigError(
                f"critic={self.critic!r} reads all policies' tokens, but they have "
                f"different models: {models}. Use critic='own'."
            )

    # Derived settings ----------------------------------------------------------------

    @property
    def advantages_cross_agents(self) -> bool:
        """True: GAE passes through all agents, even those that are not updated."""
        return True

    @property
    def critic_view(self) -> str | None:
        """Rows of a critic that is an RLModule of its own; None without one."""
        return None if self.critic == "own" else self.critic

    @property
    def old_logps_may_wait(self) -> bool:
        """False for sequential updates, which compare with the policies before them."""
        return super().old_logps_may_wait and self.update_schedule != "sequential"

    @override(LLMPPOConfig)
    def critic_module_spec(self) -> RLModuleSpec | None:
        if self.critic_view is None:
            return None
        from rllib_llm.envs.spaces import UnicodeText
        from rllib_llm.modules.critic import CriticRLModule

        module_config = self.get_config_for_module(self.trained_module_ids[0])
        model_config = {
            **module_config.language_model_config(),
            "lora": None,
            "reference": False,
            "mask_policy": False,
            "module_id": CRITIC_MODULE,
        }
        model_config["value_head"] = module_config.value_head_settings()
        return RLModuleSpec(
            module_class=CriticRLModule,
            observation_space=UnicodeText(),
            action_space=UnicodeText(),
            model_config=model_config,
            learner_only=True,
        )

    @override(LLMPPOConfig)
    def advantage_connectors(self, configs: Mapping[str, Any]) -> list[Any]:
        from rllib_llm.connectors.learner.multi_agent_gae import MultiAgentGAE
        from rllib_llm.connectors.pipelines import gae_settings

        return [
            MultiAgentGAE(
                {m: gae_settings(c) for m, c in configs.items()},
                level=self.level,
                team_reward=self.team_reward,
                critic=CRITIC_MODULE if self.critic_view else None,
                whiten_by=self.whiten_by,
            )
        ]

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Any]:
        from rllib_llm.algorithms.marft.marft_learner import MARFTTorchLearner

        return MARFTTorchLearner


class MARFT(LLMAlgorithm):
    """Multi-agent reinforcement fine-tuning (Liao et al. 2025, arXiv:2504.16129)."""

    @classmethod
    @override(LLMAlgorithm)
    def get_default_config(cls) -> MARFTConfig:
        return MARFTConfig()
