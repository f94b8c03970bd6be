"""Vision tower of a language model: pictures to feature vectors, and its text part."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rllib_llm.pictures.placement import PlacedPicture
from rllib_llm.pictures.spec import reads_pictures
from rllib_llm.upload import upload

FROZEN_PARTS = {"vision": "vision_model", "projector": "connector"}
"""Submodules of a vision-language model by the name that ``freeze`` has for them."""


def has_vision(lm: nn.Module) -> bool:
    """Return whether a model reads pictures."""
    config = getattr(lm, "config", None)
    return config is not None and reads_pictures(config)


def text_trunk(lm: nn.Module) -> nn.Module:
    """Return the layers that compute hidden states of token embeddings."""
    return lm.model.text_model if has_vision(lm) else lm.base_model


def freeze(lm: nn.Module, parts: Iterable[str]) -> None:
    """Exclude parts of a vision-language model from training.

    Args:
        lm: The model.
        parts: Names in :data:`FROZEN_PARTS`.
    """
    for part in parts:
        getattr(lm.model, FROZEN_PARTS[part]).requires_grad_(False)


def is_vision_trained(lm: nn.Module) -> bool:
    """Return whether training changes the features of a picture."""
    parts = (getattr(lm.model, name) for name in FROZEN_PARTS.values())
    return any(p.requires_grad for part in parts for p in part.parameters())


def text_view(lm: nn.Module) -> nn.Module:
    """Return the text part of a vision-language model as a causal language model.

    It has the same modules, so that a change of the weights changes both; engines run
    it as they run any model of its architecture.
    """
    from transformers import AutoModelForCausalLM

    config = copy.copy(lm.model.text_model.config)
    with torch.device("meta"):
        view = AutoModelForCausalLM.from_config(config)
    setattr(view, view.base_model_prefix, lm.model.text_model)
    view.set_output_embeddings(lm.get_output_embeddings())
    view.config = lm.model.text_model.config
    return view.eval()


def fit(picture: np.ndarray, size: int) -> np.ndarray:
    """Return a picture scaled to a square, bilinear with antialiasing.

    Args:
        picture: uint8 [height, width, 3].
        size: Height and width of the result, in pixels.

    Returns:
        uint8 [size, size, 3]; the same array if it has this size.
    """
    if picture.shape[:2] == (size, size):
        return picture
    # torchvision is no requirement of the package.
    values = torch.as_tensor(picture).permute(2, 0, 1)[None].float()
    scaled = functional.interpolate(
        values, size=(size, size), mode="bilinear", antialias=True
    )
    return scaled[0].permute(1, 2, 0).round().clamp(0, 255).byte().numpy()


class PictureReader:
    """Computes the feature vectors of pictures with a model's tower and projector.

    Args:
        lm: A vision-language model; shared, not copied.
        mean: Mean of each colour, of values in [0, 1].
        std: Standard deviation of each colour.
    """

    def __init__(
        self, lm: nn.Module, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        # In a tuple: a module that holds this reader must not register the model again.
        self._lm = (lm,)
        self._mean, self._std = torch.tensor(mean), torch.tensor(std)

    @property
    def size(self) -> int:
        """Height and width of the tower's input, in pixels."""
        return int(self._lm[0].config.vision_config.image_size)

    @property
    def patches(self) -> int:
        """Number of patches of a picture."""
        return int((self.size // self._lm[0].config.vision_config.patch_size) ** 2)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return features of pictures that fit the tower.

        Args:
            pixels: uint8 [P, size, size, 3].

        Returns:
            One vector per placeholder. [P, count, hidden]
        """
        inner = self._lm[0].model
        weight = next(inner.vision_model.parameters())
        pixels = pixels.to(weight.device)
        mean, std = self._mean.to(weight.device), self._std.to(weight.device)
        values = ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2)
        side = self.size // self._lm[0].config.vision_config.patch_size
        patches = torch.ones(
            (len(pixels), side, side), dtype=torch.bool, device=weight.device
        )
        # Not get_image_features(): it would drop a picture whose values are all 0.
        out = inner.vision_model(
            pixel_values=values.to(weight.dtype), patch_attention_mask=patches
        )
        return inner.connector(out.last_hidden_state)


class FeatureCache:
    """Features of the pictures seen last, computed once per digest.

    Args:
        reader: Computes them.
        capacity: Maximum number of pictures to keep.

    Attributes:
        computed: Number of pictures computed so far.
    """

    def __init__(self, reader: PictureReader, capacity: int = 256) -> None:
        self._reader, self._capacity = reader, capacity
        self._features: OrderedDict[str, Tensor] = OrderedDict()
        self.computed = 0

    def clear(self) -> None:
        """Drop all features, because the tower's weights have changed."""
        self._features.clear()

    @torch.no_grad()
    def of(self, pictures: Iterable[PlacedPicture]) -> dict[str, Tensor]:
        """Return the features of pictures by digest. Each [count, hidden]"""
        wanted = {p.ref.digest: p.pixels for p in pictures}
        new = {d: pixels for d, pixels in wanted.items() if d not in self._features}
        if new:
            size = self._reader.size
            stacked = np.stack([fit(pixels, size) for pixels in new.values()])
            self.computed += len(new)
            self._features.update(
                zip(new, self._reader(torch.as_tensor(stacked)), strict=True)
            )
        features = {d: self._features[d] for d in wanted}
        for d in wanted:
            self._features.move_to_end(d)
        while len(self._features) > self._capacity:
            self._features.popitem(last=False)
        return features


class EngineFeatures(FeatureCache):
    """Inputs of an engine's forward passes over new tokens with pictures."""

    def __init__(self, lm: nn.Module, spec: Any) -> None:
        super().__init__(PictureReader(lm, spec.mean, spec.std))
        self._lm = lm
        self.token_id = int(spec.token_id)

    def weights_changed(self) -> None:
        """Drop the features if training changes them."""
        if is_vision_trained(self._lm):
            self.clear()

    def place(
        self,
        pictures: Sequence[Sequence[PlacedPicture]],
        starts: np.ndarray,
        counts: Sequence[int],
    ) -> tuple[np.ndarray, np.ndarray, Tensor] | None:
        """Return the features of the placeholders among new tokens.

        Args:
            pictures: The pictures of each row, with their places in its history. [B]
            starts: Tokens that each row has in the cache already. [B]
            counts: New tokens of each row. [B]

        Returns:
            Row and column of each placeholder [N], and its features [N, hidden]; None
            if there is no placeholder.
        """
        rows: list[int] = []
        cols: list[int] = []
        runs: list[tuple[PlacedPicture, int, int]] = []
        for row, (of_row, start, count) in enumerate(
            zip(pictures, starts.tolist(), counts, strict=True)
        ):
            for picture in of_row:
                first = max(picture.ref.start, start)
                last = min(picture.ref.start + picture.ref.count, start + count)
                if first < last:
                    rows += [row] * (last - first)
                    cols += range(first - start, last - start)
                    offset = picture.ref.start
                    runs.append((picture, first - offset, last - offset))
        if not runs:
            return None
        features = self.of(picture for picture, _, _ in runs)
        parts = [features[p.ref.digest][a:b] for p, a, b in runs]
        return np.array(rows), np.array(cols), torch.cat(parts)


def merged(
    embeddings: Tensor, rows: np.ndarray, cols: np.ndarray, features: Tensor
) -> Tensor:
    """Return embeddings with features at the placeholders. [B, T, hidden]

    Args:
        embeddings: Embeddings of the token ids. [B, T, hidden]
        rows: Row of each placeholder. [N]
        cols: Column of each placeholder. [N]
        features: [N, hidden]
    """
    where = upload(np.stack((rows, cols)), embeddings.device)
    return embeddings.index_put((where[0], where[1]), features.to(embeddings.dtype))
