"""Registry of components: rewards, filters, advantages, losses; docs/components.md."""

from rllib_llm.components.registry import (
    COMPONENTS,
    KINDS,
    BoundComponent,
    Component,
    Spec,
    bind,
    bind_all,
    component,
)
from rllib_llm.data.turn_table import Trajectory, TurnTable

__all__ = [
    "COMPONENTS",
    "KINDS",
    "BoundComponent",
    "Component",
    "Spec",
    "Trajectory",
    "TurnTable",
    "bind",
    "bind_all",
    "component",
]
