"""Contract of pictures in observations: arrays beside text that marks their places.

An observation shows a picture where its text contains :data:`PLACEHOLDER`; pictures and
placeholders are matched in order, so there must be as many of both. The environment's
``info`` holds the pictures under :data:`IMAGES`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from rllib_llm.errors import EnvContractError

PLACEHOLDER = "<image>"
"""Mark of a picture's place in an observation."""

IMAGES = "images"
"""Key of an info with the observation's pictures, and of a message with digests."""

PRECEDING = "preceding_messages"
"""Key of an info with messages before the observation; users' may hold pictures."""

Pictures = dict[str, np.ndarray]
"""Pictures by digest: uint8 arrays [height, width, 3]. Equal ones are stored once."""


def quoted(text: str) -> str:
    """Return foreign text that can stand beside pictures.

    Use it for text that an environment quotes (a web page, a user, a file) in an
    observation with pictures, so that a placeholder in it marks no picture.
    """
    return text.replace(PLACEHOLDER, PLACEHOLDER[:-1] + " >")


def digest(picture: np.ndarray) -> str:
    """Return a hexadecimal digest of size and pixels (blake2b, 16 bytes)."""
    hashed = hashlib.blake2b(repr(picture.shape).encode(), digest_size=16)
    hashed.update(np.ascontiguousarray(picture).data)
    return hashed.hexdigest()


def check_images(text: str, images: object, source: str) -> None:
    """Check an observation's pictures.

    Args:
        text: The observation.
        images: Its pictures: a list of uint8 arrays [height, width, 3].
        source: Origin of the observation, for messages.

    Raises:
        EnvContractError: If one is no such array, or if the text has another number of
            placeholders than there are pictures.
    """
    if not isinstance(images, Sequence) or isinstance(images, str):
        raise EnvContractError(
            f"{source} has images of type {type(images).__name__}; they must be a list "
            "of numpy arrays. Return images=[picture, ...]."
        )
    for number, image in enumerate(images):
        check_image(image, f"picture {number} of {source}")
    check_count(text, len(images), source)


def check_count(text: str, count: int, source: str) -> None:
    """Check that a text has one placeholder for each of its pictures.

    Raises:
        EnvContractError: If the numbers differ.
    """
    marks = text.count(PLACEHOLDER)
    if marks != count:
        raise EnvContractError(
            f"{source} has {count} pictures, and its text {marks} times "
            f"{PLACEHOLDER!r}; both must be equal. Write one {PLACEHOLDER!r} where "
            "each picture is shown, and pass quoted text through "
            "rllib_llm.pictures.contract.quoted()."
        )


def check_image(image: object, name: str) -> None:
    """Check one picture.

    Raises:
        EnvContractError: If it is no uint8 array [height, width, 3].
    """
    if not isinstance(image, np.ndarray):
        raise EnvContractError(
            f"{name} is a {type(image).__name__}; it must be a numpy array. Convert it "
            "with numpy.asarray(...)."
        )
    is_rgb = image.ndim == 3 and image.shape[2] == 3 and min(image.shape) > 0
    if image.dtype != np.uint8 or not is_rgb:
        raise EnvContractError(
            f"{name} has dtype {image.dtype} and shape {image.shape}; it must be uint8 "
            "[height, width, 3]. Convert it to RGB with values 0 to 255."
        )


def stored(pictures: MutableMapping[str, np.ndarray], info: Any) -> Any:
    """Move an info's pictures into a store.

    Args:
        pictures: The episode's pictures, which receives them.
        info: Info of an observation; it does not change.

    Returns:
        The info, with digests in place of arrays.

    Raises:
        EnvContractError: If a picture is no uint8 array [height, width, 3].
    """
    if not info:
        return info
    changed: dict[str, Any] = {}
    if info.get(IMAGES):
        changed[IMAGES] = _stored_all(pictures, info[IMAGES], f"info[{IMAGES!r}]")
    before = info.get(PRECEDING) or ()
    if any(isinstance(message.get(IMAGES), list) for message in before):
        changed[PRECEDING] = [
            _with_names(m, _stored_all(pictures, m[IMAGES], f"info[{PRECEDING!r}]"))
            if isinstance(m.get(IMAGES), list)
            else m
            for m in before
        ]
    return {**info, **changed} if changed else info


def _stored_all(
    pictures: MutableMapping[str, np.ndarray], images: Sequence[Any], source: str
) -> list[str]:
    """Store pictures that are no digests yet; return the digests."""
    names = []
    for number, image in enumerate(images):
        if isinstance(image, str):
            names.append(image)
            continue
        check_image(image, f"{source}[{number}]")
        name = digest(image)
        if name not in pictures:
            # A copy: environments may draw into one array again and again.
            pictures[name] = np.array(image)
        names.append(name)
    return names


def preceding_messages(info: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the messages before an observation, with their pictures' digests.

    Raises:
        EnvContractError: If the numbers of pictures and placeholders differ, or a
            message that is not the user's has pictures.
    """
    messages = []
    for message in info.get(PRECEDING) or ():
        images = message.get(IMAGES)
        if isinstance(images, list):
            _check_role(message, len(images))
            check_count(message["content"], len(images), "A preceding message")
            names = [i if isinstance(i, str) else digest(i) for i in images]
            message = _with_names(message, names)
        messages.append(message)
    return messages


def _with_names(message: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """Return a message with the digests of its pictures."""
    return {**message, IMAGES: " ".join(names)}


def with_pictures(
    messages: list[dict[str, str]], observation: str, info: Mapping[str, Any]
) -> list[dict[str, str]]:
    """Return the messages of an observation, the last one with its pictures' digests.

    Raises:
        EnvContractError: If the numbers of pictures and placeholders differ, or the
            observation is a tool's result.
    """
    images = info.get(IMAGES)
    if not images:
        return messages
    last = messages[-1]
    _check_role(last, len(images))
    check_count(observation, len(images), "An observation")
    check_count(last["content"], len(images), "The message of an observation")
    names = [i if isinstance(i, str) else digest(i) for i in images]
    return [*messages[:-1], _with_names(last, names)]


def _check_role(message: Mapping[str, Any], count: int) -> None:
    """Check that a message with pictures is the user's."""
    if message["role"] != "user":
        raise EnvContractError(
            f"A message with {count} pictures has the role {message['role']!r}; "
            "pictures are shown in user messages. Leave tool_results out of its info."
        )
