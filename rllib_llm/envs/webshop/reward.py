"""WebShop's reward (Yao et al. 2022, arXiv:2207.01206, equation 1 and its appendix)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rllib_llm.envs.webshop.shop import Product


@dataclasses.dataclass(frozen=True)
class Goal:
    """The goal of an instruction.

    Attributes:
        product: A product that meets the goal.
        attributes: Required attributes.
        options: Required options, by name.
        highest: Highest price, in dollars.
    """

    product: Product
    attributes: tuple[str, ...]
    options: dict[str, str]
    highest: float


@dataclasses.dataclass(frozen=True)
class Score:
    """The score of a purchase.

    Attributes:
        type: The factor r_type.
        attributes: Number of matching attributes.
        options: Number of matching options.
        price: Whether the price is low enough.
        asked: Number of required attributes and options, plus one for the price.
    """

    type: float
    attributes: int
    options: int
    price: bool
    asked: int

    @property
    def reward(self) -> float:
        """r_type times the share of matching requirements, in [0, 1]."""
        return self.type * (self.attributes + self.options + self.price) / self.asked

    @property
    def is_full(self) -> bool:
        """True if the reward is 1, which is WebShop's success."""
        matched = self.attributes + self.options + self.price
        return self.type == 1.0 and matched == self.asked


def score(goal: Goal, bought: Product, chosen: Mapping[str, str]) -> Score:
    """Return the score of a purchase.

    Args:
        goal: Goal of the instruction.
        bought: The bought product.
        chosen: Chosen options, by name.
    """
    options = sum(chosen.get(name) == value for name, value in goal.options.items())
    return Score(
        type=type_factor(goal.product, bought),
        attributes=len(set(goal.attributes) & set(bought.attributes)),
        options=options,
        price=bought.price <= goal.highest,
        asked=len(goal.attributes) + len(goal.options) + 1,
    )


def type_factor(wanted: Product, bought: Product) -> float:
    """Return r_type, the agreement of the two kinds of products.

    It depends on the share of the wanted title's nouns in the other title. If that is
    low, it also depends on the type, which is WebShop's query here, and on the
    category, where two levels must agree.

    Args:
        wanted: A product that meets the goal.
        bought: The bought product.
    """
    overlap = len(wanted.nouns & bought.nouns) / len(wanted.nouns)
    if overlap == 0:
        return 0.0
    if overlap < 0.1:
        return 0.1
    same_category = len(set(wanted.category) & set(bought.category)) >= 2
    if overlap > 0.2 or wanted.type == bought.type or same_category:
        return 1.0
    return 0.5
