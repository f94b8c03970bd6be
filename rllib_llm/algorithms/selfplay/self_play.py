"""SelfPlay: one policy against itself and against frozen snapshots of itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Interval
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.annotations import override

from rllib_llm.advantages.estimators.combine import AdvantageEstimators
from rllib_llm.advantages.group_relative import BASELINES
from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.algorithms.config.declarations import fluent_method, setting, state
from rllib_llm.algorithms.config.league import LeagueSettings
from rllib_llm.algorithms.driver.runner_group_calls import call_runners
from rllib_llm.algorithms.grpo.grpo import GRPO, GRPOConfig
from rllib_llm.algorithms.selfplay.assign_opponents import AssignedTasks, TakeTurns
from rllib_llm.algorithms.selfplay.check_self_play import (
    declare_slots,
    game_text,
    validate_advantage_estimators,
    validate_league,
)
from rllib_llm.algorithms.selfplay.learner_calls import Freeze, ScoreWords
from rllib_llm.data import columns
from rllib_llm.data.episode_data import task_of
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.env_runner.task_groups import TaskSource
from rllib_llm.errors import ConfigError
from rllib_llm.schema import OneOf
from rllib_llm.selfplay import Exploitability, GameResult
from rllib_llm.selfplay.exploitability import measure_exploitability, refuse_too_large
from rllib_llm.selfplay.exploiter import EXPLOITER, Responder, respond
from rllib_llm.selfplay.matchmaker import LEARNER, Matchmaker
from rllib_llm.selfplay.word_probs import word_probs

if TYPE_CHECKING:
    from ray.rllib.env.env_runner_group import EnvRunnerGroup

    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
    from rllib_llm.types import Episode

ROLE = "role"
_LEAGUE_KEY = "llm_league"


class SelfPlayConfig(LeagueSettings, GRPOConfig):
    """Configuration of :class:`SelfPlay`.

    Example:
        >>> config = (
        ...     SelfPlayConfig()
        ...     .environment("open_spiel/kuhn_poker-v0")
        ...     .league(opponents="even", pool_size=4)
        ...     .rollouts(episodes_per_iteration=128)
        ... )
    """

    training = fluent_method(
        """Set the training settings.

        GRPO's baselines need ``group_size`` >= 2; the rollouts of a group have the same
        opponent.
        """
    )

    advantage_scale = setting("none")
    group_size = setting(1)
    drop_zero_variance_groups = setting(False)

    # Agents with a policy of the user's, and the policies that validate() added.
    fixed_policies: dict[str, str] = state({})
    declared_slots: tuple[str, ...] = state(())

    advantage_baseline: Annotated[str, OneOf((ROLE, *BASELINES))] = setting(
        ROLE,
        """"role", or one of GRPO's.""",
    )
    role_decay: Annotated[float, Interval(ge=0, lt=1)] = setting(
        0.95,
        """With ``advantage_baseline="role"`` (SPIRAL's role-conditioned advantage
        estimation): share of a role's average return that remains when a new return is
        added, in [0, 1).""",
    )

    def __init__(self, algo_class: type[Any] | None = None):
        super().__init__(algo_class=algo_class or SelfPlay)

    @override(AlgorithmConfig)
    def validate(self) -> None:
        if not self.in_evaluation:
            declare_slots(self)
            validate_advantage_estimators(self)
        super().validate()
        if not self.in_evaluation:
            validate_league(self)

    @override(GRPOConfig)
    def ahead_obstacles(self) -> list[tuple[bool, str]]:
        why = (
            "does not work with SelfPlay, which assigns opponents by the last results."
        )
        return [(True, f"{why} Leave it out."), *super().ahead_obstacles()]

    # Derived settings ----------------------------------------------------------------

    @override(GRPOConfig)
    def build_advantage_estimators(self) -> AdvantageEstimators:
        if self.advantage_estimator is not None or self.advantage_baseline != ROLE:
            return super().build_advantage_estimators()
        role = {
            "name": ROLE,
            "decay": self.role_decay,
            "scale": self.advantage_scale,
            "game": str(self.env),
        }
        return AdvantageEstimators([role], self.advantage_transforms)

    @override(GRPOConfig)
    def _validate_greedy(self) -> None:
        raise ConfigError(
            "baseline='greedy' compares with one rollout of the task, but here the "
            "return depends on the opponent too. Use another baseline."
        )

    @override(GRPOConfig)
    def _try_replays(self, advantage_estimator: AdvantageEstimators) -> None:
        raise ConfigError(
            "joint='cross' needs a team, but opponents are none. Use joint='aligned'."
        )

    @property
    @override(GRPOConfig)
    def compares_rollouts(self) -> bool:
        is_role = self.advantage_estimator is None and self.advantage_baseline == ROLE
        return super().compares_rollouts and not is_role

    def assign_league_opponents(self) -> tuple[str, ...]:
        """Return the agents to which the league assigns policies, in declared order."""
        env = self.make_text_env()
        agents = agents_of(env) or []
        env.close()
        return tuple(agent for agent in agents if agent not in self.fixed_policies)

    def build_matchmaker(self) -> Matchmaker:
        """Return a new league for this configuration."""
        return Matchmaker(
            DEFAULT_MODULE_ID,
            self.opponent_slots,
            self.assign_league_opponents(),
            self.fixed_policies,
            exploiter_fraction=self.league_exploiter_fraction,
            **self.league_settings(),
        )

    @override(GRPOConfig)
    def build_task_source(
        self, *, offset: int = 0, in_evaluation: bool = False
    ) -> TaskSource:
        """Return tasks with policy assignments, which the driver's league replaces."""
        plain = super().build_task_source(offset=offset, in_evaluation=in_evaluation)
        opponent = self.league_evaluation_opponent or DEFAULT_MODULE_ID
        return AssignedTasks(
            seed=plain.seed,
            group_size=plain.group_size,
            split=plain.split,
            options=plain.options,
            environments=plain.environments,
            agent=TakeTurns(
                DEFAULT_MODULE_ID,
                opponent,
                self.assign_league_opponents(),
                self.fixed_policies,
            ),
        )


