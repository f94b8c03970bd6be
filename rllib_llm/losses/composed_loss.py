"""A policy's loss as configured: policy loss, loss terms, advantage transforms."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rllib_llm.components.registry import (
    BoundComponent,
    Spec,
    Specs,
    bind,
    bind_all,
)
from rllib_llm.errors import ConfigError
from rllib_llm.losses.token_batch import TokenBatch, example_batch


class ComposedLoss:
    """The bound loss components of one policy.

    Args:
        policy_loss: Component of kind ``policy_loss``; None: the algorithm's loss.
        loss_terms: Components of kind ``loss_term``, added times their weights.
        transforms: Components of kind ``token_advantage_transform``, applied in order.

    Attributes:
        bound: All components, in a fixed order.
        needs: Inputs that they need; see
            :func:`~rllib_llm.losses.token_batch.requires`.
    """

    def __init__(
        self,
        policy_loss: Spec | None = None,
        loss_terms: Specs = (),
        transforms: Specs = (),
    ):
        self.loss = None if policy_loss is None else bind("policy_loss", policy_loss)
        self.terms = bind_all("loss_term", loss_terms)
        self.transforms = bind_all("token_advantage_transform", transforms)
        first = [] if self.loss is None else [self.loss]
        self.bound: list[BoundComponent] = [*first, *self.terms, *self.transforms]
        # Decided before the first update, because the Learner's pipeline adds forward
        # passes (reference, scores) only if a component needs them.
        needs: set[str] = set().union(*map(_needs, self.bound))
        # Transforms get entropies of before the update, whether they read them or not.
        self.needs = frozenset(needs | ({"scores"} if self.transforms else set()))

    def __bool__(self) -> bool:
        """Return whether any component is configured."""
        return bool(self.bound)

    def policy_loss(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Return the policy loss per token and where a bound acted. [B, T] each"""
        assert self.loss is not None
        result = self.loss.call(batch)
        if not isinstance(result, tuple) or len(result) != 2:
            raise ConfigError(
                f"policy_loss {self.loss.component.name!r} must return two "
                "tensors: the loss of each token, and the tokens on which a bound "
                "acted."
            )
        # Custom components are user code: masking again here keeps a component that
        # forgets the mask from training padding.
        loss = _checked(self.loss, result[0], batch)
        return loss, _checked(self.loss, result[1], batch).bool()

    def term_losses(self, batch: TokenBatch) -> Iterator[tuple[str, Tensor]]:
        """Yield each term's name and its weighted loss per token. [B, T]"""
        for bound in self.terms:
            loss = _checked(bound, bound.call(batch), batch)
            yield short_name(bound), bound.weight_at(batch.update) * loss

    def transform(self, batch: TokenBatch) -> Tensor:
        """Return the advantages after all transforms. [B, T]"""
        for bound in self.transforms:
            # Each transform sees the result of the one before. Detached, because a
            # gradient through the entropy in a transform would be an unintended second
            # loss.
            batch.advantages = _checked(bound, bound.call(batch), batch).detach()
        return batch.advantages

    def end_update(self, means: Mapping[str, float]) -> dict[str, float]:
        """Let terms adapt to an update's statistics; return their coefficients."""
        for bound in self.terms:
            if hasattr(bound.call, "end_update"):
                bound.call.end_update(means)
        return {
            short_name(c): float(c.call.coeff)
            for c in self.terms
            if hasattr(c.call, "coeff")
        }

    def try_out(self) -> None:
        """Compute all components on an example batch, to detect bad settings early.

        Raises:
            ConfigError: With the message of the component that failed.
        """
        # On a copy: components such as EntropyTarget change their state when they are
        # called.
        trial = copy.deepcopy(self)
        try:
            trial._try_out()
        except (TypeError, ValueError) as error:
            # ConfigError is a ValueError; its message already names the component.
            if isinstance(error, ConfigError):
                raise
            names = ", ".join(
                f"{c.component.kind} {c.component.name}" for c in self.bound
            )
            raise ConfigError(f"{names}: {error}") from error

    def _try_out(self) -> None:
        total = torch.zeros(())
        for bound in self.bound:
            if bound not in self.terms and "actions" in _needs(bound):
                raise ConfigError(
                    f"{bound.component.kind} {bound.component.name!r} reads the "
                    "probabilities of all admissible actions, which loss terms alone "
                    "get. Make it a loss_term."
                )
        if self.transforms:
            self.transform(example_batch(self.needs))
        if self.loss is not None:
            # Losses and terms get micro-batches in training, transforms the whole
            # iteration: each is tried with the kind of batch that it will get.
            part = example_batch(self.needs, is_part=True)
            total = total + self.policy_loss(part)[0].sum()
        for _, loss in self.term_losses(example_batch(self.needs, is_part=True)):
            total = total + loss.sum()
        if not torch.isfinite(total):
            names = ", ".join(c.component.name for c in self.bound)
            raise ConfigError(
                f"{names}: the loss of an example batch is {total}, but it must be "
                "finite. Change the settings, or correct the component."
            )
        self.end_update({"entropy": 0.5})

    def get_state(self) -> dict[str, Any]:
        """Return the components' state between updates, by kind and name."""
        states = {_key(bound): bound.get_state() for bound in self.bound}
        return {key: state for key, state in states.items() if state is not None}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`get_state`'s result; components not in it start anew."""
        for bound in self.bound:
            bound.set_state(state.get(_key(bound)))


def short_name(bound: BoundComponent) -> str:
    """Return a component's name for keys of metrics."""
    return bound.component.name.rpartition(":")[2]


def _key(bound: BoundComponent) -> str:
    return f"{bound.component.kind} {bound.component.name}"


def _needs(bound: BoundComponent) -> frozenset[str]:
    requirements = getattr(bound.component.make, "needs", ())
    met = (n for n, when in requirements if when is None or when(bound.settings))
    return frozenset().union(*met)


def _checked(bound: BoundComponent, result: object, batch: TokenBatch) -> Tensor:
    if not isinstance(result, Tensor) or result.shape != batch.mask.shape:
        shape = (
            list(result.shape) if isinstance(result, Tensor) else type(result).__name__
        )
        raise ConfigError(
            f"{bound.component.kind} {bound.component.name!r} returned {shape} "
            f"for tokens of {list(batch.mask.shape)}. It must return one entry per "
            "token."
        )
    return result.masked_fill(~batch.mask, 0)
