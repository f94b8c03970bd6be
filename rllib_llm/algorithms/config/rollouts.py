"""Settings of ``rollouts``: episodes, limits, rewards, filters, curricula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.config.assign import stores_settings
from rllib_llm.components.registry import Spec, Specs
from rllib_llm.data.types import StopPolicy, StopReason
from rllib_llm.rllib_bases import RLlibConfig
from rllib_llm.schema import Fraction, NonNegativeInt, OneOf, PositiveFloat, PositiveInt

Reason = Annotated[str, OneOf(reason.value for reason in StopReason)]
Policy = Annotated[str, OneOf(policy.value for policy in StopPolicy)]


class RolloutSettings(RLlibConfig):
    """Defaults and fluent method of ``rollouts``."""

    def _set_rollouts_defaults(self) -> None:
        self.episodes_per_iteration = 64
        self.group_size = 1
        self.max_turns: int | None = None
        self.max_tokens_per_episode: int | None = None
        self.env_processes = False
        self.step_timeout_s: float | None = 60.0
        self.turn_timeout_s: float | None = 600.0
        self.episode_timeout_s: float | None = None
        self.max_retries = 2
        self.max_failed_fraction = 0.1
        self.stop_policies: dict[str, str] = {}
        self.row_per_turn = False
        self.weight_sync_dtype: str | None = None
        self.rewards: Sequence[Spec] = ()
        self.reward_transforms: Sequence[Spec] = ()
        self.filters: Sequence[Spec] = ()
        self.curriculum: Spec | None = None

    @stores_settings()
    def rollouts(
        self,
        *,
        episodes_per_iteration: PositiveInt = NotProvided,
        group_size: PositiveInt = NotProvided,
        max_turns: PositiveInt | None = NotProvided,
        max_tokens_per_episode: PositiveInt | None = NotProvided,
        env_processes: bool = NotProvided,
        step_timeout_s: PositiveFloat | None = NotProvided,
        turn_timeout_s: PositiveFloat | None = NotProvided,
        episode_timeout_s: PositiveFloat | None = NotProvided,
        max_retries: NonNegativeInt = NotProvided,
        max_failed_fraction: Fraction = NotProvided,
        stop_policies: dict[Reason, Policy] = NotProvided,
        row_per_turn: bool = NotProvided,
        weight_sync_dtype: Literal["bfloat16"] | None = NotProvided,
        rewards: Specs = NotProvided,
        reward_transforms: Specs = NotProvided,
        filters: Specs = NotProvided,
        curriculum: Spec | None = NotProvided,
    ) -> Self:
        """Choose how many episodes are sampled, and their bounds.

        Args:
            episodes_per_iteration: Episodes per training iteration, over all
                EnvRunners (verl ``train_batch_size`` x ``rollout.n``).
            group_size: Rollouts per task, sharing seed and options (TRL
                ``num_generations``); must divide episodes_per_iteration.
            max_turns: Turns after which episodes are truncated, beside the env's limit.
            max_tokens_per_episode: Sampled tokens after which they are truncated.
            env_processes: Run each environment of an EnvRunner in a process of its own
                (RLlib's ``gym_env_vectorize_mode="async"``) instead of a thread: for
                libraries that seed the process-wide random states, or allow only one
                instance per process. Observations, infos and the environment's class
                must be picklable.
            step_timeout_s: Longest env.reset/env.step call.
            turn_timeout_s: Longest generation of one turn.
            episode_timeout_s: Longest episode.
            max_retries: Retries of a dropped episode.
            max_failed_fraction: Share of episodes that may fail for good before
                training stops with an error.
            stop_policies: Stop reason to "train", "bootstrap", "mask" or "drop";
                unnamed ones keep their defaults (docs/design.md).
            row_per_turn: One training row per turn instead of merged rows.
            weight_sync_dtype: "bfloat16" halves the size of float32 weights sent to
                EnvRunners in other processes; sampling then differs a little from
                training (``train_inference_mismatch_mean``). None sends them unchanged.
            rewards: Components whose weighted sum is added to the environment's reward
                (docs/components.md), or functions of a trajectory.
            reward_transforms: Transforms of the sum, in order.
            filters: Filters that drop or mask trajectories before training, in order.
            curriculum: Component that changes tasks before they are sampled.
        """
        return self
