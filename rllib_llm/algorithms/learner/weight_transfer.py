"""A Learner's part of vLLM's weight transfer: sending over NCCL or CUDA IPC.

vLLM's own engine for trainers (vLLM 0.32) sends; this module gives it the weights and
the way to the inference engine's actor. All Learners take part, since each may hold
shards; the first one sends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import ray
import torch
import torch.distributed as dist

from rllib_llm.distributed import is_shard, world_size
from rllib_llm.engines.checkpoint_format import CheckpointFormat
from rllib_llm.remote_calls import TimeLimit, result_of

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from rllib_llm.algorithms.learner.llm_learner import LLMLearnerMixin
    from rllib_llm.modules.llm_rl_module import LLMRLModule

_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class SendWeights:
    """A call on every Learner that sends the weights to the engine's actor.

    Attributes:
        host: The actor, an :class:`rllib_llm.engines.vllm_host.EngineHost`.
        model: Folder or hub id that the engine was built from.
        backend: vLLM's name of the transport, a key of ``BACKENDS``.
        bucket_bytes: Bytes of weights that are sent together.
        dtype: Data type in which they are sent; None: unchanged.
        num_workers: vLLM's processes, one per GPU.
        limit: Time limit of a call to the actor.
    """

    host: ActorHandle
    model: str
    backend: str
    bucket_bytes: int
    dtype: str | None
    num_workers: int
    limit: TimeLimit

    def __call__(self, learner: LLMLearnerMixin) -> Transferred:
        """Connect to a new actor or after an error, then send the current weights."""
        sender = learner.weight_sender
        with _on_device(learner.device):
            if sender is None or sender.host != self.host:
                if sender is not None:
                    sender.close()
                sender = learner.weight_sender = self._connect(learner)
            version = learner._weights_seq_no
            try:
                sender.send(version)
            except Exception:
                learner.weight_sender = None  # a group of a broken call hangs
                raise
        return Transferred(version, sender.source.num_bytes / _MIB)

    def _connect(self, learner: LLMLearnerMixin) -> WeightSender:
        (module_id,) = learner.config.trained_module_ids
        source = ModuleWeights(
            learner.module[module_id].unwrapped(),
            CheckpointFormat(self.model),
            dtype=self.dtype,
            device=learner.device,
        )
        client = HostClient(self.host, self.limit)
        rank = dist.get_rank() if world_size() > 1 else 0
        engine = BACKENDS[self.backend](self, rank, client, source)
        return WeightSender(self.host, engine, client, source)


@dataclasses.dataclass(frozen=True)
class Transferred:
    """Weights that a Learner has sent.

    Attributes:
        version: Their version.
        mib: Their size, in MiB.
    """

    version: int
    mib: float


@dataclasses.dataclass
class WeightSender:
    """A Learner's connection to one engine.

    Attributes:
        host: The engine's actor.
        engine: vLLM's engine for trainers.
        client: Through which it reaches the actor.
        source: The weights that it sends.
    """

    host: ActorHandle
    engine: Any
    client: HostClient
    source: ModuleWeights

    def send(self, version: int) -> None:
        """Send all weights, which the engine then samples with as this version."""
        self.client.version = version
        self.engine.send_weights()

    def close(self) -> None:
        """Release what the connection holds."""
        self.engine.shutdown()


class HostClient:
    """The calls that vLLM's engine for trainers makes on the inference side.

    Args:
        host: The engine's actor.
        limit: Time limit of a call.

    Attributes:
        version: Version of the weights that are being sent.
    """

    def __init__(self, host: ActorHandle, limit: TimeLimit) -> None:
        """Store the arguments."""
        self._host, self._limit = host, limit
        self.version = 0

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        """Let the workers join the connection."""
        self._call("init_weight_transfer", init_info)

    def start_weight_update(self) -> None:
        """Prepare the workers for new weights."""
        self._call("start_weight_update")

    def update_weights(self, update_info: Mapping[str, Any]) -> None:
        """Let the workers receive some of them."""
        self._call("receive_weights", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Let the engine sample with them; ``weight_version`` is vLLM's, not used."""
        del weight_version
        self._call("finish_weight_update", self.version)

    def _call(self, method: str, *arguments: object) -> None:
        result_of(
            getattr(self._host, method).remote(*arguments),
            f"The engine's actor in {method}() with weights version {self.version}",
            self._limit,
        )


@dataclasses.dataclass(frozen=True)
class Described:
    """Name, data type and shape of a tensor that will be sent."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class ModuleWeights:
    """A language model's weights in the format of checkpoint files (a WeightSource).

    Iterating gathers the shards of one layer at a time; all Learners must do it.

    Args:
        module: The RLModule.
        convert: The model's conversion.
        dtype: Data type in which weights are sent; None: unchanged.
        device: The Learner's.
    """

    def __init__(
        self,
        module: LLMRLModule,
        convert: CheckpointFormat,
        *,
        dtype: str | None,
        device: torch.device | str,
    ) -> None:
        """Describe the weights; none are gathered."""
        self._module, self._convert = module, convert
        self._dtype = None if dtype is None else getattr(torch, dtype)
        self._device = torch.device(device)
        self._described = [
            Described(name, tensor.dtype, tuple(tensor.shape))
            for name, tensor in convert(self._tensors(), self._without_values)
        ]

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights as they are sent."""
        return sum(
            d.dtype.itemsize * torch.Size(d.shape).numel() for d in self._described
        )

    def metadata(self) -> list[Described]:
        """Return what iterating yields, in the same order."""
        return self._described

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield names and whole tensors on the Learner's device."""
        return self._convert(self._tensors(), self._whole)

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        tensors = self._module.shared_tensors(inference_only=True)
        return ((name.removeprefix("lm."), t.detach()) for name, t in tensors.items())

    def _target(self, tensor: torch.Tensor) -> torch.dtype:
        is_converted = self._dtype is not None and tensor.is_floating_point()
        return self._dtype if is_converted else tensor.dtype

    def _without_values(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=self._target(tensor), device="meta")

    def _whole(self, tensor: torch.Tensor) -> torch.Tensor:
        # Converted first: fewer bytes are gathered.
        converted = tensor.to(self._target(tensor))
        whole = converted.full_tensor() if is_shard(converted) else converted
        return whole.to(self._device)


def _nccl(call: SendWeights, rank: int, client: Any, source: Any) -> Any:
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    info = NCCLTrainerInitInfo(
        master_address=ray.util.get_node_ip_address(),  # of rank 0, others ignore it
        master_port=_free_port(),
        world_size=1 + call.num_workers,
        packed_buffer_size_bytes=call.bucket_bytes,
        rank=rank,
    )
    return WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)


def _ipc(call: SendWeights, rank: int, client: Any, source: Any) -> Any:
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

    info = IPCTrainerInitInfo(
        packed=True, packed_buffer_size_bytes=call.bucket_bytes, rank=rank
    )
    return WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)


BACKENDS: dict[str, Callable[[SendWeights, int, Any, Any], Any]] = {
    "nccl": _nccl,
    "ipc": _ipc,
}
"""Functions that connect to the engine and return vLLM's engine for trainers."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def _on_device(device: torch.device | str) -> Iterator[None]:
    """Make the Learner's device the current one, which vLLM sends from."""
    device = torch.device(device)
    if device.type == "cpu":
        yield
        return
    with torch.accelerator.device_index(device.index or 0):
        yield
