"""Settings of ``resources``: RLlib's, and the number of torch's CPU threads."""

from __future__ import annotations

from typing import Any, Literal, Self

from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.config.assign import stores_settings
from rllib_llm.rllib_bases import RLlibConfig
from rllib_llm.schema import PositiveInt


class ResourceSettings(RLlibConfig):
    """Default and fluent method of ``resources``."""

    def _set_resource_defaults(self) -> None:
        self.torch_num_threads: int | str | None = "auto"

    @stores_settings()
    def resources(
        self,
        *,
        torch_num_threads: PositiveInt | Literal["auto"] | None = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Set what processes may use: RLlib's settings, and one more.

        Args:
            torch_num_threads: CPU threads of a process while it samples or updates.
                "auto": by the model's parameters and the cores, unless the environment
                variable OMP_NUM_THREADS is set; None: torch's own number.
            kwargs: RLlib's settings.
        """
        super().resources(**kwargs)
        return self
