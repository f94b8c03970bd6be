"""Weights, state and checkpoint files of a language-model RLModule."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow.fs
import torch
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.utils.annotations import override
from torch import nn

from rllib_llm import weights as state
from rllib_llm.modules import loading
from rllib_llm.modules.lora import is_adapter
from rllib_llm.modules.sharding import plain_class, reshard
from rllib_llm.pictures.spec import copy_processor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HF_FOLDER = "hf"
CRITIC = "value_head."
_REFERENCE = "reference."
_MASK_POLICY = "mask_policy."
_BASE = "base_fingerprint"


class CheckpointedModule(TorchRLModule):
    """RLModule whose state is safetensors, and whose checkpoints hold the tokenizer.

    Attributes:
        lm: The language model.
    """

    lm: PreTrainedModel
    model_config: dict[str, Any]
    # The frozen copy, or empty: in a tuple, which nn.Module does not register, since
    # it must neither be trained nor synced.
    _reference: tuple[nn.Module, ...]
    # An earlier copy of the policy, or empty: synced, but not trained.
    _mask_policy: tuple[nn.Module, ...]
    _base: np.ndarray  # fingerprint of the base model under LoRA, else empty

    def shared_tensors(
        self, *, inference_only: bool = False
    ) -> dict[str, torch.Tensor]:
        """Return the tensors to sync and save, each once (including tied weights).

        Under LoRA these are the adapters (and the critic, and a trained vision tower):
        the base is frozen. Tensors of a sharded module are shards.
        """
        # Gathered parameters would be read, and written to, in place of the shards.
        reshard(self)
        # named_parameters() yields a tied weight once; state_dict() would contain it
        # twice.
        tensors: dict[str, torch.Tensor] = dict(self.named_parameters())
        if self.model_config["lora"]:
            tensors = {
                n: t
                for n, t in tensors.items()
                if is_adapter(n) or n.startswith(CRITIC) or t.requires_grad
            }
        else:
            # Buffers that the model rebuilds (e.g. rotary frequencies) are not part of
            # the state.
            persistent = self.state_dict(keep_vars=True)
            tensors |= {n: b for n, b in self.named_buffers() if n in persistent}
        for lm in self._mask_policy:
            tensors |= {_MASK_POLICY + n: p for n, p in lm.named_parameters()}
        # EnvRunners have no critic.
        if inference_only:
            return {n: t for n, t in tensors.items() if not n.startswith(CRITIC)}
        if self._reference and not self.model_config.get("ref_model"):
            tensors |= {
                _REFERENCE + n: p for n, p in self._reference[0].named_parameters()
            }
        return tensors

    @override(TorchRLModule)
    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        inference_only: bool = False,
        **kwargs: Any,
    ) -> dict[str, np.ndarray]:
        packed = state.pack(self.shared_tensors(inference_only=inference_only))
        if self.model_config["lora"]:
            packed[_BASE] = self._base
        return packed

    @override(TorchRLModule)
    def set_state(self, state_dict: Mapping[str, np.ndarray]) -> None:
        """Load the state of a whole policy; only its language model must be there.

        Raises:
            CheckpointError: If it is incomplete or belongs to another model.
        """
        # A copy: pop() must not change the caller's dictionary.
        source = dict(state_dict)
        base = source.pop(_BASE, None)
        if not hasattr(self, "value_head"):
            source = {n: t for n, t in source.items() if not n.startswith(CRITIC)}
        if not self._reference:
            source = {n: t for n, t in source.items() if not n.startswith(_REFERENCE)}
        if not self._mask_policy:
            source = {n: t for n, t in source.items() if not n.startswith(_MASK_POLICY)}
        what = f"policy {type(self).__name__}"
        if base is not None and self.model_config["lora"]:
            state.check_fingerprint(self._base, base, what)
        state.copy_into(
            self.shared_tensors(),
            state.unpack(source),
            what,
            optional=(CRITIC, _REFERENCE, _MASK_POLICY),
        )

    def refresh_reference(self) -> None:
        """Copy the policy's weights to the frozen reference; no effect under LoRA."""
        if self.model_config.get("ref_model"):
            return  # another model, which no weights of the policy replace
        reshard(self)
        for lm in self._reference:
            lm.load_state_dict(self.lm.state_dict())

    @property
    def mask_policy(self) -> nn.Module | None:
        """The model whose nucleus restricts the tokens; None without one."""
        return self._mask_policy[0] if self._mask_policy else None

    def refresh_mask_policy(self) -> None:
        """Copy the policy's weights to the mask policy, if there is one."""
        for lm in self._mask_policy:
            lm.load_state_dict(self.lm.state_dict())

    def share_parameters_with(self, other: CheckpointedModule) -> None:
        """Use the tensors of ``other`` from now on, so that no sync is needed."""
        for ours, theirs in zip(
            (self.lm, *self._mask_policy), (other.lm, *other._mask_policy), strict=True
        ):
            sources = dict(theirs.named_parameters()) | dict(theirs.named_buffers())
            targets = dict(ours.named_parameters()) | dict(ours.named_buffers())
            for name, tensor in targets.items():
                # `.data`, so that the module's Parameter objects, which optimisers and
                # engines hold, stay the same.
                tensor.data = sources[name].data

    @override(RLModule)
    def save_to_path(
        self,
        path: str | Path | None = None,
        *,
        filesystem: pyarrow.fs.FileSystem | None = None,
        **kwargs: Any,
    ) -> str:
        """Write RLlib's module checkpoint with the model's config and tokenizer.

        Weights are written as ``module_state.safetensors`` in place of RLlib's pickle;
        ``rllib-llm export`` writes a complete Hugging Face folder.
        """
        weights = kwargs.pop("state", None) or self.get_state()
        with plain_class(self):
            written = super().save_to_path(
                path, filesystem=filesystem, state={"weights": state.FILE}, **kwargs
            )
        target = filesystem or pyarrow.fs.LocalFileSystem()
        # RLlib always writes the state as a pickle; loading one can execute code.
        target.delete_file(f"{written}/{self.STATE_FILE_NAME}.pkl")
        with state.written_to(written, target) as folder:
            state.save(weights, folder / state.FILE)
            self.save_model_files(folder / HF_FOLDER)
        return written

    def save_model_files(self, folder: Path) -> None:
        """Write the model's config and tokenizer, without which weights are useless."""
        self.lm.config.save_pretrained(folder)
        tokenizer = loading.load_tokenizer(self.model_config["model"])
        tokenizer.save_pretrained(folder)
        copy_processor(self.model_config["model"], folder)

    @override(RLModule)
    def restore_from_path(
        self,
        path: str | Path,
        *,
        component: str | None = None,
        filesystem: pyarrow.fs.FileSystem | None = None,
        **kwargs: Any,
    ) -> None:
        """Load the weights that :meth:`save_to_path` wrote."""
        if filesystem is None:
            filesystem, path = pyarrow.fs.FileSystem.from_uri(str(path))
        if component is None:
            with state.read_from(f"{path}/{state.FILE}", filesystem) as file:
                self.set_state(state.load(file))

    @classmethod
    @override(RLModule)
    def from_checkpoint(cls, path: str | Path, *args: Any, **kwargs: Any) -> Self:
        """Build a module from a checkpoint of :meth:`save_to_path`.

        The original model folder may be missing, except under LoRA, which needs the
        base model.
        """
        with loading.model_folders_offered({"": Path(path) / HF_FOLDER}):
            return super().from_checkpoint(path, *args, **kwargs)
