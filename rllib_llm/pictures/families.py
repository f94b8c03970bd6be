"""Families of vision-language models: their parts, placeholders and features.

Each has one fixed number of feature vectors per picture: with the features in the place
of its placeholders, the text part alone computes what the whole model does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from rllib_llm.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

Colour = tuple[float, ...]  # one number for each of red, green and blue
FrozenPart = Literal["vision", "projector"]
"""Names that ``freeze`` has for the parts of a vision-language model."""
AdaptedPart = Literal["text", "vision", "projector"]
"""Parts of a vision-language model that may get LoRA adapters."""

_HALF = (0.5, 0.5, 0.5)  # of SigLIP, the tower of Idefics3 and SmolVLM
_CLASS_TOKENS = {"clip_vision_model": 1, "siglip_vision_model": 0}
"""Vectors before the patches of the towers that LLaVA may have."""
_QWEN_SIZE = 448
"""Largest height of pictures, in pixels: their families read pictures of any size, and
16 megapixels, which processors allow, would be 16,384 tokens."""


@dataclasses.dataclass(frozen=True)
class Run:
    """Placeholders of a picture, and the control tokens around them.

    Attributes:
        count: Number of placeholders, one per feature vector.
        before: Text before them.
        after: Text after them.
    """

    count: int
    before: str = ""
    after: str = ""


@dataclasses.dataclass(frozen=True)
class Family:
    """Facts of a family.

    Attributes:
        tower: Submodule that reads pixels, of the model without its output layer; may
            contain the projector, which is no part of it.
        projector: Submodules and parameters that make features of its output.
        text: Submodule that computes hidden states of embeddings.
        run: Returns the placeholders of a config, given the tokenizer's vocabulary and
            the height of pictures in pixels.
        features: Returns the features [P, count, hidden] of normalised pictures
            [P, 3, size, size], given the model without its output layer. Features of
            deeper layers follow in the last axis [P, count, (1 + layers) * hidden]: the
            text part adds them to the outputs of its first layers.
        colours: Mean and standard deviation of each colour of models without a
            processor; None: a processor is required.
        size: Returns the height of pictures in pixels, given the config and the
            processor's settings; None: the config's ``image_size``.
        positions_3d: Whether a placeholder's position has a time, a row and a column
            (:mod:`rllib_llm.pictures.positions`).
    """

    tower: str
    projector: tuple[str, ...]
    text: str
    run: Callable[[Any, Mapping[str, int], int], Run]
    features: Callable[[Any, Tensor], Tensor]
    colours: tuple[Colour, Colour] | None
    size: Callable[[Any, Mapping[str, Any]], int] | None = None
    positions_3d: bool = False


def square(value: int | list[int] | tuple[int, ...], name: str) -> int:
    """Return the side of a square that a config writes as one number or two.

    Raises:
        ModelError: If the two differ.
    """
    sides = {value} if isinstance(value, int) else set(value)
    if len(sides) != 1:
        raise ModelError(
            f"The vision tower has {name}={value}; pictures must be squares here. Use "
            "a checkpoint with equal sides."
        )
    return int(sides.pop())


def picture_size(config: Any, processor: Mapping[str, Any]) -> int:
    """Return height and width in pixels to which a family scales pictures.

    Args:
        config: The model's config.
        processor: Settings of its image processor.

    Raises:
        ModelError: If the config or the processor leaves no square.
    """
    size = FAMILIES[config.model_type].size
    if size is not None:
        return size(config, processor)
    return square(config.vision_config.image_size, "image_size")


def grid(config: Any, size: int) -> int:
    """Return the number of patches in each direction of a picture.

    Raises:
        ModelError: If they are no whole number.
    """
    patch = square(config.vision_config.patch_size, "patch_size")
    if size % patch:
        raise ModelError(
            f"The vision tower has pictures of {size} pixels and patches of {patch}; "
            "the size must be a multiple of the patch. Correct its config.json."
        )
    return size // patch


def _merged_side(config: Any, size: int, factor: int, name: str) -> int:
    patches = grid(config, size)
    side, rest = divmod(patches, factor)
    if rest:
        raise ModelError(
            f"The vision tower has {patches} patches in each direction, and the "
            f"projector {name}; a picture must have a multiple of {factor} patches in "
            "each direction. Correct its config.json."
        )
    return side


# Idefics3 and SmolVLM ------------------------------------------------------------


def _idefics3_run(config: Any, vocabulary: Mapping[str, int], size: int) -> Run:
    factor = config.scale_factor
    side = _merged_side(config, size, factor, f"scale_factor={factor}")
    marks = ("<fake_token_around_image>", "<global-img>")
    around = [t for t in marks if t in vocabulary]
    return Run(side * side, "".join(around), around[0] if around else "")


def _idefics3_features(inner: Any, values: Tensor) -> Tensor:
    import torch

    side = grid(inner.config, values.shape[-1])
    patches = torch.ones(
        (len(values), side, side), dtype=torch.bool, device=values.device
    )
    # Not get_image_features(): it would drop a picture whose values are all 0.
    out = inner.vision_model(pixel_values=values, patch_attention_mask=patches)
    features: Tensor = inner.connector(out.last_hidden_state)
    return features


# LLaVA and LLaVA-OneVision -------------------------------------------------------


def _llava_run(config: Any, vocabulary: Mapping[str, int], size: int) -> Run:
    kind = config.vision_config.model_type
    if kind not in _CLASS_TOKENS:
        raise ModelError(
            f"A {config.model_type} with a vision tower of type {kind!r} is not "
            f"supported; it must be one of {', '.join(_CLASS_TOKENS)}. Use another "
            "checkpoint."
        )
    cut = 1 if config.vision_feature_select_strategy == "default" else 0
    return Run(grid(config, size) ** 2 + _CLASS_TOKENS[kind] - cut)


def _onevision_run(config: Any, vocabulary: Mapping[str, int], size: int) -> Run:
    return Run(_llava_run(config, vocabulary, size).count + 1)


def _llava_features(inner: Any, values: Tensor) -> Tensor:
    import torch

    config = inner.config
    out = inner.vision_tower(values, output_hidden_states=True)
    layers = config.vision_feature_layer
    layers = [layers] if isinstance(layers, int) else layers
    states = torch.cat([out.hidden_states[layer] for layer in layers], dim=-1)
    if config.vision_feature_select_strategy == "default":
        states = states[:, 1:]
    features: Tensor = inner.multi_modal_projector(states)
    return features


def _onevision_features(inner: Any, values: Tensor) -> Tensor:
    import torch

    # As for several pictures in one conversation: the whole picture without tiles.
    features = _llava_features(inner, values)
    newline = inner.image_newline.to(features).expand(len(features), 1, -1)
    return torch.cat((features, newline), dim=1)


# InternVL ------------------------------------------------------------------------


def _internvl_run(config: Any, vocabulary: Mapping[str, int], size: int) -> Run:
    layer, choice = config.vision_feature_layer, config.vision_feature_select_strategy
    if not isinstance(layer, int) or choice != "default":
        raise ModelError(
            f"An InternVL with vision_feature_layer={layer} and "
            f"vision_feature_select_strategy={choice!r} is not supported; they must be "
            "a number and 'default'. Use another checkpoint."
        )
    ratio = config.downsample_ratio
    side = _merged_side(config, size, round(1 / ratio), f"downsample_ratio={ratio}")
    around = ("<img>", "</img>")
    missing = [t for t in around if t not in vocabulary]
    if missing:
        raise ModelError(
            f"The tokenizer of an InternVL lacks {' and '.join(missing)}, which stand "
            "around a picture. Use the tokenizer of the checkpoint."
        )
    return Run(side * side, *around)


def _internvl_features(inner: Any, values: Tensor) -> Tensor:
    out = inner.get_image_features(
        pixel_values=values,
        vision_feature_layer=inner.config.vision_feature_layer,
        vision_feature_select_strategy=inner.config.vision_feature_select_strategy,
        return_dict=True,
    )
    features: Tensor = out.pooler_output
    return features


# Qwen2-VL, Qwen2.5-VL and Qwen3-VL -------------------------------------------------


def _qwen_size(config: Any, processor: Mapping[str, Any]) -> int:
    """Return the largest square up to _QWEN_SIZE within the processor's limits."""
    vision = config.vision_config
    factor = square(vision.patch_size, "patch_size") * vision.spatial_merge_size
    low = _area(processor, "min_pixels", "shortest_edge")
    high = _area(processor, "max_pixels", "longest_edge")
    if not low or not high:
        raise ModelError(
            f"The preprocessor_config.json of a {config.model_type} lacks min_pixels "
            "and max_pixels (or size with shortest_edge and longest_edge), the areas "
            "between which pictures are scaled. Copy the file from the checkpoint."
        )
    largest = min(math.isqrt(high), _QWEN_SIZE) // factor * factor
    least = -(-(math.isqrt(low - 1) + 1) // factor) * factor
    size = max(largest, least)
    if size**2 > high:
        raise ModelError(
            f"A {config.model_type} has pictures of {low} to {high} pixels "
            f"(preprocessor_config.json), and no square of a multiple of {factor} "
            f"pixels is among them. Raise max_pixels to {size**2}."
        )
    return size


def _area(processor: Mapping[str, Any], name: str, edge: str) -> int:
    """Return a limit of the area of pictures; 0 if none is given."""
    size = processor.get("size") or {}  # whose edges are areas, too
    return int(processor.get(name) or size.get(edge) or size.get(name) or 0)


def _qwen_run(config: Any, vocabulary: Mapping[str, int], size: int) -> Run:
    factor = config.vision_config.spatial_merge_size
    side = _merged_side(config, size, factor, f"spatial_merge_size={factor}")
    names = {number: token for token, number in vocabulary.items()}
    around = []
    for name in ("vision_start_token_id", "vision_end_token_id"):
        number = getattr(config, name)
        if number not in names:
            raise ModelError(
                f"A {config.model_type} has {name}={number}, which its tokenizer "
                "lacks; it stands around a picture. Use the tokenizer of the "
                "checkpoint."
            )
        around.append(names[number])
    return Run(side * side, *around)


def _qwen_features(inner: Any, values: Tensor) -> Tensor:
    import torch

    vision = inner.config.vision_config
    side = grid(inner.config, values.shape[-1])
    shape = torch.tensor([[1, side, side]] * len(values), device=values.device)
    patches = flat_patches(
        values,
        patch=square(vision.patch_size, "patch_size"),
        merged=vision.spatial_merge_size,
        frames=square(vision.temporal_patch_size, "temporal_patch_size"),
    )
    out = inner.get_image_features(
        pixel_values=patches,
        image_grid_thw=shape,
        return_dict=True,
    )
    parts = [out.pooler_output, *(getattr(out, "deepstack_features", None) or ())]
    # Of all pictures together, or one tensor of each: versions of transformers differ.
    flat = [p if isinstance(p, torch.Tensor) else torch.cat(tuple(p)) for p in parts]
    return torch.cat(flat, dim=-1).unflatten(0, (len(values), -1))


def flat_patches(values: Tensor, *, patch: int, merged: int, frames: int) -> Tensor:
    """Return the patches that the towers of Qwen's families read.

    A still picture is a video of equal frames. Patches that become one feature vector
    follow each other.

    Args:
        values: Normalised pictures. [P, 3, size, size]
        patch: Height and width of a patch, in pixels.
        merged: Patches of one feature vector in each direction.
        frames: Frames of a patch.

    Returns:
        [P * patches, 3 * frames * patch * patch].
    """
    cells = (-1, merged, patch)
    split = values.unflatten(3, cells).unflatten(2, cells)
    # picture, colour, 2 x (cell, patch in the cell, pixel) -> patches, then pixels
    ordered = split.permute(0, 2, 5, 3, 6, 1, 4, 7).flatten(0, 4)
    repeated = ordered[:, :, None].expand(-1, -1, frames, -1, -1)
    return repeated.flatten(1)


_IDEFICS3 = Family(
    tower="vision_model",
    projector=("connector",),
    text="text_model",
    run=_idefics3_run,
    features=_idefics3_features,
    colours=(_HALF, _HALF),
)
_LLAVA = Family(
    tower="vision_tower",
    projector=("multi_modal_projector",),
    text="language_model",
    run=_llava_run,
    features=_llava_features,
    colours=None,
)
_QWEN = Family(
    tower="visual",
    projector=("visual.merger",),
    text="language_model",
    run=_qwen_run,
    features=_qwen_features,
    colours=None,
    size=_qwen_size,
    positions_3d=True,
)
FAMILIES: dict[str, Family] = {
    "smolvlm": _IDEFICS3,
    "idefics3": _IDEFICS3,
    "llava": _LLAVA,
    "llava_onevision": dataclasses.replace(
        _LLAVA,
        projector=("multi_modal_projector", "image_newline"),
        run=_onevision_run,
        features=_onevision_features,
    ),
    "internvl": dataclasses.replace(
        _LLAVA, run=_internvl_run, features=_internvl_features
    ),
    "qwen2_vl": _QWEN,
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": dataclasses.replace(
        _QWEN, projector=("visual.merger", "visual.deepstack_merger_list")
    ),
}
"""Families by model type of transformers."""
