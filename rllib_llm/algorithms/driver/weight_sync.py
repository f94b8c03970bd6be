"""Transfer of weights from a Learner to EnvRunners in other processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

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


class WeightSync:
    """Sends the Learners' weights to EnvRunners through Ray's object store.

    Args:
        learner_group: LearnerGroup; its first Learner's weights are sent.
        dtype: Dtype in which language models' parameters are sent; None: unchanged.
        limit: Time limit of a call to an EnvRunner.
    """

    def __init__(
        self, learner_group: LearnerGroup, *, dtype: str | None, limit: TimeLimit
    ) -> None:
        """Store the arguments; nothing is sent."""
        self._learners, self._dtype, self._limit = learner_group, dtype, limit

    def send(
        self,
        runner_group: EnvRunnerGroup,
        *,
        also_local: bool,
        module_ids: Sequence[str] | None = None,
    ) -> SentWeights:
        """Send the Learner's weights to all EnvRunners, and wait for them.

        The weights are put into Ray's object store once, for any number of runners.
        Parameters that do not require gradients (all but the adapters under LoRA) are
        left out, except for runners that never received them, such as restarted ones.

        Args:
            runner_group: An EnvRunnerGroup of LLMEnvRunners.
            also_local: Whether a local EnvRunner, if there is one, needs them too.
            module_ids: The policies that have changed; None: those that are trained.
        """
        changed = self.pack(module_ids=module_ids)
        # 0 is the local one, in this process.
        local = runner_group.local_env_runner if also_local else None
        answers = {} if local is None else {0: changed(local)}
        answers |= call_runners(
            runner_group, changed, limit=self._limit, version=changed.version
        )
        lacking = [runner for runner, has_loaded in answers.items() if not has_loaded]
        mib = changed.mib
        if lacking:
            # Only on demand: under LoRA the base is many times larger than adapters.
            mib += self.send_all(runner_group, lacking).mib
        return SentWeights(mib, changed.version)

    def send_all(
        self, runner_group: EnvRunnerGroup, runners: Sequence[int]
    ) -> SentWeights:
        """Send all weights, those without gradients too, to some EnvRunners.

        Args:
            runner_group: See :meth:`send`.
            runners: Ids of the EnvRunners; 0 is the local one.
        """
        whole = self.pack(everything=True)
        if 0 in runners:
            whole(runner_group.local_env_runner)
        remote = [runner for runner in runners if runner]
        call_runners(
            runner_group,
            whole,
            limit=self._limit,
            version=whole.version,
            runners=remote,
        )
        return SentWeights(whole.mib, whole.version)

    def pack(
        self, *, everything: bool = False, module_ids: Sequence[str] | None = None
    ) -> WeightCall:
        """Put the weights into the object store; return the call that loads them.

        Args:
            everything: All policies that are sampled, parameters without gradients
                included.
            module_ids: See :meth:`send`.
        """
        # All Learners have the same weights; RLlib numbers them from 0.
        first = None if self._learners.is_local else [0]
        call = _Pack(self._dtype, everything, module_ids)
        (result,) = self._learners.foreach_learner(call, remote_actor_ids=first)
        return result.get()


class WeightCall(Protocol):
    """A call on an EnvRunner that lets it sample with a version of the weights."""

    @property
    def version(self) -> int:
        """The version."""

    @property
    def mib(self) -> float:
        """Size of what was sent, in MiB."""

    def __call__(self, runner: LLMEnvRunner) -> bool:
        """Return False if the EnvRunner needs all weights instead."""


@dataclasses.dataclass(frozen=True)
class SentWeights:
    """Weights that were sent.

    Attributes:
        mib: Size of what was sent, in MiB.
        version: Their version.
    """

    mib: float
    version: int


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
