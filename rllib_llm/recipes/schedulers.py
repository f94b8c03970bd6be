"""Tune's ASHA and PBT, so that they survive a resume and stay within bounds."""

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

from rllib_llm.recipes import spaces
from rllib_llm.recipes.tune_settings import paths_searched
from rllib_llm.runs.reading import RESULT_FILE, read_history

if TYPE_CHECKING:
    from rllib_llm.recipes.recipe import Recipe

# What trials have reported before a resume: by trial id, iterations and values.
Recorded = Mapping[str, Sequence[tuple[int, float]]]
_PREFIX = "trial_"


def make_scheduler(recipe: Recipe, run: Path) -> TrialScheduler | None:
    """Return the scheduler that ``tune.scheduler`` asks for, or None.

    Args:
        recipe: A recipe.
        run: Its run folder; what lies there already is what trials have reported.
    """
    settings = dict(recipe.tune["scheduler"] or {})
    if not settings:
        return None
    recorded = read_recorded(run, recipe.tune["metric"])
    if settings.pop("name") == "asha":
        settings["max_t"] = settings["max_t"] or recipe.total_iterations
        return ResumableASHA(recorded=recorded, **settings)
    searched = {
        path.rpartition(".")[2]: spaces.at_path(recipe.resolved, path)
        for path in paths_searched(recipe.resolved)
    }
    return Population(searched, recorded=recorded, **settings)


def read_recorded(run: Path, metric: str) -> dict[str, list[tuple[int, float]]]:
    """Return what the trials in a run folder have reported."""
    return {
        path.parent.name.removeprefix(_PREFIX): [
            (int(row[TRAINING_ITERATION]), row[metric])
            for row in read_history(path)
            if metric in row
        ]
        for path in run.glob(f"{_PREFIX}*/{RESULT_FILE}")
    }


class ResumableASHA(ASHAScheduler):
    """ASHA whose rungs are filled again when a run goes on.

    Tune forgets schedulers. Without this, trials after a resume would be compared with
    one another only, and the first one at every rung would always pass.

    Args:
        recorded: What trials reported before.
        kwargs: As for ``ASHAScheduler``.
    """

    def __init__(self, *, recorded: Recorded, **kwargs: Any):
        super().__init__(time_attr=TRAINING_ITERATION, **kwargs)
        self._recorded = recorded

    @override(ASHAScheduler)
    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        super().on_trial_add(tune_controller, trial)
        bracket = self._trial_info[trial.trial_id]
        for iteration, value in self._recorded.get(trial.trial_id, ()):
            bracket.on_result(trial, iteration, self._metric_op * value)


class Population(PopulationBasedTraining):
    """Synchronous PBT over a recipe's search spaces.

    Trials wait for one another every ``perturbation_interval`` iterations; then the
    worst go on from checkpoints of the best, with changed settings. Unlike in Tune's,
    values never leave their search space, a member that ends early does not keep the
    others waiting, and a run that was interrupted goes on where it was.

    Args:
        searched: The config's keys to their search spaces as in YAML.
        recorded: What trials reported before.
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
            # Values to choose from are a list here: neighbours are tried.
            hyperparam_mutations={
                key: spaces.to_tune(space)
                if spaces.is_range(space)
                else spaces.arguments_of(space)
                for key, space in searched.items()
            },
            custom_explore_fn=self._within_bounds,
            require_attrs=False,  # evaluations are not in every result
            synch=True,
            **kwargs,
        )

    def _within_bounds(self, config: dict[str, Any]) -> dict[str, Any]:
        for key, space in self._searched.items():
            if spaces.is_range(space):
                low, high = spaces.first_of(space), spaces.last_of(space)
                config[key] = min(max(config[key], low), high)
        return config

    @override(PopulationBasedTraining)
    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        super().on_trial_add(tune_controller, trial)
        newest = trial.run_metadata.checkpoint_manager.latest_checkpoint_result
        if newest is None:
            return
        self._bring_back(trial, newest.metrics)
        if trial.status == Trial.PENDING:
            # Tune starts what is pending; what is paused begins when it is its turn.
            trial.set_status(Trial.PAUSED)

    def _bring_back(self, trial: Trial, result: dict[str, Any]) -> None:
        """Put a trial that is resumed where it stood among the others."""
        interval = self._perturbation_interval
        at = result[TRAINING_ITERATION] // interval * interval
        state = self._trial_state[trial]
        state.last_train_time = state.last_perturbation_time = at
        state.last_result = result
        values = dict(self._recorded.get(trial.trial_id, ()))
        if at in values:
            state.last_score = self._metric_op * values[at]
        live = [s for t, s in self._trial_state.items() if not t.is_finished()]
        if live:
            slowest = min(s.last_train_time for s in live)
            self._next_perturbation_sync = max(
                slowest + interval, interval, self._burn_in_period
            )

    @override(PopulationBasedTraining)
    def on_trial_complete(
        self, tune_controller: Any, trial: Trial, result: dict[str, Any]
    ) -> None:
        super().on_trial_complete(tune_controller, trial, result)
        self._release(tune_controller, trial)

    @override(PopulationBasedTraining)
    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        super().on_trial_error(tune_controller, trial)
        self._release(tune_controller, trial)

    def _release(self, tune_controller: Any, gone: Trial) -> None:
        """Let the others go on if ``gone`` was the one they waited for."""
        states = [
            self._trial_state[t] for t in tune_controller.get_live_trials() if t != gone
        ]
        due = self._next_perturbation_sync
        if not states or any(s.last_train_time < due for s in states):
            return
        for state in states:
            state.last_perturbation_time = state.last_train_time
        self._next_perturbation_sync = (
            max(s.last_train_time for s in states) + self._perturbation_interval
        )
