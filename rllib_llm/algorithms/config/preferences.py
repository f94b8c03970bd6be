"""Preference losses: their construction, and ``preferences`` beside a policy loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)
from rllib_llm.algorithms.config.one_agent import one_agent_obstacle
from rllib_llm.algorithms.config.rllib_kinds import Schedule
from rllib_llm.algorithms.config.schedules import value_at
from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.algorithms.pref.pairs import MATCHES
from rllib_llm.components.registry import BoundComponent, Spec, bind
from rllib_llm.errors import ConfigError
from rllib_llm.losses.preference_losses import LabelledSums, PairSums
from rllib_llm.schema import NonNegativeFloat, OneOf, PositiveInt

if TYPE_CHECKING:
    from torch import Tensor

    from rllib_llm.algorithms.grpo.grpo import GRPOConfig
    from rllib_llm.algorithms.ppo.llm_ppo import LLMPPOConfig


@dataclasses.dataclass(frozen=True)
class PreferencePass:
    """A preference loss as a Learner computes it.

    Attributes:
        loss: Returns the loss of pairs or labelled episodes.
        compares_labels: It takes episodes with a label.
        is_current: Its reference is the policy before the update.
        nll_weight: Weight of the chosen episode's mean negative log-likelihood.
        turn_discount: Discount of later turns' log-probabilities.
        has_mismatched: The KL divergence is that of mismatched episodes.
    """

    loss: Callable[[Any], Tensor]
    compares_labels: bool = False
    is_current: bool = False
    nll_weight: float = 0.0
    turn_discount: float = 1.0
    has_mismatched: bool = False


class PreferenceLossMixin:
    """Mixin of configs with a ``preference_loss``."""

    if TYPE_CHECKING:
        preference_loss: Spec | None

    def build_preference_loss(self) -> BoundComponent:
        """Return the loss of a pair, tried out on an example.

        Raises:
            ConfigError: It does not exist, or refuses a setting.
        """
        import torch

        assert self.preference_loss is not None
        bound = bind("preference_loss", self.preference_loss)
        example = [torch.full((1,), value) for value in (-2.0, -3.0, -2.0, -3.0, 4, 5)]
        sums: PairSums | LabelledSums = PairSums(*example)
        if self.compares_labels:
            label, kl = torch.ones(1, dtype=torch.bool), torch.zeros(())
            sums = LabelledSums(example[0], example[1], label, kl)
        try:
            bound.call(sums)
        except (TypeError, ValueError) as error:
            name = bound.component.name
            raise ConfigError(f"preference_loss {name!r}: {error}") from error
        return bound

    @property
    def compares_labels(self) -> bool:
        """True if the loss takes single episodes with a label instead of pairs."""
        return self.preference_loss_needs("labels")

    def preference_loss_needs(self, need: str) -> bool:
        """Return whether the loss needs "labels", or a "reference"."""
        if self.preference_loss is None:
            return False
        bound = bind("preference_loss", self.preference_loss)
        needs = getattr(bound.component.make, "needs", ())
        return any(need in names for names, _ in needs)


class PreferenceSettings(PreferenceLossMixin, DeclaredSettings):
    """Settings of ``preferences``."""

    preferences = fluent_method(
        "Compare the returns of a task's episodes by a preference loss, too.",
        prefix="preference_",
    )

    preference_loss: Spec | None = setting(
        None,
        """Loss of a pair beside the policy loss, by name or as a mapping of ``name``
        and settings (docs/components.md); None: none.""",
    )
    preference_coeff: NonNegativeFloat | Schedule = setting(
        1.0,
        """Weight of the pairs' mean loss beside the policy loss: a number, or pairs
        ``[[0, value], [update, value], ...]``, interpolated linearly.""",
    )
    preference_match: Annotated[str, OneOf(MATCHES)] = setting(
        "one_to_one", "Pairs of a task's episodes, by return; the words of Pref."
    )
    preference_margin: NonNegativeFloat = setting(
        0.0, "Least difference of a pair's returns; not included."
    )
    preference_max_pairs_per_task: PositiveInt | None = setting(
        None, "Maximum number of pairs of a task; None: no limit."
    )
    preference_nll_weight: NonNegativeFloat = setting(
        0.0,
        """Weight of the chosen episode's mean negative log-likelihood, added to the
        pair's loss (RPO).""",
    )

    @property
    def mixes_pairs(self) -> bool:
        """True if pairs join the updates of sampled episodes."""
        return self.preference_loss is not None

    @property
    def uses_reference(self) -> bool:
        """True if a frozen reference policy is needed."""
        others: bool = super().uses_reference  # type: ignore[misc]
        return others or self.preference_loss_needs("reference")

    @property
    def preference_pass(self) -> PreferencePass | None:
        """The loss of pairs that the Learner computes; None without one."""
        if not self.mixes_pairs:
            return None
        loss = self.build_preference_loss().call
        return PreferencePass(loss, nll_weight=self.preference_nll_weight)

    def preference_coeff_at(self, update: int) -> float:
        """Return the weight of the pairs' loss in an update, from 0."""
        return value_at(self.preference_coeff, update)


def validate_preferences(config: GRPOConfig | LLMPPOConfig) -> None:
    """Check the settings of ``preferences``.

    Raises:
        ConfigError: If one is wrong or would have no effect.
    """
    if not config.mixes_pairs:
        names = set(PreferenceSettings._declared) - {"preference_loss"}
        why = "no pairs are compared. Set preferences.loss."
        refuse_without_effect(config, tuple(sorted(names)), why)
        return
    if config.compares_labels:
        raise ConfigError(
            f"preferences.loss={config.preference_loss!r} compares labels, but pairs "
            "join the updates here. Use another loss, or the algorithm Pref."
        )
    config.build_preference_loss()
    if config.group_size < 2:
        raise ConfigError(
            f"group_size={config.group_size}: preferences.loss needs two episodes of a "
            "task. Use group_size >= 2."
        )
    if config.action_head != "generate":
        raise ConfigError(
            f"head={config.action_head!r}: preferences.loss compares tokens. Use "
            "head='generate'."
        )
    obstacle = one_agent_obstacle(config)
    if obstacle is not None:
        raise ConfigError(
            f"preferences.loss={config.preference_loss!r} compares turns of one agent: "
            f"{obstacle}"
        )
