"""GRPO and related methods, by baseline, scale and loss aggregation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Gt
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo.ppo import PPOConfig
from ray.rllib.core import DEFAULT_AGENT_ID
from ray.rllib.utils.annotations import override

from rllib_llm.advantages.estimators.combine import AdvantageEstimators
from rllib_llm.advantages.estimators.group import GROUP_BY, has_variance
from rllib_llm.advantages.group_relative import BASELINES, SCALES
from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.algorithms.config.check_forks import refuse_tree_estimators
from rllib_llm.algorithms.config.data import MixedDataSettings, validate_mixed_data
from rllib_llm.algorithms.config.declarations import setting
from rllib_llm.algorithms.config.llm_config import LLMConfigMixin
from rllib_llm.algorithms.config.preferences import (
    PreferenceSettings,
    validate_preferences,
)
from rllib_llm.algorithms.config.replay import ReplaySettings, validate_replay
from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.algorithms.driver.mixed_files import MixesFiles
from rllib_llm.algorithms.driver.mixed_pairs import MixesPairs
from rllib_llm.algorithms.driver.replay import ReplaysEpisodes
from rllib_llm.algorithms.grpo.fork_training import mask_repeated_turns
from rllib_llm.algorithms.grpo.greedy import validate_greedy, with_greedy_returns
from rllib_llm.algorithms.grpo.replays import try_replays
from rllib_llm.algorithms.scorer.check_scorer import validate_scorer
from rllib_llm.algorithms.scorer.scorer_settings import ScorerSettings
from rllib_llm.algorithms.scorer.trains_scorer import TrainsScorer
from rllib_llm.components.registry import Specs
from rllib_llm.data.episode_data import task_of
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.env_runner.replay import Replay
from rllib_llm.errors import ConfigError
from rllib_llm.schema import Fraction, NonNegativeInt, OneOf, PositiveFloat

if TYPE_CHECKING:
    from rllib_llm.types import Episode

_ESTIMATORS_KEY = "llm_advantage_estimators"
_SHORTHANDS = (
    "advantage_baseline",
    "advantage_scale",
    "advantage_group_by",
    "turn_discount",
)

_CLIP_SETTINGS = ("clip_param", "clip_param_high", "dual_clip")
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


class GRPOConfig(
    ScorerSettings,
    ReplaySettings,
    PreferenceSettings,
    MixedDataSettings,
    LLMConfigMixin,
    PPOConfig,
):
    """Configuration of :class:`GRPO`.

    Example:
        >>> config = (
        ...     GRPOConfig()
        ...     .environment("countdown-v0")
        ...     .rollouts(episodes_per_iteration=64, group_size=8)
        ...     .training(lr=1e-4, advantage_scale="none")
        ... )
    """

    lr = setting(1e-4)
    group_size = setting(8)
    clip_param = setting(0.2)
    use_critic = setting(False)
    use_gae = setting(False)
    use_kl_loss = setting(False)

    clip_param_high: PositiveFloat | None = setting(
        None,
        """Upper clip range (DAPO clip-higher, TRL ``epsilon_high``); None:
        ``clip_param`` on both sides.""",
    )
    dual_clip: Annotated[float, Gt(1)] | None = setting(
        None, "Bound of the ratio for negative advantages, e.g. 3.0."
    )
    advantage_baseline: Annotated[str, OneOf(BASELINES)] = setting(
        "mean", '"mean", "leave_one_out" (RLOO) or "none".'
    )
    advantage_scale: Annotated[str, OneOf(SCALES)] = setting(
        "group", '"group" (GRPO), "none" (Dr.GRPO) or "batch" (Lite PPO).'
    )
    advantage_group_by: Annotated[str, OneOf(GROUP_BY)] = setting(
        "agent",
        """Compared returns. "agent": each agent's return with its own in the other
        rollouts of the task (Dr. MAS; with one agent GRPO). "task": the returns of all
        agents of a task together. "turn": an agent's return from a turn on, with the
        same turn of the other rollouts (AT-GRPO without branching).""",
    )
    turn_discount: Fraction = setting(
        1.0,
        """Discount of later turns' rewards, for "turn" (MAGRPO).""",
    )
    advantage_estimator: Specs | None = setting(
        None,
        """Advantage estimators, by name or as mappings of ``name``, settings and
        ``weight``; their weighted sum is the advantage (docs/components.md). None:
        ``group`` with the four settings above.""",
    )
    advantage_transforms: Specs = setting((), "Transforms of the sum, in order.")
    fork_training: Literal["leaves", "tree"] = setting(
        "leaves",
        """Training of forked episodes (rollouts(fork=...)). "leaves": each episode in
        full, so that turns before a fork are trained once per episode below them.
        "tree": each turn once, with the mean of these episodes' advantages.""",
    )
    # Their gradient is 0, but their tokens would count in the denominator.
    drop_zero_variance_groups: bool = setting(
        True,
        "Leave groups with equal returns, whose advantages are 0, out of the update.",
    )
    dynamic_sampling_rounds: NonNegativeInt = setting(
        0,
        """Rounds in which dropped groups are replaced by newly sampled ones within an
        iteration (DAPO; TRL lacks it); 0: never.""",
    )

    def __init__(self, algo_class: type[Any] | None = None):
        super().__init__(algo_class=algo_class or GRPO)
        self._set_llm_defaults()

    @override(AlgorithmConfig)
    def validate(self) -> None:
        super().validate()
        if self.advantage_estimator is not None:
            why = (
                "advantage_estimator is given. Set it in the component 'group', "
                "or omit it."
            )
            refuse_without_effect(self, _SHORTHANDS, why)
        if self.advantage_baseline == "none" and self.advantage_scale != "none":
            raise ConfigError(
                "advantage_baseline='none' needs advantage_scale='none': raw returns "
                "that are all equal have no deviation to divide by. Set it to 'none'."
            )
        validate_replay(self)
        validate_mixed_data(self)
        validate_preferences(self)
        validate_scorer(self)
        self._try_estimators()
        if self.group_size < 2 and self.compares_rollouts:
            raise ConfigError(
                f"group_size={self.group_size}: a group of one has no other rollout "
                "to compare with, so its advantage is always 0. Use group_size >= 2."
            )
        if self.uses_components and self.drop_zero_variance_groups:
            self._refuse_dropping()
        if self.fork is None:
            why = "fork is None, so no turn is in two episodes. Set fork."
            refuse_without_effect(self, ("fork_training",), why)
            refuse_tree_estimators(estimators_of_policies(self).values())
        if self.use_kl_loss:
            raise ConfigError(
                "use_kl_loss=True: GRPO has no KL to the old policy. Use ref_kl_coeff "
                "for the KL to a reference, or LLMPPO."
            )
        refuse_without_effect(
            self, _CRITIC_SETTINGS, "GRPO has no critic. Use LLMPPO, or omit it."
        )
        for module_id in self.trained_module_ids:
            module_config = self.get_config_for_module(module_id)
            if module_config.policy_loss is not None:
                why = "policy_loss has settings of its own. Set it there."
                refuse_without_effect(module_config, _CLIP_SETTINGS, why)
        if self.dynamic_sampling_rounds and not self.drop_zero_variance_groups:
            raise ConfigError(
                "dynamic_sampling_rounds replaces dropped groups, but "
                "drop_zero_variance_groups=False drops none. Set it to True."
            )

    def build_advantage_estimators(self) -> AdvantageEstimators:
        """Return the advantage estimators of one policy."""
        estimators = self.advantage_estimator
        if estimators is None:
            estimators = [
                {
                    "name": "group",
                    "baseline": self.advantage_baseline,
                    "scale": self.advantage_scale,
                    "by": self.advantage_group_by,
                    "discount": self.turn_discount,
                }
            ]
        return AdvantageEstimators(estimators, self.advantage_transforms)

    @property
    def uses_reference(self) -> bool:
        """True if a frozen reference policy is needed."""
        needs = self.build_replay_loss().needs if self.uses_replay else ()
        return super().uses_reference or "reference" in needs

    @property
    def compares_rollouts(self) -> bool:
        """True if advantages are relative to the other rollouts of a task."""
        if not self.uses_components:
            return self.advantage_baseline != "none"
        agents = self._agents()
        estimators = estimators_of_policies(self).values()
        return any(
            advantage_estimator.compares_rollouts(agents)
            for advantage_estimator in estimators
        )

    @property
    def needs_greedy(self) -> bool:
        """True if advantages compare with a greedy rollout of each task."""
        agents = self._agents()
        estimators = estimators_of_policies(self).values()
        return any(
            advantage_estimator.needs_greedy(agents)
            for advantage_estimator in estimators
        )

    @override(LLMConfigMixin)
    def ahead_obstacles(self) -> list[tuple[bool, str]]:
        rounds = self.dynamic_sampling_rounds
        return [
            *super().ahead_obstacles(),
            (
                bool(rounds),
                f"has batches of a fixed size, but dynamic_sampling_rounds={rounds} "
                "asks for more groups. Set one of the two to 0.",
            ),
            (
                self.needs_greedy,
                "keeps EnvRunners busy, but the advantages need greedy rollouts of "
                "the same weights. Use another baseline.",
            ),
        ]

    @property
    def uses_components(self) -> bool:
        """True if a policy's advantages come from configured components."""
        configs = (self.get_config_for_module(m) for m in self.trained_module_ids)
        return any(config.advantage_estimator is not None for config in configs)

    def _agents(self) -> list[str]:
        """Return the environment's AgentIDs, as advantage estimators get them."""
        env = self.make_text_env()
        agents = agents_of(env)
        env.close()
        return [DEFAULT_AGENT_ID] if agents is None else list(agents)

    def _try_estimators(self) -> None:
        agents = self._agents()
        for advantage_estimator in estimators_of_policies(self).values():
            advantage_estimator.try_out(agents)
            if advantage_estimator.replays_games(agents):
                self._try_replays(advantage_estimator)
        if self.needs_greedy:
            self._validate_greedy()

    def _validate_greedy(self) -> None:
        validate_greedy(self)

    def _try_replays(self, advantage_estimator: AdvantageEstimators) -> None:
        try_replays(self, advantage_estimator)

    def _refuse_dropping(self) -> None:
        agents = self._agents()
        for advantage_estimator in estimators_of_policies(self).values():
            if not advantage_estimator.compares_rollouts(agents):
                names = ", ".join(
                    bound.component.name for bound in advantage_estimator.estimators
                )
                raise ConfigError(
                    "drop_zero_variance_groups=True drops tasks whose rollouts give "
                    "each other no advantage, but advantage_estimator "
                    f"({names}) does not compare them. Set it to False."
                )

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Any]:
        from rllib_llm.algorithms.grpo.grpo_learner import GRPOTorchLearner

        return GRPOTorchLearner


