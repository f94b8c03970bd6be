"""Goals of customers, their wording, and their split into train and test."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from rllib_llm.envs.text_env import in_split
from rllib_llm.envs.webshop.reward import Goal
from rllib_llm.envs.webshop.shop import Catalogue, Product
from rllib_llm.errors import ConfigError

_WORDINGS = (
    "i am looking for {article} {thing}{options}, and price lower than {price:.2f} "
    "dollars",
    "i need {article} {thing}{options}, and price lower than {price:.2f} dollars",
    "find me {article} {thing}{options}, and price lower than {price:.2f} dollars",
)
_SHORT = "{thing}{options}, price at most {price:.0f}"


def draw_goal(
    rng: np.random.Generator,
    shop: Catalogue,
    split: str,
    *,
    attributes: int,
    options: int,
    step: int,
) -> Goal:
    """Draw a goal that some product among the goal's own search results meets.

    Args:
        rng: Generator of the goal.
        shop: The catalogue.
        split: "train" or "test".
        attributes: Number of required attributes.
        options: Number of required options.
        step: Price limits are multiples of this amount, in dollars.

    Raises:
        ConfigError: If the catalogue has no goals of the split.
    """
    wanted = _goal_products(shop, split, attributes)
    if not wanted:
        raise ConfigError(
            f"products={len(shop.products)} leaves no product for the split {split!r}. "
            "Raise it, e.g. to 100."
        )
    while True:
        product = wanted[int(rng.integers(len(wanted)))]
        names = list(product.options)
        kept = sorted(rng.choice(len(names), options, replace=False))
        # The limit is the larger of two draws from the next four multiples of the step.
        above = 1 + int(rng.choice(4, 2, replace=False).max())
        goal = Goal(
            product,
            product.attributes[:attributes],
            {names[i]: str(rng.choice(product.options[names[i]])) for i in kept},
            float(step * (product.price // step + above)),
        )
        if any(meets(goal, other) for other in shop.search(query(goal))):
            return goal


def meets(goal: Goal, product: Product) -> bool:
    """Return whether a product meets the goal, with the right options on sale."""
    return (
        product.type == goal.product.type
        and product.price <= goal.highest
        and set(goal.attributes) <= set(product.attributes)
        and has_options(goal, product)
    )


def has_options(goal: Goal, product: Product) -> bool:
    """Return whether the product offers all required options."""
    return all(v in product.options.get(n, ()) for n, v in goal.options.items())


def query(goal: Goal) -> str:
    """Return the search query of a goal."""
    return " ".join([*goal.attributes, goal.product.type, *goal.options.values()])


def instruction(rng: np.random.Generator, goal: Goal, short: bool) -> str:
    """Return the instruction of a goal, in one of several wordings unless short."""
    thing = " ".join([", ".join(goal.attributes), goal.product.type]).strip()
    named = [f"{name}: {value}" for name, value in goal.options.items()]
    if short:
        options = "".join(f", {text}" for text in named)
        return _SHORT.format(thing=thing, options=options, price=goal.highest)
    wording = _WORDINGS[int(rng.integers(len(_WORDINGS)))]
    return wording.format(
        article="an" if thing[0] in "aeiou" else "a",
        thing=thing,
        options=" with " + ", and ".join(named) if named else "",
        price=goal.highest,
    )


@lru_cache(maxsize=16)
def _goal_products(shop: Catalogue, split: str, attributes: int) -> list[Product]:
    """Return the products whose type and required attributes belong to the split."""
    """Return the products whose type and asked attributes belong to the split."""
    return [
        product
        for product in shop.products.values()
        if in_split(_key(product, attributes), split)
    ]


def _key(product: Product, attributes: int) -> str:
    return f"{product.type}: {', '.join(sorted(product.attributes[:attributes]))}"
