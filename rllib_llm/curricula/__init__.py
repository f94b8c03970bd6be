"""Which tasks come when: a curriculum changes tasks before they are played.

A curriculum is a class with ``assign(task, iteration)``, called once per group, and
optionally ``observe(table)``, called with what came of it, ``get_state`` and
``set_state`` for checkpoints, and ``all_options()``, the options of tasks that it may
ask for, which are then tried before training. Importing this registers those of the
package.
"""

from rllib_llm.curricula import bandit, horizon, ladder

__all__ = ["bandit", "horizon", "ladder"]
