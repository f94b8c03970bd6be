"""A scripted customer that knows no more than it was shown.

It searches for what the instruction says, and takes products in the order in which they
are listed: of the right type, cheap enough, with the attributes that are asked for in
the title. If titles leave some out, it looks them up among the features.
"""

from __future__ import annotations

from rllib_llm.envs.webshop import goals
from rllib_llm.envs.webshop.catalogue import Product
from rllib_llm.envs.webshop.reward import Goal
from rllib_llm.envs.webshop.visit import BACK, BUY, NEXT, PREVIOUS, Visit


def advise(visit: Visit, goal: Goal) -> str:
    """Return the next action on the way to the purchase."""
    query = goals.query(goal)
    if visit.page == "search":
        return f"search[{query}]"
    return f"click[{_button(visit, goal, query).lower()}]"


def _button(visit: Visit, goal: Goal, query: str) -> str:
    if visit.query != query:
        return BACK
    if visit.page == "results":
        return _follow(visit, goal)
    if not _may_fit(visit, goal, visit.product) or visit.page != "item":
        return PREVIOUS
    if _left_out(visit, goal, visit.product) and visit.item not in visit.read:
        return "Features"
    for name, value in goal.options.items():
        if visit.chosen.get(name) != value:
            return value
    return BUY


def _follow(visit: Visit, goal: Goal) -> str:
    """Return the first product that may fit, else the way to others."""
    for product in visit.on_page():
        if _may_fit(visit, goal, product):
            return product.id
    return NEXT if NEXT in visit.buttons() else BACK


def _may_fit(visit: Visit, goal: Goal, product: Product) -> bool:
    """Say whether nothing that was shown speaks against a product."""
    left_out = _left_out(visit, goal, product)
    if product.type != goal.product.type or product.price > goal.highest:
        return False
    if product.id in visit.opened and not goals.has_options(goal, product):
        return False
    if product.id in visit.read:
        return left_out <= {*product.attributes}
    return len(left_out) <= visit.hidden


def _left_out(visit: Visit, goal: Goal, product: Product) -> set[str]:
    """Return the attributes that are asked for, and not in the title."""
    return {*goal.attributes} - {*product.attributes[visit.hidden :]}
