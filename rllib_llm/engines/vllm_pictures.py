"""Pictures in vLLM: its processor's settings, a probe at the start, and requests.

vLLM prepares pictures with the processor of the checkpoint's family, which decides how
many tokens stand for one. A request's ids are those of this package; vLLM's are only
compared with them.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_llm.errors import ConfigError, ModelError
from rllib_llm.modules.architectures import read_config
from rllib_llm.pictures.contract import digest
from rllib_llm.pictures.families import flat_patches
from rllib_llm.pictures.placement import PictureRef, PlacedPicture

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase
    from vllm.v1.engine.llm_engine import LLMEngine

    from rllib_llm.pictures.spec import ImageSpec

_REMEDY = "Use engine='torch', or a checkpoint with the processor of its family"
_CACHE_GIB = 1.0  # of prepared pictures in main memory; vLLM's own default is 4


def _idefics3(size: int) -> dict[str, Any]:
    edge = {"longest_edge": size}
    return {"do_image_splitting": False, "size": edge, "max_image_size": edge}


def _sides(size: int) -> dict[str, Any]:
    return {"size": {"height": size, "width": size}}


def _llava(size: int) -> dict[str, Any]:
    return {**_sides(size), "crop_size": {"height": size, "width": size}}


def _internvl(size: int) -> dict[str, Any]:
    return {**_sides(size), "crop_to_patches": False}


def _qwen(size: int) -> dict[str, Any]:
    area = size * size  # these edges are areas
    return {"size": {"shortest_edge": area, "longest_edge": area}}


@dataclasses.dataclass(frozen=True)
class _Processor:
    """Needs of a family's processor.

    Attributes:
        settings: Returns its arguments for whole square pictures of a size in pixels.
        packages: Modules that it imports besides those of vLLM on a CPU.
        writes_around: Whether it writes the control tokens around a picture.
        adds_tiles: Whether tiles follow the whole picture whatever its arguments.
        takes_adapters: Whether vLLM has LoRA for the family.
    """

    settings: Callable[[int], dict[str, Any]]
    packages: tuple[str, ...] = ()
    writes_around: bool = True
    adds_tiles: bool = False
    takes_adapters: bool = True


_TORCHVISION = ("torchvision",)
_QWEN = _Processor(_qwen, _TORCHVISION, writes_around=False)
_PROCESSORS = {
    "idefics3": _Processor(_idefics3),
    "smolvlm": _Processor(_idefics3, ("num2words", "torchvision")),
    "llava": _Processor(_llava, _TORCHVISION),
    "llava_onevision": _Processor(
        _sides, _TORCHVISION, adds_tiles=True, takes_adapters=False
    ),
    "internvl": _Processor(_internvl, _TORCHVISION),
    "qwen2_vl": _QWEN,
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
}
"""By family."""


def check_family(family: str, engine: str, *, adapters: bool = False) -> None:
    """Check that vLLM can sample with a family's models as this package does.

    Args:
        family: Model type of transformers.
        engine: Name of the engine, for messages.
        adapters: Whether it gets LoRA adapters.

    Raises:
        ConfigError: If it cannot, or a package is missing.
    """
    processor = _PROCESSORS[family]
    if adapters and not processor.takes_adapters:
        others = sorted(n for n, p in _PROCESSORS.items() if p.takes_adapters)
        raise ConfigError(
            f"generation.engine={engine!r} has no LoRA for models of type {family!r}, "
            f"only for {', '.join(others)}. Set language_model.lora to null, or use "
            "engine='torch'."
        )
    packages = processor.packages
    missing = [p for p in packages if importlib.util.find_spec(p) is None]
    if missing:
        raise ConfigError(
            f"generation.engine={engine!r} needs {' and '.join(missing)} for the "
            f"processor of models of type {family!r}. Run pip install "
            f"{' '.join(missing)}, or use engine='torch'."
        )


def check_layers(model: str, engine: str) -> None:
    """Check that vLLM can read the layers of the tower that a model's config names.

    vLLM builds the projector of LLaVAs for the output of one layer.

    Args:
        model: Folder or hub id of a vision-language model.
        engine: Name of the engine, for messages.

    Raises:
        ConfigError: If it cannot.
    """
    layers = getattr(read_config(model), "vision_feature_layer", None)
    if isinstance(layers, list | tuple) and len(layers) > 1:
        raise ConfigError(
            f"generation.engine={engine!r} reads one layer of the vision tower, and "
            f"{model!r} has vision_feature_layer={list(layers)}. Use engine='torch'."
        )


def picture_arguments(spec: ImageSpec, max_context_tokens: int) -> dict[str, Any]:
    """Return the arguments of vLLM's ``EngineArgs`` for pictures.

    Args:
        spec: Picture inputs of the model.
        max_context_tokens: Maximum tokens of a history, which bounds its pictures.
    """
    check_family(spec.family, "vllm")
    return {
        "skip_tokenizer_init": False,  # the processor contains the tokenizer
        "mm_processor_kwargs": _PROCESSORS[spec.family].settings(spec.size),
        # vLLM would pass raw pixels to towers that can normalise them; the probe
        # compares the normalised ones.
        "mm_device_do_normalize": False,
        # Zero videos: vLLM would reserve memory for the longest one.
        "limit_mm_per_prompt": {
            "image": max(1, max_context_tokens // spec.count),
            "video": 0,
        },
        "mm_processor_cache_gb": _CACHE_GIB,
    }


class PicturePrompts:
    """Requests with pictures, as vLLM's engine takes them.

    Args:
        spec: Picture inputs of the model.
        tokenizer: The model's tokenizer.
    """

    def __init__(self, spec: ImageSpec, tokenizer: PreTrainedTokenizerBase) -> None:
        """Encode the text that the processor writes for a picture."""
        self._spec = spec
        self._processor = _PROCESSORS[spec.family]
        text = spec.token * spec.count
        if self._processor.writes_around:
            text = spec.expand()
        self._run: list[int] = tokenizer.encode(text, add_special_tokens=False)

    def probe(self, llm: LLMEngine) -> None:
        """Compare vLLM's ids and pixels of a picture with this package's.

        Raises:
            ModelError: If they differ.
        """
        size = self._spec.size
        picture = np.arange(3 * size * size).reshape(size, size, 3).astype(np.uint8)
        ref = PictureRef(digest(picture), 0, self._spec.count)
        # vLLM's cache would count on a request with the picture, which does not follow.
        rendered = self._rendered(llm, [PlacedPicture(ref, picture)], is_cached=False)
        self._check_ids(rendered["prompt_token_ids"], self._run)
        (item,) = rendered["mm_kwargs"]["image"]
        self._check_pixels(item.get_data()["pixel_values"], picture)

    def __call__(
        self, llm: LLMEngine, history: list[int], pictures: Sequence[PlacedPicture]
    ) -> Any:
        """Return the prompt of a request.

        vLLM prepares the pictures alone. In the whole history it would take a
        placeholder that the model has sampled for the place of a picture.

        Args:
            llm: vLLM's engine.
            history: Ids, with this package's placeholders. [T]
            pictures: The pictures, of the tower's size, in the order of their places.

        Raises:
            ModelError: If vLLM writes other ids for one of them.
        """
        if not pictures:
            return {"prompt_token_ids": list(history)}
        rendered = self._rendered(llm, pictures)
        ids, ranges = rendered["prompt_token_ids"], rendered["mm_placeholders"]["image"]
        places = []
        for picture, span in zip(pictures, ranges, strict=True):
            start = picture.ref.start - _text_before(span)
            stop = span.offset + span.length
            self._check_ids(
                ids[span.offset : stop], history[start : start + span.length]
            )
            places.append(dataclasses.replace(span, offset=start))
        return {
            **rendered,
            "prompt_token_ids": list(history),
            "mm_placeholders": {"image": places},
        }

    def _rendered(
        self,
        llm: LLMEngine,
        pictures: Sequence[PlacedPicture],
        *,
        is_cached: bool = True,
    ) -> Any:
        """Return vLLM's input of a prompt of pictures alone."""
        from PIL import Image

        prompt = {
            # vLLM replaces each of them by the placeholders of a picture.
            "prompt_token_ids": [self._spec.token_id] * len(pictures),
            "multi_modal_data": {
                "image": [Image.fromarray(p.pixels) for p in pictures]
            },
            # Keys of vLLM's caches: prefixes are equal if ids and pictures are.
            "multi_modal_uuids": {"image": [p.ref.digest for p in pictures]},
        }
        (rendered,) = llm.renderer.render_cmpl([prompt], skip_mm_cache=not is_cached)
        return self._without_tiles(rendered) if self._processor.adds_tiles else rendered

    def _without_tiles(self, rendered: Any) -> Any:
        """Return a prompt of pictures alone with the whole of each picture alone.

        The first of a picture's parts is the whole picture. vLLM computes as many
        feature vectors as the parts that it gets have, so it needs as many ids.
        """
        count, places = self._spec.count, []
        ids: list[int] = []
        for span in rendered["mm_placeholders"]["image"]:
            places.append(dataclasses.replace(span, offset=len(ids), length=count))
            ids += rendered["prompt_token_ids"][span.offset : span.offset + count]
        items = rendered["mm_kwargs"]
        whole = [_first_part(item) for item in items["image"]]
        return {
            **rendered,
            "prompt_token_ids": ids,
            "mm_kwargs": type(items)({"image": whole}),
            "mm_placeholders": {"image": places},
        }

    def _check_ids(self, theirs: Sequence[int], ours: Sequence[int]) -> None:
        if list(theirs) != list(ours):
            raise ModelError(
                f"vLLM writes the ids {_short(theirs)} for a picture of "
                f"{self._spec.size} pixels, and this package {_short(ours)}, with "
                f"{self._spec.count} times {self._spec.token!r}. Its processor or its "
                f"tokenizer differs from the config of the model. {_REMEDY}."
            )

    def _check_pixels(self, values: Any, picture: np.ndarray) -> None:
        """Check that vLLM's tower gets the values that the Learner's gets."""
        import torch

        spec = self._spec
        values = values if isinstance(values, torch.Tensor) else torch.stack(values)
        ours = tower_values(spec, picture)
        shape = tuple(values.shape)
        if values.numel() != ours.numel():
            raise ModelError(
                f"vLLM makes values of shape {shape} of one picture, and this package "
                f"{tuple(ours.shape)}: it splits or scales the picture. {_REMEDY}."
            )
        gap = (values.reshape(ours.shape).float() - ours).abs().max().item()
        # Rounding to the type of the weights, and to multiples of 1/255 before.
        allowed = 2 * torch.finfo(values.dtype).eps * ours.abs().max().item() + 1e-5
        if gap > allowed:
            raise ModelError(
                f"vLLM's values of a picture differ from this package's by {gap:.3g} "
                f"(at most {allowed:.3g} is rounding); here image_mean={spec.mean} and "
                f"image_std={spec.std}. Correct the model's preprocessor_config.json. "
                f"{_REMEDY}."
            )


