"""Preparation of a reference model that is not the initial policy: a teacher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rllib_llm.connectors.fingerprint import tokenizer_contents
from rllib_llm.errors import ModelError
from rllib_llm.modules.loading import load_tokenizer
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.pictures.spec import image_spec

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig


def prepare_ref_model(
    config: LLMConfig,
    model: str,
    on_progress: Callable[[str, float], None] | None = None,
) -> str | None:
    """Return the folder or hub id of ``ref_model``, building the model if needed.

    Args:
        config: A policy's config.
        model: Folder or hub id of the policy's model.
        on_progress: As in :func:`prepare_language_model`.

    Returns:
        None if the reference is the initial policy.

    Raises:
        ModelError: If its tokenizer is not the policy's, or it reads pictures in
            another way.
    """
    if config.ref_model is None:
        return None
    folder = prepare_language_model(ref_model_config(config), on_progress)
    _check_tokenizers(folder, model)
    _check_pictures(folder, model)
    return folder


def ref_model_config(config: LLMConfig) -> Any:
    """Return the config whose language model is the reference.

    Args:
        config: A policy's config with a ``ref_model``.
    """
    given = config.ref_model
    settings: Mapping[str, Any] = (
        given if isinstance(given, Mapping) else {"model": given}
    )
    changed = config.copy(copy_frozen=False)
    changed.lm_model = settings.get("model", "tiny")
    changed.lm_tiny = dict(settings.get("tiny", {}))
    # The policy's own fine-tuning is no setting of the reference.
    changed.sft_demonstrations = 0
    changed.sft(**settings.get("sft", {}))
    return changed


def _check_tokenizers(reference: str, policy: str) -> None:
    """Refuse a reference that reads other ids than the policy samples.

    Raises:
        ModelError: With both models and the remedy.
    """
    theirs, ours = (tokenizer_contents(load_tokenizer(m)) for m in (reference, policy))
    if theirs != ours:
        raise ModelError(
            f"ref_model {reference!r} has another tokenizer than the policy's model "
            f"{policy!r}, so it cannot score the tokens that the policy samples. Use "
            "a model of the same family; tiny models of one environment and one "
            "tiny.vocab_size share a tokenizer."
        )


def _check_pictures(reference: str, policy: str) -> None:
    """Refuse a reference for which a policy's rows have other placeholders.

    Raises:
        ModelError: With the numbers of both and the remedy.
    """
    ours, theirs = image_spec(policy), image_spec(reference)
    if ours is None:
        return  # rows without pictures
    remedy = "Use a model of the same family with the same vision tower's sizes."
    if theirs is None:
        raise ModelError(
            f"ref_model {reference!r} reads text alone, but the policy's model "
            f"{policy!r} reads pictures. {remedy}"
        )
    for name in ("family", "token_id", "count", "before", "after", "size"):
        if getattr(ours, name) != getattr(theirs, name):
            raise ModelError(
                f"ref_model {reference!r} reads pictures with "
                f"{name}={getattr(theirs, name)!r}, but the policy's model {policy!r} "
                f"with {name}={getattr(ours, name)!r} (size: pixels of a side; count: "
                f"tokens of a picture), so it cannot score the policy's rows. {remedy}"
            )
