"""A transfer of weights over a gloo group of its own, with vLLM's calls.

It stands for vLLM's NCCL transport: the sender opens the group while the receiver
joins it in ``init_weight_transfer``, and broadcasts while ``receive_weights`` runs.
"""

from __future__ import annotations

import dataclasses
import importlib
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist

from rllib_llm.algorithms.learner.weight_transfer import SendWeights, _free_port
from rllib_llm.engines import TorchEngine

LIMIT = timedelta(seconds=60)


def join(port, rank):
    """Return a group of two, apart from the default group of the process."""
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0, timeout=LIMIT)
    return dist.ProcessGroupGloo(store, rank, 2, LIMIT)


def broadcast(group, tensor):
    options = dist.BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    group.broadcast([tensor], options).wait()


def buckets(described, size):
    """Return the descriptions, bucket by bucket."""
    done, current, held = [], [], 0
    for item in described:
        num_bytes = item.dtype.itemsize * torch.Size(item.shape).numel()
        if current and held + num_bytes > size:
            done, current, held = [*done, current], [], 0
        current.append(item)
        held += num_bytes
    return [*done, current] if current else done


class Receiver:
    """Receives buckets; the tensors are given to ``load``."""

    def __init__(self, load):
        self.load, self.group, self.seen = load, None, []

    def init_weight_transfer(self, init_info):
        self.group = join(init_info["port"], 1)

    def receive_weights(self, update_info):
        for names, shapes, dtype in update_info["buckets"]:
            flat = torch.empty(
                sum(torch.Size(s).numel() for s in shapes), dtype=getattr(torch, dtype)
            )
            broadcast(self.group, flat)
            parts = flat.split([torch.Size(s).numel() for s in shapes])
            self.seen.append(names)
            self.load(
                (n, p.view(s)) for n, p, s in zip(names, parts, shapes, strict=True)
            )


class Sender:
    """Sends a source's weights; all Learners iterate it, the first one sends."""

    def __init__(self, call, rank, client, source):
        self.client, self.source, self.is_sender = client, source, rank == 0
        self.size, self.group = call.bucket_bytes, None
        if self.is_sender:
            port = _free_port()
            with ThreadPoolExecutor(1) as threads:
                joined = threads.submit(
                    client.init_weight_transfer_engine, {"port": port}
                )
                self.group = join(port, 0)
                joined.result()

    def send_weights(self):
        if not self.is_sender:
            for _ in self.source:
                pass
            return
        plan = buckets(self.source.metadata(), self.size)
        listed = [
            ([i.name for i in b], [tuple(i.shape) for i in b], str(b[0].dtype)[6:])
            for b in plan
        ]
        self.client.start_weight_update()
        with ThreadPoolExecutor(1) as threads:
            received = threads.submit(self.client.update_weights, {"buckets": listed})
            pairs = iter(self.source)
            for bucket in plan:
                tensors = []
                for item in bucket:
                    name, tensor = next(pairs)
                    described = (item.name, item.dtype, item.shape)
                    assert (name, tensor.dtype, tuple(tensor.shape)) == described
                    tensors.append(tensor.reshape(-1))
                broadcast(self.group, torch.cat(tensors))
            assert next(pairs, None) is None
            received.result()
        self.client.finish_weight_update()

    def shutdown(self):
        self.group = None


class GlooSend(SendWeights):
    """Sends over gloo, whatever the backend is called."""

    def __call__(self, learner):
        # Of this process: a pickled module has copies of its globals.
        backends = importlib.import_module(SendWeights.__module__).BACKENDS
        backends[self.backend] = Sender
        return super().__call__(learner)


@dataclasses.dataclass
class Log:
    """Calls that an engine received."""

    calls: list = dataclasses.field(default_factory=list)


class ReceivingEngine(TorchEngine):
    """A torch engine with the calls of a TransferEngine."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.log, self.receiver = Log(), Receiver(self._runner.copy_weights)
        self.is_complete = False

    def start(self):
        self.log.calls.append("start")

    def submit(self, *args, **kwargs):
        assert self.is_complete, "sampled before the weights had arrived"
        return super().submit(*args, **kwargs)

    def init_weight_transfer(self, init_info):
        self.log.calls.append("init")
        self.receiver.init_weight_transfer(init_info)

    def start_weight_update(self):
        self.log.calls.append("begin")

    def receive_weights(self, update_info):
        self.log.calls.append("receive")
        self.is_complete = False
        self.receiver.receive_weights(update_info)

    def finish_weight_update(self, version):
        self.log.calls.append(f"finish {version}")
        self.is_complete = True
        self.set_weights_version(version)

    def stats(self):
        return super().stats() | {"transfers": len(self.receiver.seen)}
