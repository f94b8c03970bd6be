"""Settings of ``resources``: RLlib's, and the number of torch's CPU threads."""

from __future__ import annotations

from typing import Literal

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)
from rllib_llm.schema import PositiveInt


class ResourceSettings(DeclaredSettings):
    """Settings of ``resources``."""

    resources = fluent_method(
        "Set what processes may use: RLlib's settings, and one more."
    )

    torch_num_threads: PositiveInt | Literal["auto"] | None = setting(
        "auto",
        """CPU threads of a process while it samples or updates. "auto": by the model's
        parameters and the cores, unless the environment variable OMP_NUM_THREADS is
        set; None: torch's own number.""",
    )
