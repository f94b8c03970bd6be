"""Settings of ``resources``: RLlib's, threads of torch, and nodes for the actors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)
from rllib_llm.errors import ConfigError
from rllib_llm.schema import NonNegativeFloat, PositiveInt

# Of a node's custom resource, for each actor. As small as Ray allows, so that the
# resource marks nodes and does not limit the number of actors.
_SHARE = 0.0001


class Placement(TypedDict, total=False):
    """Custom resource of the nodes on which each kind of actor runs."""

    learners: str
    engines: str
    env_runners: str


class ResourceSettings(DeclaredSettings):
    """Settings of ``resources``."""

    if TYPE_CHECKING:
        num_learners: int
        num_env_runners: int
        generation_engine: Literal["torch", "vllm", "vllm_actor"]
        custom_resources_per_learner: dict[str, Any] | None
        custom_resources_per_env_runner: dict[str, Any]

    resources = fluent_method(
        "Set what processes may use, and on which nodes they run: RLlib's settings, "
        "and more."
    )

    torch_num_threads: PositiveInt | Literal["auto"] | None = setting(
        "auto",
        """CPU threads of a process while it samples or updates. "auto": by the model's
        parameters and the cores, unless the environment variable OMP_NUM_THREADS is
        set; None: torch's own number.""",
    )
    placement: Placement = setting(
        {},
        """Nodes of ``learners``, ``engines`` (the "vllm_actor") and ``env_runners``:
        for each, the name of a custom resource that these nodes declare (``ray start
        --resources='{"name": 1}'``).""",
    )
    wait_for_nodes_s: NonNegativeFloat = setting(
        60.0,
        """Seconds that a run waits for nodes if those of the cluster cannot hold its
        actors; then it ends with an error. Autoscalers may need minutes.""",
    )

    def place_actors(self) -> None:
        """Let every actor that ``placement`` names request its nodes' resource."""
        if name := self.placement.get("learners"):
            chosen = self.custom_resources_per_learner or {}
            self.custom_resources_per_learner = {name: _SHARE, **chosen}
        if name := self.placement.get("env_runners"):
            chosen = self.custom_resources_per_env_runner
            self.custom_resources_per_env_runner = {name: _SHARE, **chosen}

    @property
    def engine_resources(self) -> dict[str, float]:
        """Custom resources that the actor of an engine requests."""
        name = self.placement.get("engines")
        return {name: _SHARE} if name else {}

    def validate_placement(self) -> None:
        """Check that each part of ``placement`` places something.

        Raises:
            ConfigError: If one does not, or names a resource with a setting of its own.
        """
        needs = {
            "learners": (bool(self.num_learners), "learners.num_learners of 1 or more"),
            "engines": (
                self.generation_engine == "vllm_actor",
                "generation.engine='vllm_actor'",
            ),
            "env_runners": (
                bool(self.num_env_runners),
                "env_runners.num_env_runners of 1 or more",
            ),
        }
        for kind, value in self.placement.items():
            name = str(value)
            given = f"resources.placement={{{kind!r}: {name!r}}}"
            is_there, needed = needs[kind]
            if not is_there:
                raise ConfigError(
                    f"{given} places processes of their own, and this run has none of "
                    f"this kind. Set {needed}, or start the run on such a node and "
                    f"leave {kind} out."
                )
            if not name or name.lower() in ("cpu", "gpu", "memory"):
                raise ConfigError(
                    f"{given} must be a custom resource of nodes, as in ray start "
                    f"--resources='{{\"{kind}_node\": 1}}'. CPUs and GPUs of a process "
                    "have settings of their own, e.g. num_gpus_per_learner."
                )