def tower_values(spec: ImageSpec, picture: np.ndarray) -> torch.Tensor:
    """Return what the tower gets of a picture, as the Learner computes it.

    Args:
        spec: Picture inputs of the model.
        picture: uint8 [size, size, 3].

    Returns:
        Normalised pixels [3, size, size]; of Qwen's families patches
        [patches, 3 * frames * patch * patch].
    """
    import torch

    scaled = torch.from_numpy(picture).float() / 255
    values = (scaled - torch.tensor(spec.mean)) / torch.tensor(spec.std)
    values = values.permute(2, 0, 1)
    if spec.frames is None or spec.side is None:
        return values
    return flat_patches(
        values[None],
        patch=spec.patch,
        merged=spec.size // spec.patch // spec.side,
        frames=spec.frames,
    )


def _first_part(item: Any) -> Any:
    """Return a prepared picture without its tiles."""
    # Without values: vLLM's engine has the picture from an earlier request.
    values = None if item is None else item["pixel_values"]
    if values is None or values.data is None:
        return item
    whole = dataclasses.replace(values, data=values.data[:1])
    return type(item)({**item, "pixel_values": whole})


def _text_before(span: Any) -> int:
    """Return the number of ids before the first placeholder of a picture's range."""
    return 0 if span.is_embed is None else int(span.is_embed.int().argmax())


def _short(ids: Sequence[int]) -> str:
    """Return ids for a message, without the middle of a long run."""
    ids = list(ids)
    if len(ids) <= 16:
        return str(ids)
    ends = (", ".join(map(str, part)) for part in (ids[:8], ids[-8:]))
    return f"[{', ..., '.join(ends)}] ({len(ids)} ids)"
