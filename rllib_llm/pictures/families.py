"""Families of vision-language models: their parts, placeholders and features.

Each has one fixed number of feature vectors per picture and positions of one dimension:
with the features in the place of its placeholders, the text part alone computes what
the whole model does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from rllib_llm.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

Colour = tuple[float, ...]  # one number for each of red, green and blue
FrozenPart = Literal["vision", "projector"]
"""Names that ``freeze`` has for the parts of a vision-language model."""

_HALF = (0.5, 0.5, 0.5)  # of SigLIP, the tower of Idefics3 and SmolVLM
_CLASS_TOKENS = {"clip_vision_model": 1, "siglip_vision_model": 0}
"""Vectors before the patches of the towers that LLaVA may have."""


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
        tower: Submodule that reads pixels, of the model without its output layer.
        projector: Submodules and parameters that make features of its output.
        text: Submodule that computes hidden states of embeddings.
        run: Returns the placeholders of a config, given the tokenizer's vocabulary.
        features: Returns the features [P, count, hidden] of normalised pictures
            [P, 3, size, size], given the model without its output layer.
        colours: Mean and standard deviation of each colour of models without a
            processor; None: a processor is required.
    """

    tower: str
    projector: tuple[str, ...]
    text: str
    run: Callable[[Any, Mapping[str, int]], Run]
    features: Callable[[Any, Tensor], Tensor]
    colours: tuple[Colour, Colour] | None


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


def grid(config: Any) -> int:
    """Return the number of patches in each direction of a picture.

    Raises:
        ModelError: If they are no whole number.
    """
    vision = config.vision_config
    size = square(vision.image_size, "image_size")
    patch = square(vision.patch_size, "patch_size")
    if size % patch:
        raise ModelError(
            f"The vision tower has pictures of {size} pixels and patches of {patch}; "
            "the size must be a multiple of the patch. Correct its config.json."
        )
    return size // patch


def _merged_side(config: Any, factor: int, name: str) -> int:
    side, rest = divmod(grid(config), factor)
    if rest:
        raise ModelError(
            f"The vision tower has {grid(config)} patches in each direction, and the "
            f"projector {name}; a picture must have a multiple of {factor} patches in "
            "each direction. Correct its config.json."
        )
    return side


# Idefics3 and SmolVLM ------------------------------------------------------------


def _idefics3_run(config: Any, vocabulary: Mapping[str, int]) -> Run:
    factor = config.scale_factor
    side = _merged_side(config, factor, f"scale_factor={factor}")
    marks = ("<fake_token_around_image>", "<global-img>")
    around = [t for t in marks if t in vocabulary]
    return Run(side * side, "".join(around), around[0] if around else "")


def _idefics3_features(inner: Any, values: Tensor) -> Tensor:
    import torch

    side = grid(inner.config)
    patches = torch.ones(
        (len(values), side, side), dtype=torch.bool, device=values.device
    )
    # Not get_image_features(): it would drop a picture whose values are all 0.
    out = inner.vision_model(pixel_values=values, patch_attention_mask=patches)
    features: Tensor = inner.connector(out.last_hidden_state)
    return features


# LLaVA and LLaVA-OneVision -------------------------------------------------------


def _llava_run(config: Any, vocabulary: Mapping[str, int]) -> Run:
    kind = config.vision_config.model_type
    if kind not in _CLASS_TOKENS:
        raise ModelError(
            f"A {config.model_type} with a vision tower of type {kind!r} is not "
            f"supported; it must be one of {', '.join(_CLASS_TOKENS)}. Use another "
            "checkpoint."
        )
    cut = 1 if config.vision_feature_select_strategy == "default" else 0
    return Run(grid(config) ** 2 + _CLASS_TOKENS[kind] - cut)


def _onevision_run(config: Any, vocabulary: Mapping[str, int]) -> Run:
    return Run(_llava_run(config, vocabulary).count + 1)


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


def _internvl_run(config: Any, vocabulary: Mapping[str, int]) -> Run:
    layer, choice = config.vision_feature_layer, config.vision_feature_select_strategy
    if not isinstance(layer, int) or choice != "default":
        raise ModelError(
            f"An InternVL with vision_feature_layer={layer} and "
            f"vision_feature_select_strategy={choice!r} is not supported; they must be "
            "a number and 'default'. Use another checkpoint."
        )
    ratio = config.downsample_ratio
    side = _merged_side(config, round(1 / ratio), f"downsample_ratio={ratio}")
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
}
"""Families by model type of transformers."""
