"""vLLM engine whose weights the Learners send with vLLM's own weight transfer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from rllib_llm.engines.vllm_engine import VLLMEngine
from rllib_llm.engines.vllm_process import Live
from rllib_llm.errors import ModelError


class TransferEngine(VLLMEngine):
    """Samples with vLLM, with weights that arrive over NCCL or CUDA IPC.

    vLLM starts with random weights. A transfer is :meth:`start_weight_update`, any
    number of :meth:`receive_weights` and :meth:`finish_weight_update`, after one
    :meth:`init_weight_transfer`. These are vLLM's calls, on all of its workers.

    If the first two fail, the engine goes on with the version that it has. If one of
    the others fails, it holds parts of two versions and samples nothing until another
    transfer has finished.

    Args:
        model: See :class:`VLLMEngine`.
        backend: vLLM's name of the transport, e.g. ``"nccl"``.
        settings: Arguments of :class:`VLLMEngine` by name.
    """

    def __init__(self, model: str, *, backend: str, **settings: Any) -> None:
        """Check the settings; :meth:`start` starts vLLM."""
        super().__init__(model, transfer_backend=backend, **settings)

    def start(self) -> None:
        """Start vLLM, with random weights."""
        self._hold()

    def init_weight_transfer(self, init_info: Mapping[str, Any]) -> None:
        """Let vLLM's workers join the connection to the Learners.

        Args:
            init_info: Fields of vLLM's ``WeightTransferInitInfo`` by name.
        """
        self._call("init_weight_transfer_engine", init_info=dict(init_info))

    def start_weight_update(self) -> None:
        """Prepare vLLM for new weights; allocate their memory if it was released."""
        live = self._hold()
        self._wake(live, "weights")  # the cache's memory stays free until the end
        try:
            self._call("start_weight_update")
        except Exception:
            if live.is_loaded:
                # Some workers may have set their weights aside; without new ones this
                # puts them back.
                self._call("start_weight_update")
                self._call("finish_weight_update")
            raise

    def receive_weights(self, update_info: Mapping[str, Any]) -> None:
        """Receive some of the weights.

        Args:
            update_info: Names, shapes and data types, and where the values are.
        """
        live = self._hold()
        live.is_loaded = False
        self._call("update_weights", update_info=dict(update_info))

    def finish_weight_update(self, version: int) -> None:
        """Sample with the weights that have arrived.

        Args:
            version: Their version.
        """
        live = self._hold()
        live.is_loaded = False
        self._call("finish_weight_update")
        self._drop_cached(live)
        live.is_loaded = True
        self._version = version
        self._wake(live, "kv_cache")

    def update_weights(
        self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int
    ) -> None:
        """Raise an error: weights arrive by transfers only.

        Raises:
            ModelError: Always.
        """
        raise ModelError(
            f"Version {version} of the weights cannot be loaded from memory: the "
            "Learners send them (rollouts.weight_sync)."
        )

    def _call(self, method: str, **arguments: Any) -> None:
        self._hold().llm.collective_rpc(method, kwargs=arguments)

    def _push(self, live: Live) -> None:
        raise ModelError(
            "vLLM holds no complete weights: a transfer from the Learners failed, or "
            f"is missing, after version {self._version}. Let the Learners send them "
            "before you sample."
        )

    @property
    def _gets_weights_again(self) -> bool:
        return True
