"""Loading of Hugging Face causal language models and tokenizers."""

from __future__ import annotations

import contextlib
import contextvars
import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from rllib_llm import compat
from rllib_llm.cache import cache_dir
from rllib_llm.errors import (
    CheckpointError,
    MissingExtraError,
    ModelError,
    TemplateError,
    summarize,
)
from rllib_llm.modules.architectures import auto_class, read_config
from rllib_llm.modules.dropout import check_training_mode, disable_dropout
from rllib_llm.modules.gguf_models import gguf_file, is_gguf
from rllib_llm.schema import show

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


# Exceptions of transformers for folders with missing or damaged files.
_UNREADABLE = (
    OSError,
    ValueError,
    RuntimeError,
    EOFError,
    pickle.UnpicklingError,
    SafetensorError,
)

# A context variable, because RLlib builds modules during a restore without a way to
# pass them arguments.
_offered: contextvars.ContextVar[dict[str, str] | None] = contextvars.ContextVar(
    "offered_model_folders", default=None
)


@contextlib.contextmanager
def model_folders_offered(folders: Mapping[str, Path]) -> Iterator[None]:
    """Offer a checkpoint's model folders as substitutes for missing models.

    They hold the models' configs and tokenizers, but no weights: the checkpoint's
    module states hold the weights, except for the base model under LoRA.

    Args:
        folders: Folders by ModuleID; folders that do not exist are left out.
    """
    existing = {name: str(path) for name, path in folders.items() if path.is_dir()}
    token = _offered.set(existing)
    try:
        yield
    finally:
        _offered.reset(token)


_placed_on: contextvars.ContextVar[torch.device | None] = contextvars.ContextVar(
    "models_placed_on", default=None
)


@contextlib.contextmanager
def models_placed_on(device: torch.device | str) -> Iterator[None]:
    """Let modules move each model to a device as soon as it is loaded.

    Copies, such as the frozen reference, are then made there, and host memory holds one
    model at a time.
    """
    token = _placed_on.set(torch.device(device))
    try:
        yield
    finally:
        _placed_on.reset(token)


def placement() -> torch.device:
    """Return the device for loaded models."""
    return _placed_on.get() or torch.device("cpu")


def offered_model_folder(module_id: str | None = None) -> str | None:
    """Return the folder offered for a policy; without a ModuleID any folder."""
    # Any folder serves without a ModuleID: policies of one checkpoint that are looked
    # up without a name have the same model.
    offered = _offered.get() or {}
    return offered.get(module_id or "") or next(iter(offered.values()), None)


def find_model(
    model: str, *, weights_follow: bool = True, module_id: str | None = None
) -> str:
    """Return ``model`` if it exists, else its folder in the checkpoint being restored.

    Args:
        model: Checkpoint folder, hub id or GGUF model.
        weights_follow: Whether the checkpoint's state will overwrite all weights. Under
            LoRA it does not, so the base model is needed.
        module_id: The policy's ModuleID.

    Raises:
        ModelError: If the model is missing.
        CheckpointError: If it is missing and the checkpoint cannot replace it.
        MissingExtraError: If the package that holds it is not installed.
    """
    try:
        check_model_path(model)
    except (ModelError, MissingExtraError) as error:
        offered = offered_model_folder(module_id)
        if offered is None:
            raise
        if not weights_follow:
            if isinstance(error, MissingExtraError):
                raise
            raise CheckpointError(
                f"The checkpoint holds LoRA adapters only, and their base model "
                f"{model!r} does not exist. Restore the base model at that path."
            ) from error
        return offered
    return model


def check_model_path(model: str) -> None:
    """Check that ``model`` exists, if it names something on this machine.

    Raises:
        ModelError: If it looks like a folder or file that does not exist.
        MissingExtraError: If the package that holds the model is not installed.
    """
    if is_gguf(model):
        gguf_file(model)
        return
    # Hub ids have at most one slash; a missing local folder must not become a download.
    looks_local = model.startswith((".", "/", "~")) or model.count("/") > 1
    try:
        path = Path(model).expanduser()
        is_folder = path.is_dir()
    except (OSError, RuntimeError) as error:  # too long, or no such user
        raise ModelError(
            f"language_model.model={show(model)} is not a valid path "
            f"({summarize(error, 60)}). Use an existing folder or a hub id."
        ) from error
    if is_folder:
        if not (path / "config.json").is_file():
            raise ModelError(
                f"language_model.model={model!r} is a folder without a config.json. "
                "Use a Hugging Face checkpoint folder (save_pretrained) or a hub id."
            )
    elif looks_local:
        raise ModelError(
            f"language_model.model={model!r} does not exist. Use an existing "
            "checkpoint folder, a hub id such as 'Qwen/Qwen2.5-0.5B-Instruct', or "
            "'tiny' for the built-in tiny model."
        )


