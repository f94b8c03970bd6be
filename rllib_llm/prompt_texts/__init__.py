"""Components that add texts to first messages, and change them by what episodes show.

A component of kind ``prompt_text`` is a class with ``assign(task, iteration)``, which
returns the task with a ``prompt_text`` (a TextSource), ``asked(table)``, the episodes
that its assistant ``of`` is asked about, ``observe(table, answers)``, which changes the
texts and returns numbers to log, ``shared()``, the texts of evaluation episodes,
``get_state`` and ``set_state``. Importing this package registers its components.
"""

from rllib_llm.prompt_texts import functions, library, memory, population

__all__ = ["functions", "library", "memory", "population"]