class GRPO(TrainsScorer, ReplaysEpisodes, MixesPairs, MixesFiles, LLMAlgorithm):
    """Group-relative policy optimisation (Shao et al. 2024, arXiv:2402.03300)."""

    config: GRPOConfig

    @classmethod
    @override(LLMAlgorithm)
    def get_default_config(cls) -> GRPOConfig:
        return GRPOConfig()

    @override(LLMAlgorithm)
    def setup(self, config: GRPOConfig) -> None:
        self._advantage_estimators = estimators_of_policies(config)
        self._uses_components = config.uses_components
        self._needs_greedy = config.needs_greedy
        self._replay = Replay(config.make_text_env, config.max_turns)
        super().setup(config)

    @override(LLMAlgorithm)
    def collect(self) -> SampledEpisodes:
        """Sample groups, replace zero-variance ones, assign advantages."""
        config = self.config
        num_groups = config.episodes_per_iteration // config.group_size
        episodes = self.process_episodes(self.sample_groups(num_groups))
        for _ in range(config.dynamic_sampling_rounds):
            # Counted in tasks, since filters may drop a part of a group's episodes.
            missing = num_groups - len({_task(e) for e in episodes})
            if missing <= 0:
                break
            self.metrics.log_value("num_groups_resampled", missing, reduce="sum")
            more = self.process_episodes(self.sample_groups(missing))
            episodes = episodes + more
        # Advantages may depend on the whole batch (advantage_scale="batch").
        self._set_advantages(episodes)
        return episodes

    @override(LLMAlgorithm)
    def sample_groups(self, num_groups: int) -> SampledEpisodes:
        """Sample groups, and greedy rollouts if advantages need them."""
        episodes = super().sample_groups(num_groups)
        if self._buffer is not None:
            self._buffer.observe(episodes)
        return with_greedy_returns(self, episodes) if self._needs_greedy else episodes

    @override(LLMAlgorithm)
    def process_episodes(self, episodes: SampledEpisodes) -> SampledEpisodes:
        """Drop zero-variance tasks, if so configured."""
        episodes = super().process_episodes(episodes)
        if not episodes:
            return episodes
        with_advantages = self._tasks_with_advantages(episodes)
        tasks = {_task(e) for e in episodes}
        share = len(tasks - with_advantages) / len(tasks)
        # Before anything is dropped, so that the metric shows how many groups were.
        self.metrics.log_value("zero_variance_group_frac", share, window=1)
        if not self.config.drop_zero_variance_groups:
            return episodes
        return episodes.select(
            [i for i, e in enumerate(episodes) if _task(e) in with_advantages]
        )

    def _tasks_with_advantages(self, episodes: SampledEpisodes) -> set[int]:
        table = self._compared(episodes).table(self._replay)
        if not self._uses_components:
            by = self.config.advantage_group_by
            return set(table.task[has_variance(table, by=by)].tolist())
        tasks_per_estimator = (
            advantage_estimator.tasks_with_advantages(table)
            for advantage_estimator in self._advantage_estimators.values()
        )
        return {task for tasks in tasks_per_estimator for task in tasks.tolist()}

    def _set_advantages(self, episodes: SampledEpisodes) -> None:
        compared = self._compared(episodes)
        table = compared.table(self._replay)
        if not len(table):
            return
        for module_id, advantage_estimator in self._advantage_estimators.items():
            per_turn = advantage_estimator.advantages(table)
            if self.config.fork_training == "tree":
                per_turn = mask_repeated_turns(compared, table, per_turn)
            advantages = table.split(per_turn)
            for data, trajectory, advantage in zip(
                compared.data, table.trajectories, advantages, strict=True
            ):
                # Each estimator gets the trajectories of all policies, since a baseline
                # may compare agents, and sets the advantages of its own.
                if trajectory.module_id == module_id:
                    is_constant = (advantage == advantage[0]).all()
                    data.advantage = float(advantage[0]) if is_constant else advantage
        if self._replay.num_games:
            self.metrics.log_value("replayed_games", self._replay.num_games, window=1)
            self.metrics.log_value("replay_s", self._replay.seconds, window=1)
        # The games are those of this batch; the next one has other rollouts.
        self._replay.forget()

    def _compared(self, episodes: SampledEpisodes) -> SampledEpisodes:
        """Return the episodes with the trajectories that get advantages."""
        return episodes

    # Checkpoints ---------------------------------------------------------------------

    @override(LLMAlgorithm)
    def driver_state(self) -> dict[str, Any]:
        states = {m: c.get_state() for m, c in self._advantage_estimators.items()}
        return {**super().driver_state(), _ESTIMATORS_KEY: states}

    @override(LLMAlgorithm)
    def set_driver_state(self, state: dict[str, Any]) -> None:
        super().set_driver_state(state)
        for module_id, estimator_state in state.get(_ESTIMATORS_KEY, {}).items():
            self._advantage_estimators[module_id].set_state(estimator_state)


def estimators_of_policies(config: GRPOConfig) -> dict[str, AdvantageEstimators]:
    """Return the advantage estimators of each trained policy."""
    return {
        module_id: config.get_config_for_module(module_id).build_advantage_estimators()
        for module_id in config.trained_module_ids
    }


def _task(episode: Episode) -> int:
    return task_of(episode).group_id