class SelfPlay(GRPO):
    """Self-play with a pool of frozen opponents and role-conditioned advantages.

    Role-conditioned advantages: SPIRAL (Liu et al. 2025, arXiv:2506.24119); opponents
    by win rate: AlphaStar (Vinyals et al. 2019).

    Attributes:
        matchmaker: League, ratings, and the member whose weights each policy holds.
    """

    config: SelfPlayConfig
    _exploiter: _SetScriptedPolicy | None = None

    @classmethod
    @override(GRPO)
    def get_default_config(cls) -> SelfPlayConfig:
        return SelfPlayConfig()

    @override(LLMAlgorithm)
    def setup(self, config: SelfPlayConfig) -> None:
        self.matchmaker = config.build_matchmaker()
        if config.league_exploitability_interval:
            refuse_too_large(game_text(config), remembers=config.history != "latest")
        super().setup(config)
        assert isinstance(self._task_source, AssignedTasks)
        self._task_source.agent = lambda task: self.matchmaker.assignment(task.seed)

    # One iteration -------------------------------------------------------------------

    @override(LLMAlgorithm)
    def training_step(self) -> None:
        if self.matchmaker.wants_snapshot():
            slot = self.matchmaker.add_snapshot(self.iteration)
            self._on_learners(Freeze(DEFAULT_MODULE_ID, slot))
            self._sync_weights([slot])
        if self.config.league_exploiter_fraction:
            self._update_exploiter()
        super().training_step()
        for key, value in self.matchmaker.metrics().items():
            self.metrics.log_value(("league", *key), value, window=1)
        interval = self.config.league_exploitability_interval
        if interval and (self.iteration + 1) % interval == 0:
            result = self.measure_exploitability()
            self.metrics.log_value(
                ("league", "exploitability"), result.exploitability, window=1
            )

    @override(LLMAlgorithm)
    def play_groups(self, num_groups: int) -> list[Any]:
        """Sample games and record them in the order of their tasks."""
        # Not in the order of EnvRunners: ratings and baselines depend on it.
        episodes = sorted(super().play_groups(num_groups), key=_number)
        results = [self._result(e) for e in episodes if e.is_terminated]
        self.matchmaker.record(results)
        if results:
            share = np.mean([len(set(r.players)) == 1 for r in results])
            self.metrics.log_value(("league", "mirror_frac"), float(share), window=1)
        exploiter_returns = [
            _return_of(LEARNER, r) for r in results if EXPLOITER in r.players
        ]
        if exploiter_returns:
            self.metrics.log_value(
                ("league", "exploiter_return_mean"),
                float(np.mean(exploiter_returns)),
                window=1,
            )
        return episodes

    def _result(self, episode: Episode) -> GameResult:
        # The log also has agents that received rewards but never acted.
        returns: dict[str, float] = {}
        for _, agent, reward in episode.custom_data[columns.REWARD_LOG]:
            returns[agent] = returns.get(agent, 0.0) + reward
        assignment = task_of(episode).assignment
        number = _number(episode)
        index = number[0] * self.config.group_size + number[1]
        return self.matchmaker.result(index, assignment, returns)

    @override(GRPO)
    def process_episodes(self, episodes: SampledEpisodes) -> SampledEpisodes:
        """Drop zero-variance groups if rollouts are compared."""
        if (
            self.config.advantage_estimator is None
            and self.config.advantage_baseline == ROLE
        ):
            return LLMAlgorithm.process_episodes(self, episodes)
        return super().process_episodes(episodes)

    @override(GRPO)
    def _compared(self, episodes: SampledEpisodes) -> SampledEpisodes:
        """Return the learner's trajectories; opponents do not count in a baseline."""
        return episodes.of_policy(DEFAULT_MODULE_ID)

    # Exploitability ------------------------------------------------------------------

    def measure_exploitability(self) -> Exploitability:
        """Return how far the sampled policy is from a Nash equilibrium.

        The policy's probabilities of the legal words are computed for every decision of
        the game. For small games of OpenSpiel; under ``history="latest"`` also for
        games of perfect information with few positions.

        Raises:
            ConfigError: If the game is not OpenSpiel's, too large, or without
                information states.
        """

        return measure_exploitability(
            game_text(self.config),
            word_probs(self._word_log_probs),
            remembers=self.config.history != "latest",
        )

    def _update_exploiter(self) -> None:
        """Send the current best response to all EnvRunners, restarted ones included."""
        noise = self.config.league_exploiter_noise
        text = game_text(self.config)
        responder = respond(text, word_probs(self._word_log_probs), noise)
        self._exploiter = _SetScriptedPolicy(responder)
        if self.env_runner is not None:
            self._exploiter(self.env_runner)
        self._send_exploiter(self.env_runner_group.healthy_env_runner_ids())

    def _send_exploiter(self, runners: list[int]) -> None:
        if self._exploiter is not None:
            call_runners(
                self.env_runner_group,
                self._exploiter,
                runners=runners,
                limit=self.config.call_limit,
                version=self._weights_version,
            )

    @override(LLMAlgorithm)
    def update_restarted(self, runners: list[int]) -> None:
        """Send weights and the best response to EnvRunners that have restarted."""
        super().update_restarted(runners)
        self._send_exploiter(runners)

    @override(LLMAlgorithm)
    def restore_env_runners(self, env_runner_group: EnvRunnerGroup) -> list[int]:
        """Restore EnvRunners, also within an iteration, with the best response."""
        restored = super().restore_env_runners(env_runner_group)
        if restored and env_runner_group is self.env_runner_group:
            self._send_exploiter(restored)
        return restored

    def _word_log_probs(self, conversations: Any, words: Any) -> list[list[float]]:
        call = ScoreWords(DEFAULT_MODULE_ID, conversations, words)
        return self._on_learners(call, first_only=True)[0]

    def _on_learners(
        self, call: Callable[..., Any], *, first_only: bool = False
    ) -> list[Any]:
        chosen = [0] if first_only and not self.learner_group.is_local else None
        results = self.learner_group.foreach_learner(call, remote_actor_ids=chosen)
        return [result.get() for result in results]

    # Checkpoints ---------------------------------------------------------------------

    @override(LLMAlgorithm)
    def driver_state(self) -> dict[str, Any]:
        return {**super().driver_state(), _LEAGUE_KEY: self.matchmaker.state_dict()}

    @override(LLMAlgorithm)
    def set_driver_state(self, state: dict[str, Any]) -> None:
        super().set_driver_state(state)
        if _LEAGUE_KEY in state:
            self.matchmaker.load_state(state[_LEAGUE_KEY])


@dataclasses.dataclass(frozen=True)
class _SetScriptedPolicy:
    """A picklable call on an EnvRunner."""

    script: Responder

    def __call__(self, env_runner: LLMEnvRunner) -> None:
        env_runner.set_scripted_policy(EXPLOITER, self.script)


def _return_of(name: str, result: GameResult) -> float:
    return result.returns[result.players.index(name)]


def _number(episode: Episode) -> tuple[int, int]:
    task = task_of(episode)
    return task.group_id, task.rollout
