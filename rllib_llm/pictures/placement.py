"""Places of pictures among token ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rllib_llm.errors import ConfigError, EnvContractError
from rllib_llm.pictures.contract import IMAGES, PLACEHOLDER

_KEYS = 2**62  # below the limit of int64, in which engines hold ids


@dataclasses.dataclass(frozen=True, slots=True)
class PictureRef:
    """A picture's run of placeholder tokens.

    Attributes:
        digest: Its digest, which names it in the episode's store.
        start: Index of its first placeholder among the ids.
        count: Number of its placeholders, one per feature vector.
    """

    digest: str
    start: int
    count: int

    def moved(self, offset: int) -> PictureRef:
        """Return the same run among ids that begin ``offset`` tokens earlier."""
        return PictureRef(self.digest, self.start + offset, self.count)


class PlacedPicture(NamedTuple):
    """A picture among the ids that an engine receives.

    Attributes:
        ref: Its digest and place.
        pixels: uint8 [height, width, 3].
    """

    ref: PictureRef
    pixels: np.ndarray


def placed(
    refs: Iterable[PictureRef], pictures: Mapping[str, np.ndarray]
) -> list[PlacedPicture]:
    """Return runs with the pixels of their pictures."""
    return [PlacedPicture(ref, pictures[ref.digest]) for ref in refs]


def moved(pictures: Iterable[PlacedPicture], offset: int) -> list[PlacedPicture]:
    """Return pictures among ids that begin ``offset`` tokens earlier."""
    return [PlacedPicture(p.ref.moved(offset), p.pixels) for p in pictures]


def with_keys(
    ids: list[int], pictures: Sequence[PlacedPicture], reads_pictures: bool
) -> list[int]:
    """Return ids with :func:`keys` of their pictures in place of placeholders.

    Args:
        ids: The ids; the list is changed.
        pictures: Pictures among them.
        reads_pictures: Whether the engine's model does.

    Raises:
        ConfigError: If there are pictures for a model of text.
    """
    if pictures and not reads_pictures:
        raise ConfigError(
            f"{len(pictures)} pictures were submitted to an engine of a model that "
            "reads text alone. Use a vision-language model (docs/pictures.md)."
        )
    for picture in pictures:
        start, count = picture.ref.start, picture.ref.count
        ids[start : start + count] = keys(picture.ref)
    return ids


def located(
    ids: Sequence[int],
    messages: Iterable[Mapping[str, str]],
    token_id: int | None,
    count: int,
) -> tuple[PictureRef, ...]:
    """Return the places of messages' pictures among their ids.

    Args:
        ids: The rendered messages.
        messages: The messages; those with pictures hold their digests.
        token_id: Id of the model's placeholder token; None: a model of text.
        count: Placeholders of one picture.

    Raises:
        EnvContractError: If the model reads text alone, or the ids have another number
            of placeholders than the pictures need.
    """
    names = [n for m in messages for n in m.get(IMAGES, "").split()]
    if not names:
        return ()
    if token_id is None:
        raise EnvContractError(
            f"The environment shows {len(names)} pictures, but the policy's model "
            "reads text alone. Use language_model.model='tiny-vlm' or a folder of a "
            "vision-language model (docs/pictures.md), or turn the environment's "
            "pictures off."
        )
    places = np.flatnonzero(np.asarray(ids) == token_id)
    if len(places) != count * len(names):
        raise EnvContractError(
            f"{len(names)} pictures need {count * len(names)} placeholder tokens, but "
            f"the rendered messages have {len(places)}. Leave {PLACEHOLDER!r} out of "
            "system prompts and few-shot messages."
        )
    starts = places[::count].tolist()
    return tuple(PictureRef(n, s, count) for n, s in zip(names, starts, strict=True))


def keys(ref: PictureRef) -> list[int]:
    """Return negative numbers that stand for a picture's placeholders in a cache.

    Prefixes are compared by them: the ids of all pictures are equal, their keys and
    values are not. [count]
    """
    base = int(ref.digest[:15], 16)  # 60 bits
    return [-1 - (base + k) % _KEYS for k in range(ref.count)]
