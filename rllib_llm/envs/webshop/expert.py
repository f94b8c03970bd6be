"""A scripted customer that uses only information from the pages it has seen.

It searches for the words of the instruction, and takes products in the order of the
results: of the right type and price, with the required attributes in the title. If
titles omit some attributes, it looks them up on the page of features.
"""

from __future__ import annotations

from rllib_llm.envs.webshop import goals
from rllib_llm.envs.webshop.reward import Goal
from rllib_llm.envs.webshop.shop import Product
from rllib_llm.envs.webshop.visit import BACK, BUY, NEXT, PREVIOUS, Visit


def advise(visit: Visit, goal: Goal) -> str:
    """Return the next action towards the purchase."""
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
    """Return the first product that may fit, else the button to further products."""
    for product in visit.on_page():
        if _may_fit(visit, goal, product):
            return product.id
    return NEXT if NEXT in visit.buttons() else BACK


def _may_fit(visit: Visit, goal: Goal, product: Product) -> bool:
    """Return whether a product is consistent with all pages seen so far."""
    left_out = _left_out(visit, goal, product)
    if product.type != goal.product.type or product.price > goal.highest:
        return False
    if product.id in visit.opened and not goals.has_options(goal, product):
        return False
    if product.id in visit.read:
        return left_out <= {*product.attributes}
    return len(left_out) <= visit.hidden


def _left_out(visit: Visit, goal: Goal, product: Product) -> set[str]:
    """Return the required attributes that the title does not show."""
    return {*goal.attributes} - {*product.attributes[visit.hidden :]}
