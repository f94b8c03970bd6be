"""What a policy's loss is made of: a policy loss, terms, and transforms before it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rllib_llm.components.registry import BoundComponent, Spec, bind, bind_all
from rllib_llm.errors import ConfigError
from rllib_llm.losses.token_batch import TokenBatch, example_batch


class ComposedLoss:
    """The chosen pieces of one policy, ready to be called.

    Args:
        policy_loss: Piece of kind ``policy_loss``; None: the algorithm's own loss.
        loss_terms: Pieces of kind ``loss_term``, added times their weights.
        transforms: Pieces of kind ``token_advantage_transform``, applied in order.
    """

    def __init__(
        self,
        policy_loss: Spec | None = None,
        loss_terms: Sequence[Spec] = (),
        transforms: Sequence[Spec] = (),
    ):
        self.loss = None if policy_loss is None else bind("policy_loss", policy_loss)
        self.terms = bind_all("loss_term", loss_terms)
        self.transforms = bind_all("token_advantage_transform", transforms)

    @property
    def bound(self) -> list[BoundComponent]:
        """All of them, in a fixed order."""
        first = [] if self.loss is None else [self.loss]
        return [*first, *self.terms, *self.transforms]

    def __bool__(self) -> bool:
        """Whether anything is chosen."""
        return bool(self.bound)

    @property
    def needs(self) -> frozenset[str]:
        """What they ask for; see :func:`~rllib_llm.losses.token_batch.requires`."""
        found: set[str] = set().union(*map(_needs, self.bound))
        # They see what there was before the update, whatever they make of it.
        return frozenset(found | ({"scores"} if self.transforms else set()))

    def policy_loss(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Return the policy loss per token and where a bound acted. [B, T] each"""
        assert self.loss is not None
        found = self.loss.call(batch)
        if not isinstance(found, tuple) or len(found) != 2:
            raise ConfigError(
                f"policy_loss {self.loss.component.name!r} must return two "
                "tensors: the "
                "loss of each token, and where a bound acted."
            )
        loss = _checked(self.loss, found[0], batch)
        return loss, _checked(self.loss, found[1], batch).bool()

    def term_losses(self, batch: TokenBatch) -> Iterator[tuple[str, Tensor]]:
        """Yield each term's name and its weighted loss per token. [B, T]"""
        for bound in self.terms:
            found = _checked(bound, bound.call(batch), batch)
            yield short_name(bound), bound.weight_at(batch.update) * found

    def transform(self, batch: TokenBatch) -> Tensor:
        """Return the advantages after all transforms. [B, T]"""
        for bound in self.transforms:
            batch.advantages = _checked(bound, bound.call(batch), batch).detach()
        return batch.advantages

    def end_update(self, means: Mapping[str, float]) -> dict[str, float]:
        """Let terms adapt to what an update measured; return their coefficients."""
        for bound in self.terms:
            if hasattr(bound.call, "end_update"):
                bound.call.end_update(means)
        return {
            short_name(c): float(c.call.coeff)
            for c in self.terms
            if hasattr(c.call, "coeff")
        }

    def try_out(self) -> None:
        """Compute them on a few made-up tokens, so that bad settings show up early.

        Raises:
            ConfigError: With what a piece says about its settings.
        """
        trial = copy.deepcopy(self)
        try:
            trial._try_out()
        except (TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            names = ", ".join(
                f"{c.component.kind} {c.component.name}" for c in self.bound
            )
            raise ConfigError(f"{names}: {error}") from error

    def _try_out(self) -> None:
        total = torch.zeros(())
        if self.transforms:
            self.transform(example_batch(self.needs))
        if self.loss is not None:
            part = example_batch(self.needs, is_part=True)
            total = total + self.policy_loss(part)[0].sum()
        for _, loss in self.term_losses(example_batch(self.needs, is_part=True)):
            total = total + loss.sum()
        if not torch.isfinite(total):
            names = ", ".join(c.component.name for c in self.bound)
            raise ConfigError(f"{names}: the loss of a few made-up tokens is {total}.")
        self.end_update({"entropy": 0.5})

    def get_state(self) -> dict[str, Any]:
        """Return what the pieces remember between updates, by kind and name."""
        found = {_key(bound): bound.get_state() for bound in self.bound}
        return {key: state for key, state in found.items() if state is not None}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Bring :meth:`get_state`'s answer back; pieces new to it start afresh."""
        for bound in self.bound:
            bound.set_state(state.get(_key(bound)))


def short_name(bound: BoundComponent) -> str:
    """Return a piece's name for keys of metrics."""
    return bound.component.name.rpartition(":")[2]


def _key(bound: BoundComponent) -> str:
    return f"{bound.component.kind} {bound.component.name}"


def _needs(bound: BoundComponent) -> frozenset[str]:
    asks = getattr(bound.component.make, "asks", ())
    met = (needs for needs, when in asks if when is None or when(bound.settings))
    return frozenset().union(*met)


def _checked(bound: BoundComponent, found: Any, batch: TokenBatch) -> Tensor:
    if not isinstance(found, Tensor) or found.shape != batch.mask.shape:
        shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(
            f"{bound.component.kind} {bound.component.name!r} returned {shape} "
            "for tokens of "
            f"{list(batch.mask.shape)}. It must return one entry per token."
        )
    return found.masked_fill(~batch.mask, 0)
