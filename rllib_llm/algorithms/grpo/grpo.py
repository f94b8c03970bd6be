"""GRPO and its close relatives by choice of baseline, scale and aggregation."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.algorithms.ppo.ppo import PPOConfig
from ray.rllib.utils.annotations import override
from typing_extensions import Self

from rllib_llm.algorithms.llm_algorithm import LLMAlgorithm
from rllib_llm.algorithms.llm_config import LLMConfigMixin
from rllib_llm.algorithms.settings import assign
from rllib_llm.algorithms.without_effect import refuse_without_effect
from rllib_llm.connectors.episode_data import (
    EpisodeData,
    agent_episodes,
    episode_data,
)
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.objectives.advantages import (
    BASELINES,
    SCALES,
    group_advantages,
    zero_variance_groups,
)

GROUP_BY = ("agent", "task", "turn")

_CRITIC_SETTINGS = (
    "gamma",
    "lambda_",
    "vf_loss_coeff",
    "vf_clip_param",
    "kl_coeff",
    "kl_target",
    "critic_lr",
    "critic_warmup_iters",
    "lm_value_head",
    "lm_value_head_detach",
    "lm_value_model",
)


class GRPOConfig(LLMConfigMixin, PPOConfig):
    """Configuration of :class:`GRPO`.

    Example:
        >>> config = (
        ...     GRPOConfig()
        ...     .environment("countdown-v0")
        ...     .rollouts(episodes_per_iteration=64, group_size=8)
        ...     .training(lr=1e-4, advantage_scale="none")
        ... )
    """

    def __init__(self, algo_class: type[Any] | None = None):
        super().__init__(algo_class=algo_class or GRPO)
        self._set_llm_defaults()
        # fmt: off
        # __sphinx_doc_begin__
        self.lr = 1e-4
        self.group_size = 8
        self.clip_param = 0.2
        self.clip_param_high: float | None = None
        self.dual_clip: float | None = None
        self.advantage_baseline = "mean"
        self.advantage_scale = "group"
        self.advantage_group_by = "agent"
        self.turn_discount = 1.0
        self.drop_zero_variance_groups = True
        self.dynamic_sampling_rounds = 0
        # __sphinx_doc_end__
        # fmt: on
        self.use_critic = False
        self.use_gae = False
        self.use_kl_loss = False

    @override(PPOConfig)
    def training(
        self,
        *,
        clip_param_high: float | None = NotProvided,
        dual_clip: float | None = NotProvided,
        advantage_baseline: str = NotProvided,
        advantage_scale: str = NotProvided,
        advantage_group_by: str = NotProvided,
        turn_discount: float = NotProvided,
        drop_zero_variance_groups: bool = NotProvided,
        dynamic_sampling_rounds: int = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Set the training settings: the shared ones, ``clip_param``, and these.

        Args:
            clip_param_high: Upper clip range (DAPO clip-higher, TRL
                ``epsilon_high``); None: ``clip_param`` on both sides.
            dual_clip: Bound of the ratio for negative advantages, e.g. 3.0.
            advantage_baseline: "mean", "leave_one_out" (RLOO) or "none".
            advantage_scale: "group" (GRPO), "none" (Dr.GRPO) or "batch" (Lite PPO).
            advantage_group_by: What is compared. "agent": each agent's return with its
                own in the other rollouts of the task (Dr. MAS; with one agent GRPO).
                "task": the returns of all agents of a task together. "turn": what an
                agent earned from a turn on, with the same turn of the other rollouts
                (AT-GRPO, without its branching).
            turn_discount: Of what is earned in later turns, for "turn" (MAGRPO).
            drop_zero_variance_groups: Leave groups with equal returns out of the
                update; they carry no credit.
            dynamic_sampling_rounds: How often dropped groups are replaced by newly
                sampled ones within an iteration (DAPO, TRL has no equal); 0: never.
            kwargs: ``PPOConfig.training`` and ``LLMConfigMixin._llm_training``.
        """
        super().training(**self._llm_training(**kwargs))
        assign(
            self,
            clip_param_high=clip_param_high,
            dual_clip=dual_clip,
            advantage_baseline=advantage_baseline,
            advantage_scale=advantage_scale,
            advantage_group_by=advantage_group_by,
            turn_discount=turn_discount,
            drop_zero_variance_groups=drop_zero_variance_groups,
            dynamic_sampling_rounds=dynamic_sampling_rounds,
        )
        return self

    @override(AlgorithmConfig)
    def validate(self) -> None:
        super().validate()
        for name, choices in (
            ("advantage_baseline", self.baselines),
            ("advantage_scale", SCALES),
            ("advantage_group_by", GROUP_BY),
        ):
            value = getattr(self, name)
            if value not in choices:
                raise ConfigError(f"{name}={value!r}. {did_you_mean(value, choices)}")
        if self.group_size < 2 and self.compares_rollouts:
            raise ConfigError(
                f"group_size={self.group_size}: a group of one has no other rollout to "
                "be compared with, so its advantage is always 0. Use group_size >= 2."
            )
        if self.advantage_baseline == "none" and self.advantage_scale != "none":
            raise ConfigError(
                "advantage_baseline='none' needs advantage_scale='none': dividing raw "
                "returns by their spread has no meaning where all are equal."
            )
        if not 0.0 <= self.turn_discount <= 1.0:
            raise ConfigError(f"turn_discount={self.turn_discount} must be in [0, 1].")
        if self.turn_discount != 1.0 and self.advantage_group_by != "turn":
            raise ConfigError(
                f"turn_discount={self.turn_discount} would have no effect: whole "
                "returns are compared. Set advantage_group_by='turn', or leave it out."
            )
        if self.use_critic or self.use_kl_loss:
            raise ConfigError(
                "GRPO has neither a critic nor RLlib's KL to the old policy; use "
                "LLMPPO for use_critic/use_kl_loss, or ref_kl_coeff for a reference."
            )
        refuse_without_effect(
            self, _CRITIC_SETTINGS, "GRPO has no critic. Use LLMPPO, or leave it out."
        )
        if self.dynamic_sampling_rounds and not self.drop_zero_variance_groups:
            raise ConfigError(
                "dynamic_sampling_rounds replaces dropped groups, but "
                "drop_zero_variance_groups=False drops none. Set it to True."
            )

    @property
    def baselines(self) -> tuple[str, ...]:
        """Values of ``advantage_baseline``."""
        return BASELINES

    @property
    def compares_rollouts(self) -> bool:
        """Whether credit is relative to the other rollouts of a task."""
        return self.advantage_baseline != "none"

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Any]:
        from rllib_llm.algorithms.grpo.grpo_learner import GRPOTorchLearner

        return GRPOTorchLearner