@contextlib.contextmanager
def quiet_progress() -> Iterator[None]:
    """Hide transformers' progress bars over the shards of a local folder."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def load_tokenizer(model: str) -> Any:
    """Load the tokenizer of ``model`` and check that it supports conversations.

    Raises:
        ModelError: If the tokenizer cannot be loaded.
        TemplateError: If it has no chat template or no end-of-sequence token.
    """
    from transformers import AutoTokenizer

    check_model_path(model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(os.path.expanduser(model))
    except Exception as error:  # tokenizers raises plain Exception for damaged files
        raise ModelError(
            f"The tokenizer of {model!r} could not be loaded: {error}{_remedy(model)}"
        ) from error
    if not tokenizer.chat_template:
        raise TemplateError(
            f"The tokenizer of {model!r} has no chat template, so conversations cannot "
            "be rendered. Use an instruct/chat checkpoint, or set "
            "tokenizer.chat_template and save it into the folder."
        )
    if tokenizer.eos_token_id is None:
        raise TemplateError(
            f"The tokenizer of {model!r} has no eos_token, so turns would not end. "
            "Set tokenizer.eos_token and save it into the folder."
        )
    return tokenizer


def load_causal_lm(
    model: str, dtype: str = "float32", *, needs_weights: bool = False, **kwargs: Any
) -> nn.Module:
    """Load a causal or vision-language model and turn its dropout off.

    In this process, torch then computes attention without cuDNN's kernels, whose
    backward pass gives NaN for rows of some lengths with a mask (pytorch issue 196678).

    The model folder of a checkpoint gives a randomly initialised model, because its
    weights are in the checkpoint's state. Every other folder must hold all weights.

    Args:
        model: Folder or hub id.
        dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        needs_weights: Refuse the model folder of a checkpoint as well.
        kwargs: Arguments for transformers, e.g. ``attn_implementation``.

    Raises:
        ModelError: If the model or dtype does not exist, if weights are missing, or if
            the model is random in training mode.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype={dtype!r} must be one of {', '.join(DTYPES)}.")
    check_model_path(model)
    # They are torch's first choice in bfloat16 on GPUs of the generation of an H100.
    torch.backends.cuda.enable_cudnn_sdp(False)
    path = os.path.expanduser(model)
    is_local = os.path.isdir(path)
    # Model folders of checkpoints hold config and tokenizer; set_state() loads the
    # weights later, except for the base model under LoRA.
    is_bare = is_local and not has_weights(Path(path))
    if is_bare and (needs_weights or not _is_of_checkpoint(Path(path))):
        raise _without_weights(model)
    kwargs["dtype"] = DTYPES[dtype]
    missing: list[str] = []
    try:
        # Downloads keep their progress bars: they may take long.
        with quiet_progress() if is_local else contextlib.nullcontext():
            config = read_config(path)
            if is_bare:
                loaded = auto_class(config).from_config(config, **kwargs)
            else:
                loaded, info = auto_class(config).from_pretrained(
                    path, output_loading_info=True, **kwargs
                )
                missing = sorted(info["missing_keys"])
    except _UNREADABLE as error:
        raise ModelError(
            f"The model {model!r} could not be loaded: {error}{_remedy(model)}"
        ) from error
    if missing:  # transformers only warns and initialises them randomly
        raise ModelError(
            f"The weights of {model!r} lack {', '.join(missing[:3])} "
            f"({len(missing)} in all), which would start with random values."
            f"{_remedy(model) or ' Use a complete checkpoint.'}"
        )
    # Dropout would make the Learner's log-probabilities differ from the sampler's.
    disable_dropout(loaded)
    with compat.attention_on_cpu(loaded):
        check_training_mode(loaded)
    return loaded.eval()


def require_weights(model: str) -> None:
    """Check that a model folder holds weights; without them the model is random.

    Raises:
        ModelError: If the folder has a config but no weights.
    """
    path = Path(model).expanduser()
    if path.is_dir() and not has_weights(path):
        raise _without_weights(model)


def _without_weights(model: str) -> ModelError:
    hint = _remedy(model) or (
        " It belongs to a checkpoint: use the folder that 'rllib-llm export' writes."
        if _is_of_checkpoint(Path(model).expanduser())
        else " Use a folder with weights; AutoModelForCausalLM.from_config(...)"
        ".save_pretrained(...) writes random ones."
    )
    return ModelError(
        f"language_model.model={model!r} holds a config but no weights; a model needs "
        f"both.{hint}"
    )


def _remedy(model: str) -> str:
    """Return the remedy for a damaged folder of the cache; "" for other folders."""
    path = Path(model).expanduser()
    if not path.is_dir() or not path.is_relative_to(cache_dir()):
        return ""
    return f" The folder is a cache: delete {path} to rebuild it."


def _is_of_checkpoint(folder: Path) -> bool:
    """Return whether a model folder is part of a checkpoint that holds its weights."""
    return any(folder.parent.glob("module_state.*"))


def has_weights(folder: Path) -> bool:
    """Return whether a model folder holds weights."""
    patterns = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")
    return any(any(folder.glob(p)) for p in patterns)
