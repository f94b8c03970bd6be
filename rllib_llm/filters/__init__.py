"""What is learnt from: whole groups come in, some of it goes on.

A filter takes a :class:`~rllib_llm.components.TurnTable` and returns what it keeps: one
truth value per trajectory [N], or per turn [M]. What it does not keep is dropped, or
masked (``effect``). Importing this registers those of the package.
"""

from rllib_llm.filters import basic, groups, members, text

__all__ = ["basic", "groups", "members", "text"]
