"""Transfer of weights from a Learner to EnvRunners in other processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ray

from rllib_llm import weights as state
from rllib_llm.algorithms.driver.runner_group_calls import call_runners
from rllib_llm.distributed import is_first
from rllib_llm.remote_calls import TimeLimit, result_of

if TYPE_CHECKING:
    from ray.rllib.core.learner.learner_group import LearnerGroup
    from ray.rllib.env.env_runner_group import EnvRunnerGroup

    from rllib_llm.algorithms.learner.llm_learner import LLMLearnerMixin
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
    from rllib_llm.modules.llm_rl_module import LLMRLModule

_MIB = 2**20


def send_weights(
    learner_group: LearnerGroup,
    runner_group: EnvRunnerGroup,
    *,
    dtype: str | None,
    also_local: bool,
    limit: TimeLimit,
    module_ids: Sequence[str] | None = None,
) -> SentWeights:
    """Send the Learner's weights to all EnvRunners, and wait for them.

    The weights are put into Ray's object store once, for any number of runners.
    Parameters that do not require gradients (all but the adapters under LoRA) are left
    out, except for runners that never received them, such as restarted ones.

    Args:
        learner_group: LearnerGroup; its first Learner's weights are sent.
        runner_group: An EnvRunnerGroup of LLMEnvRunners.
        dtype: Dtype in which language models' parameters are sent; None: unchanged.
        also_local: Whether a local EnvRunner, if there is one, needs them too.
        limit: Time limit of a call to an EnvRunner.
        module_ids: The policies that have changed; None: those that are trained.
    """
    changed = pack_weights(learner_group, dtype=dtype, module_ids=module_ids)
    # 0 is the local one, in this process.
    local = runner_group.local_env_runner if also_local else None
    answers = {} if local is None else {0: changed(local)}
    answers |= call_runners(runner_group, changed, limit=limit, version=changed.version)
    lacking = [runner for runner, has_loaded in answers.items() if not has_loaded]
    mib = changed.mib
    if lacking:
        # Only on demand: under LoRA the base is many times larger than the adapters.
        mib += send_all_weights(
            learner_group, runner_group, lacking, dtype=dtype, limit=limit
        ).mib
    return SentWeights(mib, changed.version)


def send_all_weights(
    learner_group: LearnerGroup,
    runner_group: EnvRunnerGroup,
    runners: Sequence[int],
    *,
    dtype: str | None,
    limit: TimeLimit,
) -> SentWeights:
    """Send all weights, those without gradients too, to some EnvRunners.

    Args:
        learner_group: See :func:`send_weights`.
        runner_group: See :func:`send_weights`.
        runners: Ids of the EnvRunners; 0 is the local one.
        dtype: See :func:`send_weights`.
        limit: See :func:`send_weights`.
    """
    whole = pack_weights(learner_group, dtype=dtype, everything=True)
    if 0 in runners:
        whole(runner_group.local_env_runner)
    remote = [runner for runner in runners if runner]
    call_runners(
        runner_group, whole, limit=limit, version=whole.version, runners=remote
    )
    return SentWeights(whole.mib, whole.version)


@dataclasses.dataclass(frozen=True)
class SentWeights:
    """Weights that were sent.

    Attributes:
        mib: Size in Ray's object store, in MiB.
        version: Their version.
    """

    mib: float
    version: int


def pack_weights(
    learner_group: LearnerGroup,
    *,
    dtype: str | None,
    everything: bool = False,
    module_ids: Sequence[str] | None = None,
) -> ReceiveWeights:
    """Put the Learner's weights into the object store; return the call that loads them.

    Args:
        learner_group: LearnerGroup; its first Learner's weights are sent.
        dtype: See :func:`send_weights`.
        everything: All policies that are sampled, parameters without gradients
            included.
        module_ids: See :func:`send_weights`.
    """
    # All Learners have the same weights; RLlib numbers them from 0.
    first = None if learner_group.is_local else [0]
    call = _Pack(dtype, everything, module_ids)
    (result,) = learner_group.foreach_learner(call, remote_actor_ids=first)
    return result.get()


@dataclasses.dataclass(frozen=True)
class _Pack:
    """A call on a Learner: put its weights into the object store."""

    dtype: str | None
    everything: bool
    module_ids: Sequence[str] | None = None

    def __call__(self, learner: LLMLearnerMixin) -> ReceiveWeights | None:
        packed = self.packed(learner)
        if not is_first():  # it has helped to gather the shards
            return None
        arrays = [array for arrays in packed.values() for array in arrays.values()]
        return ReceiveWeights(
            weights=ray.put(packed),
            version=learner._weights_seq_no,
            everything=self.everything,
            mib=sum(array.nbytes for array in arrays) / _MIB,
        )

    def packed(self, learner: LLMLearnerMixin) -> dict[str, dict[str, Any]]:
        """Return numpy arrays by name, by ModuleID."""
        config = learner.config
        module_ids = self.module_ids
        if self.everything:
            module_ids = config.sampled_module_ids
        elif not module_ids:
            module_ids = (*config.trained_module_ids, *config.trained_non_llm_ids)
        modules = {m: learner.module[m].unwrapped() for m in module_ids}
        return {
            m: module.get_state(inference_only=True)
            if m in config.non_llm_module_ids
            else self._pack(module)
            for m, module in modules.items()
        }

    def _pack(self, module: LLMRLModule) -> dict[str, Any]:
        tensors = module.shared_tensors(inference_only=True)
        if not self.everything:
            frozen = {n for n, p in module.named_parameters() if not p.requires_grad}
            tensors = {n: t for n, t in tensors.items() if n not in frozen}
        return state.pack(tensors, dtype=self.dtype)


@dataclasses.dataclass(frozen=True)
class ReceiveWeights:
    """Call on an EnvRunner that loads weights; False: it needs all of them."""

    weights: ray.ObjectRef
    version: int
    everything: bool
    mib: float

    def __call__(self, runner: LLMEnvRunner) -> bool:
        if not (self.everything or runner.has_all_weights):
            return False
        # Ray resolves references that are arguments, not those inside an object.
        packed = result_of(
            self.weights,
            f"Weights version {self.version} for EnvRunner {runner.worker_index}",
            runner.config.call_limit,
        )
        runner.receive_weights(packed, self.version)
        return True
