"""The desk's orders, and the tools that read and change them."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

# Status in which the policy allows each change.
ALLOWED = {
    "cancel": "pending",
    "refund": "delivered",
    "move": "pending",
    "exchange": "delivered",
}
RULES = {
    "cancel": "Cancel only pending orders.",
    "refund": "Refund only delivered orders, and say the price.",
    "move": "Move only pending orders; ask for the address.",
    "exchange": "Exchange only delivered orders; ask for the colour.",
    "confirm": "Ask for a yes before any change.",
}
STATUSES = ("pending", "shipped", "delivered")

Orders = dict[int, dict[str, Any]]


class Desk:
    """Orders, and tools on them: the public methods.

    A tool performs any possible change. ``violations`` records changes that the policy
    forbids. The model reads the tools' docstrings, so they are part of the prompt.

    Args:
        orders: Orders by number: ``name``, ``item``, ``colour``, ``price``,
            ``status``, ``address``.
        needs_yes: Whether the customer must confirm a change.

    Attributes:
        looked_up: Names of the customers that were looked up.
        confirmed: Numbers of orders whose change the customer has confirmed.
        violations: Violated rules, in order.
    """

    def __init__(self, orders: Orders, needs_yes: bool):
        self._orders = orders
        self.needs_yes = needs_yes
        self.looked_up: set[str] = set()
        self.confirmed: set[int] = set()
        self.violations: list[str] = []

    def find_user(self, name: str) -> str:
        """List a customer's orders.

        Args:
            name: First and last name.
        """
        named = {
            n: o
            for n, o in self._orders.items()
            if o["name"].casefold() == name.strip().casefold()
        }
        if not named:
            raise LookupError("no such customer")
        self.looked_up |= {order["name"] for order in named.values()}
        return "\n".join(f"{n} {o['colour']} {o['item']}" for n, o in named.items())

    def get_order(self, order: int) -> str:
        """Show an order's status and price.

        Args:
            order: Its number.
        """
        fields = self._get(order)
        what = f"{fields['colour']} {fields['item']}"
        return f"{order} {what}: {fields['status']}, price {fields['price']}"

    def cancel(self, order: int) -> str:
        """Cancel an order.

        Args:
            order: Its number.
        """
        self._change("cancel", order, status="cancelled")
        return f"Order {order} is cancelled."

    def refund(self, order: int) -> str:
        """Refund an order.

        Args:
            order: Its number.
        """
        self._change("refund", order, status="refunded")
        return f"Order {order} is refunded."

    def move(self, order: int, address: str) -> str:
        """Send an order to another address.

        Args:
            order: Its number.
            address: Number and street.
        """
        self._change("move", order, address=address.strip())
        return f"Order {order} is moved."

    def exchange(self, order: int, colour: str) -> str:
        """Exchange an order for another colour.

        Args:
            order: Its number.
            colour: The new one.
        """
        self._change("exchange", order, colour=colour.strip())
        return f"Order {order} is exchanged."

    def _get(self, order: int) -> dict[str, Any]:
        if order not in self._orders:
            raise LookupError(f"no order {order}")
        return self._orders[order]

    def _change(self, kind: str, number: int, **fields: str) -> None:
        order = self._get(number)
        if order["status"] not in STATUSES:
            raise ValueError(f"order {number} is {order['status']}")
        if order["name"] not in self.looked_up:
            self.violations.append("the customer was not looked up")
        if order["status"] != ALLOWED[kind]:
            self.violations.append(RULES[kind])
        if self.needs_yes and number not in self.confirmed:
            self.violations.append(RULES["confirm"])
        order.update(fields)


def changed(orders: Orders, number: int, **fields: str) -> Orders:
    """Return a copy of the orders with one of them changed."""
    copied = copy.deepcopy(orders)
    copied[number].update(fields)
    return copied


def state_hash(orders: Orders) -> str:
    """Return a hash that is equal for equal orders."""
    text = json.dumps(sorted(orders.items()), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
