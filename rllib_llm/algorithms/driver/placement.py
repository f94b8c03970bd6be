"""Check that the nodes of a Ray cluster can hold the actors of a run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from rllib_llm.errors import ConfigError

if TYPE_CHECKING:
    from ray.tune import PlacementGroupFactory

    from rllib_llm.types import LLMConfig

Bundle = Mapping[str, float]
_LOGGER = logging.getLogger(__name__)


def require_nodes_of_actors(request: PlacementGroupFactory, config: LLMConfig) -> None:
    """Wait for nodes that can hold the actors of this process's algorithm.

    In a trial of Tune there is nothing to wait for: Ray has reserved its resources.

    Args:
        request: The algorithm's resources, this process's first.
        config: The algorithm's config.

    Raises:
        ConfigError: If there are no such nodes.
    """
    first = 0 if request.head_bundle_is_empty else 1
    bundles = request.bundles[first:]
    # Without actors Ray need not run, and both functions would start it.
    if bundles and ray.util.get_current_placement_group() is None:
        require_nodes(bundles, request.strategy, config.wait_for_nodes_s)


def require_nodes(bundles: list[Bundle], strategy: str, wait_s: float) -> None:
    """Wait for nodes that can hold processes.

    Resources that other runs use count as there: Ray waits for those. A request that
    the cluster cannot hold is placed, so that an autoscaler sees it, and removed.

    Args:
        bundles: Resources of each process.
        strategy: Ray's strategy of placing them.
        wait_s: The longest wait in seconds.

    Raises:
        ConfigError: If no such nodes are there after the wait.
    """
    bundles = [bundle for bundle in bundles if any(bundle.values())]
    missing = unplaceable(bundles, node_resources()) if bundles else None
    if missing is None:
        return
    if wait_s:
        _LOGGER.warning("%s Waiting for at most %g s for nodes.", missing, wait_s)
    if wait_s and _can_be_placed(bundles, strategy, wait_s):
        return
    raise ConfigError(
        f"{missing} Ray would wait for ever. Lower the numbers of Learners, "
        "EnvRunners, CPUs or GPUs, correct resources.placement, or add nodes (waited "
        f"resources.wait_for_nodes_s={wait_s:g} s)."
    )


def unplaceable(bundles: Iterable[Bundle], nodes: list[Bundle]) -> str | None:
    """Return a sentence on what the nodes cannot hold, None if nothing is missing.

    Args:
        bundles: Resources of each process.
        nodes: All resources of each node, used or not.
    """
    wanted: dict[str, float] = {}
    for bundle in bundles:
        needed = {name: amount for name, amount in bundle.items() if amount}
        if not any(_fits(needed, node) for node in nodes):
            return (
                f"No node has {_listed(needed)}, which one process of this run needs; "
                f"the nodes have {'; '.join(_listed(node) for node in nodes)}."
            )
        for name, amount in needed.items():
            wanted[name] = wanted.get(name, 0.0) + amount
    for name, amount in wanted.items():
        there = sum(node.get(name, 0.0) for node in nodes)
        # Sums of shares of a resource are not exact.
        if amount > there + 1e-6:
            return (
                f"The processes of this run need {amount:g} {name} together; the "
                f"cluster has {there:g}."
            )
    return None


def _fits(bundle: Bundle, node: Bundle) -> bool:
    return all(node.get(name, 0.0) >= amount for name, amount in bundle.items())


def _listed(resources: Bundle) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(resources.items()))


def node_resources() -> list[Bundle]:
    """Return the resources of living nodes, without those that Ray adds itself."""
    return [
        {
            name: amount
            for name, amount in node["Resources"].items()
            if not name.startswith("node:") and not name.endswith("memory")
        }
        for node in ray.nodes()
        if node["Alive"]
    ]


def _can_be_placed(bundles: list[Any], strategy: str, wait_s: float) -> bool:
    group = placement_group(bundles, strategy=strategy)
    try:
        return bool(group.wait(wait_s))
    finally:
        remove_placement_group(group)
