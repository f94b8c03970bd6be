"""Dependency graph of a team: the agents whose messages an agent reads in a round.

MARFT's D (Liao et al. 2025, arXiv:2504.16129): ``D(i, j) = 1`` if agent j reads agent
i's message of the *same round* before it writes its own. The graph determines the order
in which agents act and which of them act at once. Messages of earlier rounds need no
edge, because a round ends before the next begins. MARFT's released code supports the
chain only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import numpy as np

from rllib_llm.errors import ConfigError, did_you_mean

TOPOLOGIES = ("chain", "star", "debate")


@dataclasses.dataclass(frozen=True)
class DependencyGraph:
    """Validated dependency graph; build it with :func:`dependency_graph`.

    Attributes:
        agents: All agents, in the given order.
        reads: By agent, the agents whose messages of the round it reads.
        levels: Groups of agents that act at once. An agent reads messages of earlier
            levels only, and is in the first level that allows it.
    """

    agents: tuple[str, ...]
    reads: dict[str, tuple[str, ...]]
    levels: tuple[tuple[str, ...], ...]

    def read_by(self, agent: str) -> tuple[str, ...]:
        """Return the agents that read this agent's message of the same round."""
        _check_agent(agent, self.agents)
        return tuple(a for a in self.agents if agent in self.reads[a])

    def order(self, agents: Sequence[str], turns: Sequence[int]) -> np.ndarray:
        """Return each message's order in its episode, the ``order`` of ``message_gae``.

        Args:
            agents: Agent of each message. [M]
            turns: Round of each message, from 0. [M]

        Returns:
            ``turn * number of levels + level``; equal values are simultaneous. [M]

        Raises:
            ConfigError: If an agent is not in the team.
            ValueError: If the lengths differ.
        """
        level = {a: i for i, level in enumerate(self.levels) for a in level}
        for agent in set(agents) - set(level):
            _check_agent(agent, self.agents)
        places = [
            turn * len(self.levels) + level[agent]
            for agent, turn in zip(agents, turns, strict=True)
        ]
        return np.array(places, dtype=np.int64)


def dependency_graph(
    topology: str | Mapping[str, Sequence[str]], agents: Sequence[str]
) -> DependencyGraph:
    """Build the graph of a named topology, or of edges.

    ==========  ===============================================  ======================
    name        messages that an agent reads within a round      levels
    ==========  ===============================================  ======================
    ``chain``   those of all agents listed before it             one agent each
    ``star``    the last agent those of all others, others none  the others; the last
    ``debate``  none (agents read the previous round)            one, all agents
    ==========  ===============================================  ======================

    Args:
        topology: One of the names, or edges ``{reader: [read, ...]}``; agents without
            a key read no messages of the round.
        agents: All agents, each once.

    Raises:
        ConfigError: If a name does not exist, an agent occurs twice, or the edges have
            a cycle.

    Example:
        >>> dependency_graph({"judge": ["a", "b"]}, ["a", "b", "judge"]).levels
        (('a', 'b'), ('judge',))
    """
    agents = tuple(agents)
    if not agents or len(set(agents)) < len(agents):
        raise ConfigError(
            f"agents is {list(agents)}. There must be at least one agent, each listed "
            "once. Number agents of one role: reasoner_0, reasoner_1."
        )
    given = _named_reads(topology, agents) if isinstance(topology, str) else topology
    for agent in (*given, *(a for read in given.values() for a in read)):
        _check_agent(agent, agents)
    reads = {agent: tuple(dict.fromkeys(given.get(agent, ()))) for agent in agents}
    return DependencyGraph(agents, reads, _levels(reads))


def _named_reads(topology: str, agents: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    if topology == "chain":
        return {agent: agents[:i] for i, agent in enumerate(agents)}
    if topology == "star":
        return {agents[-1]: agents[:-1]}
    if topology == "debate":
        return {}
    raise ConfigError(
        f"The topology is {topology!r}. It must be one of {list(TOPOLOGIES)} or edges "
        f"{{reader: [read, ...]}}. {did_you_mean(topology, TOPOLOGIES)}"
    )


def _levels(reads: dict[str, tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    sorter = TopologicalSorter(reads)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = " reads ".join(reversed(error.args[1]))
        raise ConfigError(
            f"The dependency graph has a cycle: {cycle}. Within a round no message can "
            "depend on itself. Remove one of these edges; an agent can read messages "
            "of the previous round without an edge."
        ) from None
    levels = []
    while sorter.is_active():
        level = sorted(sorter.get_ready(), key=list(reads).index)
        sorter.done(*level)
        levels.append(tuple(level))
    return tuple(levels)


def _check_agent(agent: str, agents: tuple[str, ...]) -> None:
    if agent not in agents:
        raise ConfigError(
            f"The agent {agent!r} is not one of the team's agents {list(agents)}. "
            f"{did_you_mean(str(agent), agents)}"
        )
