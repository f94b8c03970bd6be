"""Weights on their way from a Learner to EnvRunners in other processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import ray

from rllib_llm import weights as state

_MIB = 2**20


def send_weights(
    learner_group: Any,
    runner_group: Any,
    *,
    dtype: str | None,
    also_local: bool,
    module_ids: Sequence[str] | None = None,
) -> float:
    """Bring all EnvRunners to the Learner's weights, and wait for them.

    The weights are put into Ray's object store once, however many runners there are.
    Parameters that do not require gradients (all but the adapters under LoRA) are left
    out, except for runners that say they never had them, such as restarted ones.

    Args:
        learner_group: Whose first Learner has the weights.
        runner_group: An EnvRunnerGroup of LLMEnvRunners.
        dtype: Parameters of language models travel in this dtype; None is their own.
        also_local: Whether a local EnvRunner, if there is one, needs them too.
        module_ids: The policies that have changed; None: those that are trained.

    Returns:
        What was put into the object store, in MiB.
    """
    changed = _pack(learner_group, _Pack(dtype, False, module_ids))
    answers = runner_group.foreach_env_runner(changed, local_env_runner=also_local)
    lacking = [index for index in answers if index is not None]
    if not lacking:
        return changed.mib
    whole = _pack(learner_group, _Pack(dtype, True))
    runner_group.foreach_env_runner(
        whole,
        local_env_runner=0 in lacking,
        remote_worker_ids=[index for index in lacking if index],
    )
    return changed.mib + whole.mib


@dataclasses.dataclass(frozen=True)
class _Pack:
    """A call on a Learner: put its weights into the object store."""

    dtype: str | None
    everything: bool
    module_ids: Sequence[str] | None = None

    def __call__(self, learner: Any) -> _Receive:
        packed = self.packed(learner)
        arrays = [array for arrays in packed.values() for array in arrays.values()]
        return _Receive(
            weights=ray.put(packed),
            version=learner._weights_seq_no,
            everything=self.everything,
            mib=sum(array.nbytes for array in arrays) / _MIB,
        )

    def packed(self, learner: Any) -> dict[str, dict[str, Any]]:
        """Return numpy arrays by name, by ModuleID."""
        config = learner.config
        bound = self.module_ids
        if self.everything:
            bound = config.sampled_module_ids
        elif not bound:
            bound = (*config.trained_module_ids, *config.trained_non_llm_ids)
        modules = {m: learner.module[m].unwrapped() for m in bound}
        return {
            m: module.get_state(inference_only=True)
            if m in config.non_llm_module_ids
            else self._pack(module)
            for m, module in modules.items()
        }

    def _pack(self, module: Any) -> dict[str, Any]:
        tensors = module.shared_tensors(inference_only=True)
        if not self.everything:
            frozen = {n for n, p in module.named_parameters() if not p.requires_grad}
            tensors = {n: t for n, t in tensors.items() if n not in frozen}
        return state.pack(tensors, dtype=self.dtype)


@dataclasses.dataclass(frozen=True)
class _Receive:
    """A call on an EnvRunner: take the weights; its index comes back if it cannot."""

    weights: ray.ObjectRef
    version: int
    everything: bool
    mib: float

    def __call__(self, runner: Any) -> int | None:
        if not (self.everything or runner.has_all_weights):
            return runner.worker_index or 0
        runner.receive_weights(ray.get(self.weights), self.version)
        return None


def _pack(learner_group: Any, call: _Pack) -> _Receive:
    # All Learners have the same weights; RLlib numbers them from 0.
    first = None if learner_group.is_local else [0]
    (result,) = learner_group.foreach_learner(call, remote_actor_ids=first)
    return result.get()
