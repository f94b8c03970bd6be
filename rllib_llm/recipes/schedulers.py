"""Tune's ASHA and PBT, restored on resume; PBT stays within the search spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.rllib.utils.annotations import override
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import (
    ASHAScheduler,
    PopulationBasedTraining,
    TrialScheduler,
)

from rllib_llm.recipes import search_spaces
from rllib_llm.recipes.tune_settings import paths_searched
from rllib_llm.runs.reading import RESULT_FILE, read_history

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController

    from rllib_llm.recipes.recipe import Recipe

# Results reported before a resume: (iteration, value) pairs by trial id.
Recorded = Mapping[str, Sequence[tuple[int, float]]]
_PREFIX = "trial_"


def make_scheduler(recipe: Recipe, run: Path) -> TrialScheduler | None:
    """Return the scheduler of ``tune.scheduler``, or None.

    Args:
        recipe: A recipe.
        run: Its run folder; results in it restore the scheduler's state.
    """
    settings = dict(recipe.tune["scheduler"] or {})
    if not settings:
        return None
    recorded = read_recorded(run, recipe.tune["metric"])
    if settings.pop("name") == "asha":
        settings["max_t"] = settings["max_t"] or recipe.total_iterations
        return ResumableASHA(recorded=recorded, **settings)
    searched = {
        path.rpartition(".")[2]: search_spaces.at_path(recipe.resolved, path)
        for path in paths_searched(recipe.resolved)
    }
    return Population(searched, recorded=recorded, **settings)


def read_recorded(run: Path, metric: str) -> dict[str, list[tuple[int, float]]]:
    """Return the values of ``metric`` that trials in a run folder have reported."""
    return {
        path.parent.name.removeprefix(_PREFIX): [
            (int(row[TRAINING_ITERATION]), row[metric])
            for row in read_history(path)
            if metric in row
        ]
        for path in run.glob(f"{_PREFIX}*/{RESULT_FILE}")
    }


class ResumableASHA(ASHAScheduler):
    """ASHA that refills its rungs when a run is resumed.

    Tune does not save schedulers. Without this, resumed trials would be compared only
    with one another, and the first at every rung would always be promoted.

    Args:
        recorded: Results reported before the resume.
        kwargs: As for ``ASHAScheduler``.
    """

    def __init__(self, *, recorded: Recorded, **kwargs: Any):
        super().__init__(time_attr=TRAINING_ITERATION, **kwargs)
        self._recorded = recorded

    @override(ASHAScheduler)
    def on_trial_add(self, tune_controller: TuneController, trial: Trial) -> None:
        super().on_trial_add(tune_controller, trial)
        bracket = self._trial_info[trial.trial_id]
        for iteration, value in self._recorded.get(trial.trial_id, ()):
            bracket.on_result(trial, iteration, self._metric_op * value)


class Population(PopulationBasedTraining):
    """Synchronous PBT over a recipe's search spaces.

    Trials synchronise every ``perturbation_interval`` iterations; then the worst load
    checkpoints of the best and change their settings. Unlike Tune's PBT, values never
    leave their search space, a trial that ends early does not block the others, and an
    interrupted run resumes where it stopped.

    Args:
        searched: Config keys to their search spaces as in YAML.
        recorded: Results reported before the resume.
        kwargs: As for ``PopulationBasedTraining``.
    """

    def __init__(
        self,
        searched: Mapping[str, dict[str, Any]],
        *,
        recorded: Recorded,
        **kwargs: Any,
    ):
        self._searched = dict(searched)
        self._recorded = recorded
        super().__init__(
            time_attr=TRAINING_ITERATION,
            # Tune perturbs a list to a neighbouring value, a Domain by a factor.
            hyperparam_mutations={
                key: search_spaces.to_tune(space)
                if search_spaces.is_range(space)
                else search_spaces.arguments_of(space)
                for key, space in searched.items()
            },
            custom_explore_fn=self._within_bounds,
            require_attrs=False,  # evaluation metrics are not in every result
            synch=True,
            **kwargs,
        )

    def _within_bounds(self, config: dict[str, Any]) -> dict[str, Any]:
        for key, space in self._searched.items():
            if search_spaces.is_range(space):
                low, high = search_spaces.first_of(space), search_spaces.last_of(space)
                config[key] = min(max(config[key], low), high)
        return config

    @override(PopulationBasedTraining)
    def on_trial_add(self, tune_controller: TuneController, trial: Trial) -> None:
        super().on_trial_add(tune_controller, trial)
        newest = trial.run_metadata.checkpoint_manager.latest_checkpoint_result
        if newest is None:
            return
        self._restore_state(trial, newest.metrics)
        if trial.status == Trial.PENDING:
            # Tune starts pending trials at once, paused ones when the scheduler says.
            trial.set_status(Trial.PAUSED)

    def _restore_state(self, trial: Trial, result: dict[str, Any]) -> None:
        """Restore the scheduler's state of a resumed trial."""
        interval = self._perturbation_interval
        # The last synchronisation before the checkpoint: scores are compared there.
        last_sync = result[TRAINING_ITERATION] // interval * interval
        state = self._trial_state[trial]
        state.last_train_time = state.last_perturbation_time = last_sync
        state.last_result = result
        values = dict(self._recorded.get(trial.trial_id, ()))
        if last_sync in values:
            state.last_score = self._metric_op * values[last_sync]
        live = [s for t, s in self._trial_state.items() if not t.is_finished()]
        if live:
            slowest = min(s.last_train_time for s in live)
            self._next_perturbation_sync = max(
                slowest + interval, interval, self._burn_in_period
            )

    @override(PopulationBasedTraining)
    def on_trial_complete(
        self, tune_controller: TuneController, trial: Trial, result: dict[str, Any]
    ) -> None:
        super().on_trial_complete(tune_controller, trial, result)
        self._release(tune_controller, trial)

    @override(PopulationBasedTraining)
    def on_trial_error(self, tune_controller: TuneController, trial: Trial) -> None:
        super().on_trial_error(tune_controller, trial)
        self._release(tune_controller, trial)

    def _release(self, tune_controller: TuneController, ended: Trial) -> None:
        """Let the others continue if ``ended`` was the last they waited for.

        Tune advances the synchronisation point only when a live trial reports.
        """
        others = [t for t in tune_controller.get_live_trials() if t != ended]
        states = [self._trial_state[t] for t in others]
        due = self._next_perturbation_sync
        if not states or any(s.last_train_time < due for s in states):
            return
        for state in states:
            state.last_perturbation_time = state.last_train_time
        self._next_perturbation_sync = (
            max(s.last_train_time for s in states) + self._perturbation_interval
        )
