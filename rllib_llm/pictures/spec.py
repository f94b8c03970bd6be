"""Picture inputs of a vision-language model's family: size, tokens, normalisation."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from pathlib import Path
from typing import Any

from rllib_llm.errors import ModelError
from rllib_llm.pictures.families import FAMILIES, Colour, picture_size, square

_POSITIONS_3D = (
    *("qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen2_5_omni_thinker"),
    *("qwen3_omni_moe_thinker", "glm4v", "glm4v_moe"),
)
_BOTH_WAYS = ("gemma3", "gemma3n", "paligemma")
_ADVICE = (
    f"Use a model of the families {', '.join(FAMILIES)}, e.g. "
    "'HuggingFaceTB/SmolVLM-256M-Instruct', or language_model.model='tiny-vlm'."
)
_PREPROCESSOR = "preprocessor_config.json"
_PROCESSOR_FILES = (_PREPROCESSOR, "processor_config.json", "chat_template.jinja")


@dataclasses.dataclass(frozen=True)
class ImageSpec:
    """Picture inputs of a model.

    A picture is scaled to a square of ``size`` pixels; it is never split into tiles.

    Attributes:
        family: Model type of transformers.
        token: The placeholder token.
        token_id: Its id.
        count: Placeholders of a picture, one per feature vector.
        before: Text before the placeholders, in the model's own control tokens.
        after: Text after them.
        size: Height and width of the vision tower's input, in pixels.
        patch: Height and width of its patches, in pixels.
        mean: Mean of each colour, of values in [0, 1].
        std: Standard deviation of each colour.
        side: Placeholders in each direction, if their positions have three dimensions
            (:mod:`rllib_llm.pictures.positions`); None: they have one.
        frames: Equal frames of a patch, of towers that read videos, too, and that get
            :func:`rllib_llm.pictures.families.flat_patches`; None: a tower gets the
            normalised pixels as they are.
    """

    family: str
    token: str
    token_id: int
    count: int
    before: str
    after: str
    size: int
    patch: int
    mean: Colour
    std: Colour
    side: int | None = None
    frames: int | None = None

    @property
    def patches(self) -> int:
        """Number of patches of a picture: positions of the vision tower."""
        return (self.size // self.patch) ** 2

    @property
    def tokens(self) -> set[str]:
        """The tokens that stand for a picture, which no observation may spell."""
        around = re.findall(r"<[^<>]+>", self.before + self.after)
        return {self.token, *around}

    def expand(self) -> str:
        """Return the text that stands for a picture in a prompt."""
        return f"{self.before}{self.token * self.count}{self.after}"


def refused_family(family: str) -> str | None:
    """Return why pictures of a family are not supported; None if they are."""
    if family in FAMILIES:
        return None
    if family in _POSITIONS_3D:
        rule = (
            "it has positions of three dimensions (mrope); of these, only those of "
            f"{', '.join(n for n, f in FAMILIES.items() if f.positions_3d)} are "
            "implemented"
        )
    elif family in _BOTH_WAYS:
        rule = (
            "its picture tokens attend in both directions; attention here is causal "
            "(and the projector of a random Gemma3 is 0)"
        )
    else:
        rule = "its picture inputs are not implemented"
    return f"Pictures for models of type {family!r} are refused: {rule}. {_ADVICE}"


def reads_pictures(config: Any) -> bool:
    """Return whether a model's config is of a supported vision-language family."""
    return config.model_type in FAMILIES


@functools.lru_cache(maxsize=8)
def image_spec(model: str) -> ImageSpec | None:
    """Return the picture inputs of a checkpoint folder or hub id.

    Returns:
        None for a model that reads text alone.

    Raises:
        ModelError: If the config or the tokenizer lacks what pictures need.
    """
    from transformers import AutoTokenizer

    from rllib_llm.modules.architectures import read_config

    config = read_config(model)
    if not reads_pictures(config):
        return None
    path = Path(model).expanduser()
    tokenizer = AutoTokenizer.from_pretrained(str(path) if path.is_dir() else model)
    token = tokenizer.convert_ids_to_tokens(config.image_token_id)
    if token is None:
        raise ModelError(
            f"{model!r} has image_token_id={config.image_token_id}, which its "
            "tokenizer lacks. Use the tokenizer of the checkpoint."
        )
    family, processor = FAMILIES[config.model_type], _processor(model)
    mean, std = _colours(model, config.model_type, processor)
    size = picture_size(config, processor)
    run = family.run(config, tokenizer.get_vocab(), size)
    frames = getattr(config.vision_config, "temporal_patch_size", None)
    return ImageSpec(
        family=config.model_type,
        token=token,
        token_id=config.image_token_id,
        count=run.count,
        before=run.before,
        after=run.after,
        size=size,
        patch=square(config.vision_config.patch_size, "patch_size"),
        mean=mean,
        std=std,
        side=math.isqrt(run.count) if family.positions_3d else None,
        frames=None if frames is None else square(frames, "temporal_patch_size"),
    )


def _processor(model: str) -> dict[str, Any]:
    """Return the settings of a model's image processor; empty if it has none."""
    from transformers import ImageProcessingMixin

    try:
        path = str(Path(model).expanduser())
        given: dict[str, Any]
        given, _ = ImageProcessingMixin.get_image_processor_dict(path)
    except OSError:
        return {}
    return given


def _colours(model: str, family: str, given: dict[str, Any]) -> tuple[Colour, Colour]:
    """Return the processor's mean and standard deviation of colours."""
    if given.get("do_normalize") is False:
        return (0.0,) * 3, (1.0,) * 3
    mean, std = given.get("image_mean"), given.get("image_std")
    if mean and std:
        return tuple(mean), tuple(std)
    default = FAMILIES[family].colours
    if default is None:
        raise ModelError(
            f"{model!r} has no {_PREPROCESSOR} with image_mean and image_std, which "
            f"models of type {family!r} need: their towers differ. Copy the file from "
            "the checkpoint."
        )
    return default


def copy_processor(model: str, folder: Path) -> None:
    """Copy the files of a model's processor into another model folder.

    Args:
        model: Folder of the model; a hub id has none, and nothing is copied.
        folder: The target.
    """
    for name in _PROCESSOR_FILES:
        file = Path(model).expanduser() / name
        if file.is_file() and file.parent != folder and not (folder / name).exists():
            (folder / name).write_bytes(file.read_bytes())
