"""Vision tower of a language model: pictures to feature vectors, and its text part."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rllib_llm.pictures.families import FAMILIES, AdaptedPart, FrozenPart
from rllib_llm.pictures.placed_features import PlacedFeatures
from rllib_llm.pictures.placement import PlacedPicture
from rllib_llm.pictures.positions import positions_3d
from rllib_llm.pictures.spec import ImageSpec, reads_pictures


def has_vision(lm: nn.Module) -> bool:
    """Return whether a model reads pictures."""
    config = getattr(lm, "config", None)
    return config is not None and reads_pictures(config)


def text_trunk(lm: nn.Module) -> nn.Module:
    """Return the layers that compute hidden states of token embeddings.

    Args:
        lm: A language model, with or without its output layer.
    """
    trunk: Any = lm.base_model
    if has_vision(lm):
        return getattr(trunk, FAMILIES[lm.config.model_type].text)
    return trunk


def part_parameters(lm: nn.Module, part: FrozenPart) -> Iterator[nn.Parameter]:
    """Yield the parameters of a part of a vision-language model."""
    family = FAMILIES[lm.config.model_type]
    projector = list(_parameters(lm, family.projector))
    if part == "projector":
        yield from projector
        return
    among = {id(p) for p in projector}  # some towers contain it
    yield from (p for p in _parameters(lm, (family.tower,)) if id(p) not in among)


def _parameters(lm: nn.Module, names: Iterable[str]) -> Iterator[nn.Parameter]:
    for name in names:
        value = operator.attrgetter(name)(lm.base_model)
        yield from value.parameters() if isinstance(value, nn.Module) else [value]


def parameters_outside(
    lm: nn.Module, parts: Collection[AdaptedPart]
) -> Iterator[nn.Parameter]:
    """Yield the parameters of a model that are in none of these parts.

    A model of text is its text part.
    """
    vision = {id(p) for p in vision_parameters(lm)}
    inside: set[int] = set()
    for part in parts:
        if part != "text" and has_vision(lm):
            inside |= {id(p) for p in part_parameters(lm, part)}
    for parameter in lm.parameters():
        is_text = id(parameter) not in vision
        if not ("text" in parts if is_text else id(parameter) in inside):
            yield parameter


def freeze(lm: nn.Module, parts: Iterable[FrozenPart]) -> None:
    """Exclude parts of a vision-language model from training."""
    for part in parts:
        for parameter in part_parameters(lm, part):
            parameter.requires_grad_(False)


def is_vision_trained(lm: nn.Module) -> bool:
    """Return whether training changes the features of a picture."""
    return any(p.requires_grad for p in vision_parameters(lm))


def vision_parameters(lm: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of tower and projector; none of a model of text."""
    if not has_vision(lm):
        return []
    return [*part_parameters(lm, "vision"), *part_parameters(lm, "projector")]


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
        lm: A vision-language model, with or without its output layer; shared, not
            copied.
        spec: Its picture inputs.
    """

    def __init__(self, lm: nn.Module, spec: ImageSpec) -> None:
        # In a tuple: a module that holds this reader must not register the model again.
        self._lm = (lm,)
        self._mean, self._std = torch.tensor(spec.mean), torch.tensor(spec.std)
        self.size = spec.size

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return features of pictures that fit the tower.

        Args:
            pixels: uint8 [P, size, size, 3].

        Returns:
            One vector per placeholder, then those of deeper layers if the family has
            any. [P, count, (1 + layers) * hidden]
        """
        (lm,) = self._lm
        weight = next(part_parameters(lm, "vision"))
        pixels = pixels.to(weight.device)
        mean, std = self._mean.to(weight.device), self._std.to(weight.device)
        values = ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2)
        family = FAMILIES[lm.config.model_type]
        return family.features(lm.base_model, values.to(weight.dtype))


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
        """Return the features of pictures by digest, each as of a PictureReader."""
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
    """Inputs of an engine's forward passes over new tokens with pictures.

    Args:
        lm: The vision-language model.
        spec: Its picture inputs.

    Attributes:
        token_id: Id of placeholders.
        skipped: Tokens of a picture minus the positions that it takes.
    """

    def __init__(self, lm: nn.Module, spec: ImageSpec) -> None:
        super().__init__(PictureReader(lm, spec))
        self._lm, self._side = lm, spec.side
        self.token_id = spec.token_id
        self.skipped = 0 if spec.side is None else spec.count - spec.side

    def positions(
        self, pictures: Sequence[Sequence[PlacedPicture]], columns: np.ndarray
    ) -> np.ndarray | None:
        """Return time, row and column of tokens; None if columns are their positions.

        Args:
            pictures: The pictures of each row, with their places in its history. [B]
            columns: Indices of the tokens in the history. int64 [B, T]

        Returns:
            int64 [3, B, T]
        """
        most = max(map(len, pictures), default=0)
        if self._side is None or not most:
            return None
        starts = np.full((len(pictures), most), -1, np.int64)
        for row, of_row in enumerate(pictures):
            starts[row, : len(of_row)] = [p.ref.start for p in of_row]
        return positions_3d(columns, starts, self._side)

    def weights_changed(self) -> None:
        """Drop the features if training changes them."""
        if is_vision_trained(self._lm):
            self.clear()

    def place(
        self,
        pictures: Sequence[Sequence[PlacedPicture]],
        starts: np.ndarray,
        counts: Sequence[int],
    ) -> PlacedFeatures | None:
        """Return the features of the placeholders among new tokens, if there are any.

        Args:
            pictures: The pictures of each row, with their places in its history. [B]
            starts: Tokens that each row has in the cache already. [B]
            counts: New tokens of each row. [B]
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
        return PlacedFeatures(np.array(rows), np.array(cols), torch.cat(parts))
