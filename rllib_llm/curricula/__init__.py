"""Curricula, which change tasks before sampling.

A curriculum is a class with ``assign(task, iteration)``, called once per group, and
optionally ``observe(table)``, called with the sampled groups, ``get_state`` and
``set_state`` for checkpoints, and ``all_options()``, the task options that it may
use, which are tried before training. Importing this package registers its curricula.
"""

from rllib_llm.curricula import bandit, failed, horizon, proposed, rising, threshold

__all__ = ["bandit", "failed", "horizon", "proposed", "rising", "threshold"]
