"""Export of a policy as a folder that Hugging Face's Auto classes load."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from rllib_llm.errors import ConfigError
from rllib_llm.modules import loading
from rllib_llm.modules.lora import is_adapter
from rllib_llm.pictures.features import vision_parameters
from rllib_llm.pictures.spec import copy_processor

if TYPE_CHECKING:
    from rllib_llm.modules.llm_rl_module import LLMRLModule


def save_policy(module: LLMRLModule, folder: Path, *, merged: bool) -> None:
    """Write weights, config and tokenizer of ``module``'s policy into ``folder``.

    Raises:
        ConfigError: If ``merged`` is False and the policy has no adapter.
    """
    lora = module.model_config["lora"]
    folder.mkdir(parents=True, exist_ok=True)
    if not merged:
        if not lora:
            raise ConfigError(
                "merged=False exports a LoRA adapter, but this policy was trained "
                "without LoRA. Export it merged."
            )
        if _is_vision_trained_itself(module.lm):
            raise ConfigError(
                "merged=False exports a LoRA adapter alone, but this policy's vision "
                "tower or projector was trained as well. Export it merged, or train "
                "with language_model.freeze=['vision', 'projector']."
            )
        _save_adapter(module, folder)
    else:
        model = merge_lora(module.lm) if lora else module.lm
        with loading.quiet_progress():
            model.save_pretrained(folder)
    loading.load_tokenizer(module.model_config["model"]).save_pretrained(folder)
    copy_processor(module.model_config["model"], folder)
    _share_weights(folder)


def _is_vision_trained_itself(lm: nn.Module) -> bool:
    """Return whether weights of tower or projector are trained beside adapters."""
    vision = {id(p) for p in vision_parameters(lm) if p.requires_grad}
    return any(
        id(p) in vision and not is_adapter(name) for name, p in lm.named_parameters()
    )


def _share_weights(folder: Path) -> None:
    """Give files of weights the permissions of the other files in the folder.

    safetensors writes into a temporary file, which only its owner can read.
    """
    mode = (folder / "tokenizer_config.json").stat().st_mode
    for path in folder.glob("*.safetensors"):
        path.chmod(mode)


def merge_lora(model: nn.Module) -> nn.Module:
    """Return a copy of ``model`` with its adapters merged into plain layers."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    # On a copy: merging changes the weights, which the Learner still trains.
    merged = copy.deepcopy(model)
    for name, layer in list(merged.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            layer.merge()
            parent = merged.get_submodule(name.rpartition(".")[0])
            # Plain layers have the names that the Auto classes expect.
            setattr(parent, name.rpartition(".")[2], layer.get_base_layer())
    # With this flag transformers would save adapters, which no longer exist.
    if getattr(merged, "_hf_peft_config_loaded", False):
        merged._hf_peft_config_loaded = False
    return merged


def _save_adapter(module: LLMRLModule, folder: Path) -> None:
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    settings = copy.deepcopy(module.lora_config)
    settings.base_model_name_or_path = module.model_config["model"]
    settings.inference_mode = True
    settings.save_pretrained(folder)
    adapter = get_peft_model_state_dict(module.lm, adapter_name="default")
    # The prefix of PeftModel, which PEFT expects in adapter files.
    tensors = {f"base_model.model.{n}": t.contiguous() for n, t in adapter.items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
