"""Fork rules, which decide where episodes of a group begin at places of others.

A fork rule is a class with the attribute ``roots``, the number of a group's episodes
that begin at the prompt, and ``__call__(point)``, which returns how many episodes to
fork at a :class:`ForkPoint`. A rule with a method ``path`` chooses places in the tree
of a group's finished episodes instead, and ``follow_best`` along the best of these.
Importing this package registers its rules.
"""

from rllib_llm.forks import entropy, every_turn, follow_best, mcts
from rllib_llm.forks.point import ForkPoint

__all__ = ["ForkPoint", "entropy", "every_turn", "follow_best", "mcts"]