class GRPO(LLMAlgorithm):
    """Group-relative policy optimisation (Shao et al. 2024, arXiv:2402.03300)."""

    @classmethod
    @override(LLMAlgorithm)
    def get_default_config(cls) -> GRPOConfig:
        return GRPOConfig()

    @override(LLMAlgorithm)
    def collect(self) -> list[Any]:
        """Sample groups, replace those without variance, give credit."""
        config = self.config
        wanted = config.episodes_per_iteration // config.group_size
        episodes = self.process_episodes(self.sample_groups(wanted))
        for _ in range(config.dynamic_sampling_rounds):
            missing = wanted - len({_task(e) for e in episodes})
            if missing <= 0:
                break
            self.metrics.log_value("num_groups_resampled", missing, reduce="sum")
            episodes += self.process_episodes(self.sample_groups(missing))
        # Credit may depend on the whole batch (advantage_scale="batch").
        self._give_credit(episodes)
        return episodes

    @override(LLMAlgorithm)
    def process_episodes(self, episodes: list[Any]) -> list[Any]:
        """Drop tasks whose rollouts all earned the same, if so configured."""
        if not episodes:
            return episodes
        samples = self._samples(episodes)
        groups = [sample.group for sample in samples]
        flat = zero_variance_groups(np.array([x.earned for x in samples]), groups)
        alive = {x.task for x in samples if x.group not in flat}
        tasks = {_task(e) for e in episodes}
        share = len(tasks - alive) / len(tasks)
        self.metrics.log_value("zero_variance_group_frac", share, window=1)
        if not self.config.drop_zero_variance_groups:
            return episodes
        return [e for e in episodes if _task(e) in alive]

    def _give_credit(self, episodes: list[Any]) -> None:
        if not episodes:
            return
        samples = self._samples(episodes)
        advantages = group_advantages(
            np.array([x.earned for x in samples]),
            [x.group for x in samples],
            baseline=self.config.advantage_baseline,
            scale=self.config.advantage_scale,
        )
        by_turn = self.config.advantage_group_by == "turn"
        for sample, advantage in zip(samples, advantages, strict=True):
            if not by_turn:
                sample.data.advantage = float(advantage)
            elif sample.turn == 0:
                sample.data.advantage = [float(advantage)]
            else:
                sample.data.advantage.append(float(advantage))

    def _samples(self, episodes: list[Any]) -> list[_Sample]:
        """Return what is compared: agents' whole returns, or what followed a turn."""
        config = self.config
        samples: list[_Sample] = []
        codes: dict[Any, int] = {}
        for part in self._parts(episodes):
            data = episode_data(part)
            key: tuple[int, ...] = (_task(part),)
            if config.advantage_group_by != "task":
                key = (*key, data.agent_index)
            earned = [float(part.get_return())]
            if config.advantage_group_by == "turn":
                earned = _returns_to_go(part.get_rewards(), config.turn_discount)
            for turn, value in enumerate(earned):
                group = codes.setdefault((*key, turn), len(codes))
                samples.append(_Sample(data, _task(part), turn, group, value))
        return samples

    def _parts(self, episodes: list[Any]) -> list[Any]:
        """Return the agents' parts of episodes that credit is about."""
        return [part for episode in episodes for part in agent_episodes(episode)]


@dataclasses.dataclass(slots=True)
class _Sample:
    """One return that is compared with others.

    Attributes:
        data: Of the agent's episode, which receives the advantage.
        task: The task.
        turn: From which turn on it was earned.
        group: What it is compared with.
        earned: The return.
    """

    data: EpisodeData
    task: int
    turn: int
    group: int
    earned: float


def _returns_to_go(rewards: Any, discount: float) -> list[float]:
    """Return what was earned from each turn on: R[t] = r[t] + discount * R[t+1]."""
    found, later = [], 0.0
    for reward in reversed(list(rewards)):
        later = float(reward) + discount * later
        found.append(later)
    return found[::-1]


def _task(episode: Any) -> int:
    return episode_data(episode).task.group_id
