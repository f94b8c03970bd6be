"""Filters: selection of the trajectories and turns to train on.

A filter takes a :class:`~rllib_llm.components.TurnTable` of whole groups and returns
which trajectories [N] or turns [M] to keep, as booleans. The others are dropped or
masked (``effect``). Importing this package registers its filters.
"""

from rllib_llm.filters import asked, basic, evolved, groups, members, scores, text

__all__ = ["asked", "basic", "evolved", "groups", "members", "scores", "text"]
