"""Ray's MLflow logger, with the recipe's settings as parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.air.integrations.mlflow import MLflowLoggerCallback
from ray.rllib.utils.annotations import override
from ray.tune.utils.util import flatten_dict

if TYPE_CHECKING:
    from ray.tune.experiment import Trial


class SettingsMLflow(MLflowLoggerCallback):
    """Logs the recipe's settings instead of RLlib's whole config.

    The config has hundreds of values, among them Python objects and strings that exceed
    MLflow's limit.

    Args:
        settings: Scalars by their dotted names.
        options: Keyword arguments of Ray's callback.
    """

    def __init__(self, settings: dict[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self._settings = dict(settings)

    @override(MLflowLoggerCallback)
    def log_trial_start(self, trial: Trial) -> None:
        """Start the run and log the settings."""
        params = {**self._settings, **flatten_dict(trial.evaluated_params)}
        # True for this call, so that Ray does not log the config at the start; False
        # after it, so that Ray does not log it at the end either.
        self.log_params_on_trial_end = True
        super().log_trial_start(trial)
        self.log_params_on_trial_end = False
        self.mlflow_util.log_params(params, run_id=self._trial_runs[trial])
