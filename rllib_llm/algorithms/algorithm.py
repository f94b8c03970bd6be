"""Algorithm base class: the training iteration of every on-policy algorithm."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.rllib.algorithms.ppo.ppo import PPO
from ray.rllib.core import ALL_MODULES
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    ENV_RUNNER_SAMPLING_TIMER,
    LEARNER_RESULTS,
    LEARNER_UPDATE_TIMER,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_MODULE_STEPS_TRAINED_LIFETIME,
    SYNCH_WORKER_WEIGHTS_TIMER,
    TIMERS,
)

from rllib_llm import json_state
from rllib_llm.algorithms.config.preflight import preflight
from rllib_llm.algorithms.config.validation import env_creator
from rllib_llm.algorithms.driver.baseline_rollouts import play_baselines
from rllib_llm.algorithms.driver.build_vllm_engines import (
    new_actor_name,
    with_engine_bundle,
)
from rllib_llm.algorithms.driver.candidates import ScoresCandidates
from rllib_llm.algorithms.driver.checkpointing import CheckpointedAlgorithm
from rllib_llm.algorithms.driver.first_evaluation import EvaluatesFirst
from rllib_llm.algorithms.driver.init_from_checkpoint import initialise_from
from rllib_llm.algorithms.driver.placement import require_nodes_of_actors
from rllib_llm.algorithms.driver.prepared_models import with_models
from rllib_llm.algorithms.driver.prompt_texts import ChangesPromptTexts
from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.algorithms.driver.runner_calls import sleep
from rllib_llm.algorithms.driver.runner_group_calls import call_runners
from rllib_llm.algorithms.driver.sample_ahead import SampleAhead
from rllib_llm.algorithms.driver.sampling import SamplingAlgorithm
from rllib_llm.algorithms.driver.saved_episodes import SavesEpisodes
from rllib_llm.algorithms.driver.weight_transfer import weight_sync_of
from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.callbacks.episode_metrics import returns_std
from rllib_llm.callbacks.stats import EPISODE_MEAN
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.env_runner.check_groups import check_first_texts
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.env_runner.task_groups import TaskSource
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.modules.loading import offered_model_folder
from rllib_llm.monitoring.alarms.algorithm_mixin import GuardedAlgorithm
from rllib_llm.monitoring.live import board
from rllib_llm.monitoring.live.algorithm_mixin import (
    SAMPLING,
    SYNCING,
    UPDATING,
    LiveAlgorithm,
    preparing,
)
from rllib_llm.rewards.shared_reward import share_rewards
from rllib_llm.transcripts.annotations import annotate_advantages, annotate_rewards

if TYPE_CHECKING:
    from rllib_llm.envs.make import EnvSpec
    from rllib_llm.types import LLMConfig

logger = logging.getLogger("rllib_llm")

_COMPONENTS_KEY = "llm_driver_components"
_AHEAD_KEY = "llm_sampled_ahead"
_SAVER_KEY = "llm_saved_episodes"


class LLMAlgorithm(
    EvaluatesFirst,
    ChangesPromptTexts,
    SamplingAlgorithm,
    CheckpointedAlgorithm,
    LiveAlgorithm,
    ScoresCandidates,
    SavesEpisodes,
    PPO,
):
    """Base Algorithm: sample episodes, assign advantages, update, sync weights.

    Subclasses process the sampled groups in :meth:`process_episodes`. Everything else
    is RLlib's: EnvRunnerGroup, LearnerGroup, evaluation, metrics, checkpoints, Tune.
    """

    def __init__(
        self,
        config: LLMConfig | Mapping[str, Any] | None = None,
        env: EnvSpec | None = None,
        **kwargs: Any,
    ):
        topic = board.new_topic(board.trial_of(config))
        run_config = self._as_config(config)
        run_config.tune_trial = board.trial_of(config)
        if env is not None:
            run_config.environment(env)
        # Before models are prepared, which can take minutes.
        run_config.validate()
        run_config = with_models(run_config, preparing(topic))
        # Chosen on the driver, since all EnvRunners must name the same actor.
        run_config.engine_actor = new_actor_name()
        run_config.live_topic = topic
        for module_id in run_config.llm_module_ids:
            preflight(run_config.get_config_for_module(module_id))
        super().__init__(run_config, **kwargs)

    @classmethod
    def _as_config(cls, config: LLMConfig | Mapping[str, Any] | None) -> LLMConfig:
        default = cls.get_default_config()
        if config is None:
            return default
        if not isinstance(config, Mapping):
            # A copy that is not frozen: models and topics are written into it, and a
            # config that built an algorithm is frozen and may build another.
            return config.copy(copy_frozen=False)
        # The state of a config, as RLlib's checkpoints hold it, names its class.
        if "class" in config:
            return default.from_state(config)
        _refuse_unknown_keys(default, config)
        return default.update_from_dict(config)

    @classmethod
    @override(PPO)
    def default_resource_request(cls, config: Any) -> Any:
        """Request RLlib's resources and those of an engine's actor."""
        default = cls.get_default_config().update_from_dict(config)
        default.place_actors()  # the given config may not have been validated
        request = super().default_resource_request(default)
        return with_engine_bundle(request, default)

    @override(PPO)
    def setup(self, config: LLMConfig) -> None:
        require_nodes_of_actors(type(self).default_resource_request(config), config)
        self._task_source: TaskSource = config.build_task_source()
        self._driver_components = DriverComponents(config)
        super().setup(config)
        self.weight_sync = weight_sync_of(self.config, self.learner_group)
        self._ahead = self._build_sample_ahead()
        self._share_weights()
        # Serialised once up front: a state that cannot be saved must fail before
        # training, not at the first checkpoint.
        json_state.dumps(self.driver_state(), "driver_state")
        # A checkpoint being restored has these weights, and more.
        if self.config.initial_checkpoint and offered_model_folder() is None:
            initialise_from(self, Path(self.config.initial_checkpoint))

    @staticmethod
    @override(PPO)
    def _get_env_id_and_creator(
        env_specifier: EnvSpec, config: LLMConfig
    ) -> tuple[Any, Any]:
        """Return the env's id and creator; accept functions, which RLlib refuses."""
        if callable(env_specifier) and not isinstance(env_specifier, type):
            return env_specifier, env_creator(env_specifier)
        return PPO._get_env_id_and_creator(env_specifier, config)

    @property
    def policy_waits(self) -> bool:
        """True while the policy is not updated; subclasses may train a scorer first."""
        return False

    # One iteration -------------------------------------------------------------------

    @override(PPO)
    def training_step(self) -> None:
        with (
            self.metrics.log_time((TIMERS, ENV_RUNNER_SAMPLING_TIMER)),
            self.phase(SAMPLING, episodes=self.config.episodes_per_iteration),
        ):
            # The PPO base class would sample here; groups, rewards and filters need
            # whole episodes on the driver.
            sampled = self.collect()
        annotate_advantages(self.metrics, sampled)
        episodes = [] if self.policy_waits else self.with_stored(sampled)
        # Each Learner needs an episode, since rows of one episode stay together.
        learners = max(1, self.config.num_learners or 0)
        is_skipped = len(episodes) < learners
        # In every iteration: RLlib reports NaN for a sum of nothing.
        self.metrics.log_value("num_updates_skipped", int(is_skipped), reduce="sum")
        if is_skipped:
            if not self.policy_waits:
                # E.g. every group of a GRPO iteration had equal returns.
                logger.warning("Nothing to learn from in this iteration; no update.")
            return
        with (
            self.metrics.log_time((TIMERS, LEARNER_UPDATE_TIMER)),
            self.phase(UPDATING),
        ):
            self._let_engines_sleep()
            results = self.learner_group.update(
                training_data=LLMTrainingData(episodes=episodes),
                timesteps={
                    # RLlib's schedules count these steps.
                    NUM_ENV_STEPS_SAMPLED_LIFETIME: self._peek(
                        ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME
                    ),
                    NUM_MODULE_STEPS_TRAINED_LIFETIME: self._peek(
                        LEARNER_RESULTS, ALL_MODULES, NUM_MODULE_STEPS_TRAINED_LIFETIME
                    ),
                },
                num_epochs=self.config.num_epochs,
                minibatch_size=self.config.minibatch_size,
            )
            self.metrics.aggregate(results, key=LEARNER_RESULTS)
        with (
            self.metrics.log_time((TIMERS, SYNCH_WORKER_WEIGHTS_TIMER)),
            self.phase(SYNCING),
        ):
            self._sync_weights()

    def collect(self) -> Sequence[Any] | SampledEpisodes:
        """Sample this iteration's episodes and assign their advantages."""
        groups = self.config.episodes_per_iteration // self.config.group_size
        return self.process_episodes(self.sample_groups(groups))

    def with_stored(self, episodes: Any) -> list[Any]:
        """Return the episodes to train on; subclasses may add stored ones."""
        return list(episodes)

    def sample_groups(self, num_groups: int) -> SampledEpisodes:
        """Sample the next ``num_groups`` groups and assign their rewards.

        Returns:
            Finished episodes; ``custom_data["llm"].task`` has group and rollout.
        """
        episodes = SampledEpisodes(self.play_groups(num_groups))
        # Before rewards and advantages, which compare the rollouts of a group.
        check_first_texts(episodes, self.config.env)
        if self.config.shared_reward_fraction:
            share_rewards(episodes, self.config.shared_reward_fraction)
        self.before_rewards(episodes)
        episodes = self.ask_assistants(episodes)
        means = self._driver_components.assign_rewards(episodes, self.iteration)
        for name, mean in means.items():
            self.metrics.log_value(("reward_parts", *name), mean, window=1)
        self.change_prompt_texts(episodes)
        std = returns_std(episodes, self.config.group_size)
        self.metrics.log_value("return_std", std, reduce=EPISODE_MEAN)
        annotate_rewards(self.metrics, episodes)
        self.score_candidates(episodes)
        self.save_episodes(episodes)
        return episodes

    def before_rewards(self, episodes: SampledEpisodes) -> None:
        """Play what rewards compare with; subclasses may add what rewards read."""
        if self._driver_components.has_gains:
            play_baselines(self, episodes)

    def process_episodes(self, episodes: SampledEpisodes) -> SampledEpisodes:
        """Assign advantages to sampled episodes and return those to train on.

        Runs on the driver, over whole groups, before episodes are split over Learners.
        """
        episodes, shares = self._driver_components.select(episodes)
        for name, share in shares.items():
            self.metrics.log_value(("filtered_frac", *name), share, window=1)
        for name, value in self._driver_components.filter_metrics().items():
            self.metrics.log_value(("filters", *name), value, window=1)
        return episodes

    def _peek(self, *key: str) -> int:
        return self.metrics.peek(key, default=0)

    def _let_engines_sleep(self) -> None:
        """Let engines release memory for the update; new weights wake them."""
        if not self.config.engine_sleep:
            return
        for group in (self.env_runner_group, self.eval_env_runner_group):
            if group is None:
                continue
            if group.local_env_runner is not None:
                sleep(group.local_env_runner)
            call_runners(
                group,
                sleep,
                limit=self.config.call_limit,
                version=self._weights_version,
            )

    # Weights -------------------------------------------------------------------------

    def _share_weights(self) -> None:
        """Let a local EnvRunner sample with the parameters of a local Learner."""
        self._weights_are_shared = bool(
            self.learner_group.is_local
            and self.env_runner is not None
            and isinstance(self.env_runner, LLMEnvRunner)
            # On different devices the two need tensors of their own.
            and self.env_runner._device == self.learner_group._learner.device
        )
        if self._weights_are_shared:
            modules = self.learner_group._learner.module
            assert self.env_runner is not None
            self.env_runner.share_weights_of(
                {m: modules[m].unwrapped() for m in self.config.sampled_module_ids}
            )

    def _build_sample_ahead(self) -> SampleAhead | None:
        config = self.config
        if not config.sample_ahead:
            return None
        return SampleAhead(
            self.env_runner_group,
            self.next_tasks,
            functools.partial(self.weight_sync.pack, everything=True),
            groups=config.episodes_per_iteration // config.group_size,
            ahead=config.sample_ahead,
            max_staleness=config.largest_staleness,
            max_retries=config.max_retries,
            batch_limit=config.batch_limit,
            call_limit=config.call_limit,
        )

    def _post_weights(self, ahead: SampleAhead, everything: bool) -> None:
        """Give weights to EnvRunners that sample ahead, with their next calls."""
        weights = self.weight_sync.pack(everything=everything)
        ahead.set_weights(weights)
        # RLlib starts EnvRunners anew with the state of the local one.
        if self.env_runner is not None and not self._weights_are_shared:
            weights(self.env_runner)
        self.metrics.log_value("weight_sync_mib", weights.mib, reduce="sum")

    def _sync_weights(self, module_ids: Sequence[str] | None = None) -> None:
        """Send these policies' weights to the EnvRunners; None: trained policies."""
        if self._weights_are_shared:
            # The tensors are shared; only caches computed with the old weights must be
            # dropped.
            version = self.learner_group._learner._weights_seq_no
            assert self.env_runner is not None
            self.env_runner.set_weights_version(version)
        group = self.env_runner_group
        if self._weights_are_shared and not group.num_remote_workers():
            return
        if self._ahead is not None:
            self._post_weights(self._ahead, everything=module_ids is not None)
        elif issubclass(group.env_runner_cls, LLMEnvRunner):
            sent = self.weight_sync.send(
                group,
                also_local=not self._weights_are_shared,
                module_ids=module_ids,
            )
            self._weights_version = sent.version
            self.metrics.log_value("weight_sync_mib", sent.mib, reduce="sum")
        else:
            # RLlib's stock runners have no receive_weights(). RLlib's default of 0 does
            # not wait for them, and they would sample with old weights.
            group.sync_weights(
                from_worker_or_learner_group=self.learner_group,
                policies=list(self.config.llm_module_ids),
                inference_only=True,
                timeout_seconds=self.config.call_timeout_s,
            )

    # State on the driver -------------------------------------------------------------

    @override(GuardedAlgorithm)
    def driver_state(self) -> dict[str, Any]:
        state = {_COMPONENTS_KEY: self._driver_components.get_state()}
        if self._ahead is not None:
            state[_AHEAD_KEY] = self._ahead.get_state()
        if self._saver is not None:
            state[_SAVER_KEY] = self._saver.get_state()
        return state

    @override(GuardedAlgorithm)
    def set_driver_state(self, state: dict[str, Any]) -> None:
        if _COMPONENTS_KEY in state:
            self._driver_components.set_state(state[_COMPONENTS_KEY])
        if self._ahead is not None:
            self._ahead.set_state(state.get(_AHEAD_KEY, ()))
        if self._saver is not None and _SAVER_KEY in state:
            self._saver.set_state(state[_SAVER_KEY])

    @override(GuardedAlgorithm)
    def sync_all_weights(self) -> None:
        """Send the Learner's weights, frozen policies' included, to all EnvRunners.

        After a restore, RLlib's sync would be ignored: EnvRunners take its lower
        version for a late message, and would keep the newer weights of frozen policies.
        """
        module_ids = self.config.sampled_module_ids
        if issubclass(self.env_runner_group.env_runner_cls, LLMEnvRunner):
            self._sync_weights(module_ids)
        evaluators = self.eval_env_runner_group
        if evaluators and issubclass(evaluators.env_runner_cls, LLMEnvRunner):
            self.weight_sync.send(evaluators, also_local=True, module_ids=module_ids)


def _refuse_unknown_keys(default: LLMConfig, given: Mapping[str, Any]) -> None:
    keys = set(default.keys())
    for key in given:
        # Tune adds keys of its own with two underscores, e.g. __trial_info__.
        if key not in keys and not key.startswith("__"):
            raise ConfigError(
                f"{type(default).__name__} has no setting {key!r}. "
                f"{did_you_mean(key, keys)}"
            )
