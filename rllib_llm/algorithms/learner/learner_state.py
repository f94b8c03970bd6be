"""State of Learners beyond RLlib's, so that a resumed run continues exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ray.rllib.core.learner.learner import Learner
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.learner.optimizers import OptimizerMixin


class LearnerStateMixin(OptimizerMixin):
    """Mixin that saves adapted coefficients, lowered rates and schedules' steps."""

    _ref_kl_coeffs: dict[str, float]
    _last_timesteps: Mapping[str, Any] = {}

    def keep_timesteps(self, timesteps: Mapping[str, Any]) -> None:
        """Keep the steps that schedules have reached."""
        self._last_timesteps = dict(timesteps)

    if TYPE_CHECKING:

        def _publish_ref_kl(self) -> None: ...

    @override(Learner)
    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Add the state that RLlib's lacks, so that a resumed run continues exactly."""
        state = super().get_state(*args, **kwargs)
        if kwargs.get("inference_only"):
            return state
        # RLlib saves optimisers, but not adapted coefficients or the timesteps of its
        # schedules.
        state["llm"] = {
            "ref_kl_coeffs": dict(self._ref_kl_coeffs),
            "nan_steps": self._nan_steps,
            "lr_scales": (dict(self.lr_scales), self._min_lr),
            "timesteps": dict(self._last_timesteps),
            "kl_coeffs": {
                mid: float(self.curr_kl_coeffs_per_module[mid])
                for mid in self.module.keys()
                if hasattr(self, "curr_kl_coeffs_per_module")
            },
        }
        return state

    @override(Learner)
    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        package_state = state.get("llm")
        if package_state is None:
            return
        for mid, coeff in package_state["ref_kl_coeffs"].items():
            if self.config.get_config_for_module(mid).ref_kl_target is not None:
                self._ref_kl_coeffs[mid] = coeff  # adapted; otherwise the config's
        self._publish_ref_kl()
        self._nan_steps = package_state["nan_steps"]
        scales, self._min_lr = package_state.get("lr_scales", ({}, 0.0))
        self.set_lr_scales(scales)
        for mid, value in package_state["kl_coeffs"].items():
            # In place: RLlib's loss holds the tensor.
            self.curr_kl_coeffs_per_module[mid].data.fill_(value)
        self._restore_schedules(package_state["timesteps"])

    def _restore_schedules(self, timesteps: dict[str, Any]) -> None:
        from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME

        self._last_timesteps = dict(timesteps)
        if NUM_ENV_STEPS_SAMPLED_LIFETIME not in timesteps:
            return
        steps = timesteps[NUM_ENV_STEPS_SAMPLED_LIFETIME]
        for optimizer, schedule in self._optimizer_lr_schedules.items():
            self._set_optimizer_lr(optimizer, lr=schedule.update(timestep=steps))
        for mid in self.module.keys():
            if hasattr(self, "entropy_coeff_schedulers_per_module"):
                self.entropy_coeff_schedulers_per_module[mid].update(timestep=steps)
