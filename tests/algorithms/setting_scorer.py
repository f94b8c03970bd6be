"""Effects of the settings of scorer."""

from __future__ import annotations

from typing import Any

import torch
from learner_helpers import make_learner
from scorer_helpers import (
    away_from_zero,
    driver_of,
    module_of,
    scorer_config,
    whole_episodes,
)


def scorer_after(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the scorer after two iterations, and whether the policy waits in each."""
    config = scorer_config(**sections["scorer"])
    if not config.uses_scorer:
        return []
    learner = make_learner(config)
    away_from_zero(learner)
    driver, waits = driver_of(config, learner), []
    for iteration in range(2):
        driver._iteration = iteration
        driver._to_learn = whole_episodes()
        waits.append(driver.policy_waits)
        driver._update_scorer()
    flat = [p.detach().flatten() for p in module_of(learner).parameters()]
    return [torch.cat(flat).numpy(), waits]
