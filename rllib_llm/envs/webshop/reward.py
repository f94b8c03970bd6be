"""WebShop's reward (Yao et al. 2022, arXiv:2207.01206, equation 1 and its appendix)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rllib_llm.envs.webshop.catalogue import Product


@dataclasses.dataclass(frozen=True)
class Goal:
    """What an instruction asks for.

    Attributes:
        product: A product that is as it is asked for.
        attributes: Attributes that are asked for.
        options: Options that are asked for, by name.
        highest: The highest price.
    """

    product: Product
    attributes: tuple[str, ...]
    options: dict[str, str]
    highest: float


@dataclasses.dataclass(frozen=True)
class Score:
    """What a purchase is worth.

    Attributes:
        type: The factor r_type.
        attributes: How many attributes match.
        options: How many options match.
        price: Whether the price is low enough.
        asked: How many attributes and options are asked for, and one for the price.
    """

    type: float
    attributes: int
    options: int
    price: bool
    asked: int

    @property
    def reward(self) -> float:
        """r_type times the share of what is asked for that matches."""
        return self.type * (self.attributes + self.options + self.price) / self.asked

    @property
    def is_full(self) -> bool:
        """Whether the reward is 1, which is WebShop's success."""
        matched = self.attributes + self.options + self.price
        return self.type == 1.0 and matched == self.asked


def score(goal: Goal, bought: Product, chosen: Mapping[str, str]) -> Score:
    """Compare a purchase with what was asked for.

    Args:
        goal: What was asked for.
        bought: What was bought.
        chosen: The options that were chosen, by name.
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
    """Return r_type: whether it is the kind of thing that was asked for.

    It goes by the share of the wanted title's nouns that the other title has, and,
    where that is low, by the type, which WebShop's query is here, and the category,
    of which two levels must agree.

    Args:
        wanted: A product that is as it is asked for.
        bought: What was bought.
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
