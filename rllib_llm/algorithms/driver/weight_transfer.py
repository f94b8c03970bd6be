"""Transfer of weights from Learners to the engine without main memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.driver.build_vllm_engines import build_engine
from rllib_llm.algorithms.driver.weight_sync import WeightCall, WeightSync
from rllib_llm.algorithms.learner.weight_transfer import SendWeights

if TYPE_CHECKING:
    from ray.rllib.core.learner.learner_group import LearnerGroup

    from rllib_llm.engines import ActorEngine
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
    from rllib_llm.types import LLMConfig

_BUCKET_MIB = 512


def weight_sync_of(config: LLMConfig, learner_group: LearnerGroup) -> WeightSync:
    """Return what sends the weights, as ``rollouts.weight_sync`` says.

    With a transfer, the engine's actor is started, and gets the weights.
    """
    if config.weight_sync != "object_store":
        return WeightTransfer(config, learner_group)
    return WeightSync(
        learner_group, dtype=config.weight_sync_dtype, limit=config.call_limit
    )


class WeightTransfer(WeightSync):
    """Lets the Learners send weights to vLLM; EnvRunners learn the version.

    Args:
        config: The algorithm's.
        learner_group: The Learners.
    """

    def __init__(self, config: LLMConfig, learner_group: LearnerGroup) -> None:
        """Start the engine's actor and send the weights once.

        The actor belongs to this process, so that it outlives EnvRunners.
        """
        dtype, limit = config.weight_sync_dtype, config.call_limit
        super().__init__(learner_group, dtype=dtype, limit=limit)
        self._engine = cast("ActorEngine", build_engine(config))
        self._call = SendWeights(
            self._engine.handle(),
            model=config.resolved_model or config.lm_model,
            backend=config.weight_sync,
            bucket_bytes=2**20 * (config.weight_sync_bucket_mib or _BUCKET_MIB),
            dtype=dtype,
            num_workers=config.engine_kwargs.get("tensor_parallel_size", 1),
            limit=limit,
        )
        self.pack()

    @override(WeightSync)
    def pack(
        self, *, everything: bool = False, module_ids: Sequence[str] | None = None
    ) -> WeightCall:
        """Send all weights to the engine; return the call that announces them."""
        # To all Learners: those with shards gather them together.
        sent = self._learners.foreach_learner(self._call)
        first = sent.result_or_errors[0].get()
        return AnnounceVersion(first.version, first.mib)


@dataclasses.dataclass(frozen=True)
class AnnounceVersion:
    """Call on an EnvRunner whose engine has got weights from the Learners."""

    version: int
    mib: float

    def __call__(self, runner: LLMEnvRunner) -> bool:
        """Let its turns belong to the version; it needs no weights."""
        runner.has_all_weights = True
        runner.set_weights_version(self.version)
        return True
