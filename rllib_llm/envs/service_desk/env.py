"""``service_desk-v0``: follow a policy while a customer asks for changes."""

from __future__ import annotations

from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import require_bool, require_float, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.service_desk import desk as desks
from rllib_llm.envs.service_desk import words
from rllib_llm.envs.service_desk.customer import Customer, Request
from rllib_llm.envs.text_env import in_split
from rllib_llm.envs.tool_env import ToolEnv

_DONE = {
    "cancel": "cancelled",
    "refund": "refunded",
    "move": "moved",
    "exchange": "exchanged",
}
_OTHERS = 3  # further customers, each with as many orders


@register_text_env("service_desk-v0")
class ServiceDesk(ToolEnv):
    """Serve a customer by the policy. Return 1 for a correct final state.

    The orders must equal those after exactly the allowed changes, no rule may be
    violated on the way, and the customer must learn the results. The task has the form
    of tau-bench (Yao et al. 2024, arXiv:2406.12045).
    """

    max_turns = 18
    tool_format = "tags"
    format_hint = "Use a tool, or say something to the customer."

    def start(
        self,
        rng: np.random.Generator,
        rules: int = 2,
        requests: int = 1,
        orders: int = 2,
        forbidden: float = 0.4,
        stubborn: float = 0.5,
        short: bool = False,
    ) -> str:
        """Draw orders and a customer.

        Args:
            rng: Generator of everything.
            rules: Number of rules of the policy, from 1 to 5. The first four add the
                requests cancel, refund, move, exchange; the fifth requires a
                confirmation before changes.
            requests: Number of the customer's requests, from 1 to 3.
            orders: Number of orders per customer, from ``requests`` to 6.
            forbidden: Probability that the policy forbids a request.
            stubborn: Probability that the customer insists after a refusal.
            short: Whether to use first names, and one-digit numbers and prices, for
                the smallest models; with at most 2 orders per customer.
        """
        require_int("rules", rules, 1, 5)
        require_int("requests", requests, 1, 3)
        require_bool("short", short)
        require_int("orders", orders, requests, 2 if short else 6)
        require_float("forbidden", forbidden, 0.0, 1.0)
        require_float("stubborn", stubborn, 0.0, 1.0)
        in_force = list(desks.RULES)[:rules]
        kinds = in_force[:4]
        while True:
            name = self._draw_orders(rng, orders, short)
            wanted = self._draw_requests(rng, name, requests, kinds, forbidden)
            # The text of the first request decides the split; each draw replaces all
            # orders.
            if in_split(wanted[0].asked, self.split):
                break
        self.customer = Customer(name, wanted, bool(rng.random() < stubborn))
        self.desk = desks.Desk(self.orders, needs_yes="confirm" in in_force)
        writing = [getattr(self.desk, kind) for kind in kinds]
        self.tools = [self.desk.find_user, self.desk.get_order, *writing]
        policy = " ".join(desks.RULES[rule] for rule in in_force)
        return (
            f"Policy: {policy} Other text is said to the customer.\n"
            f"Customer: {wanted[0].asked}"
        )

    def judge(self, answer: str) -> TurnResult:
        """Return the customer's reply; the episode ends when the customer leaves."""
        reply = self.customer.reply(answer)
        self.desk.confirmed |= self.customer.yes_to
        if not self.customer.has_left:
            return TurnResult(f"Customer: {reply}", success=False)
        solved = (
            desks.state_hash(self.orders) == self.goal
            and not self.desk.violations
            and all(request.is_informed for request in self.customer.requests)
        )
        return TurnResult(
            f"Customer: {reply}", float(solved), terminated=True, success=solved
        )

    def more_info(self) -> dict[str, Any]:
        """Return the tools' use in this turn, and the violated rules."""
        return {**super().more_info(), "violations": list(self.desk.violations)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one turn; ``info["metrics"]`` counts violated rules."""
        text, reward, terminated, truncated, info = super().step(action)
        info["metrics"]["violations"] = float(len(info["violations"]))
        return text, reward, terminated, truncated, info

    # Scripted policies ----------------------------------------------------------------

    def expert_action(self, rng: np.random.Generator) -> str:
        """Look up the order, ask for details, act if allowed, report the result."""
        customer, request = self.customer, self.customer.request
        if not customer.name_given:
            return "What is your name?"
        if customer.name not in self.desk.looked_up:
            return self.write_call("find_user", name=customer.name)
        if not self._was_shown(request.number):
            return self.write_call("get_order", order=request.number)
        if not request.allowed:
            status = self._required_status(request)
            done = _DONE[request.kind]
            return f"Order {request.number} cannot be {done}, it is {status}."
        if request.detail and not request.detail_given:
            return f"What {'address' if request.kind == 'move' else 'colour'}?"
        if self.desk.needs_yes and request.number not in self.desk.confirmed:
            return f"Shall order {request.number} be {_DONE[request.kind]}?"
        if self._is_open(request):
            return self.write_call(request.kind, **self._arguments(request))
        price = f", price {self.orders[request.number]['price']}"
        report = f"Order {request.number} is {_DONE[request.kind]}"
        return f"{report}{price if request.kind == 'refund' else ''}."

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any possible question, statement or call."""
        number = int(rng.choice(list(self.orders)))
        order = self.orders[number]
        statements = [
            "What is your name?",
            f"Order {number} is {rng.choice(list(_DONE.values()))}.",
            f"Order {number} cannot be cancelled, it is {order['status']}.",
        ]
        values = {
            "order": number,
            "name": order["name"],
            "address": self._draw_address(rng),
            "colour": str(rng.choice(words.COLOURS)),
        }
        calls = [
            self.write_call(n, **{a: values[a] for a in t.parameters["properties"]})
            for n, t in self.tool_set.tools.items()
        ]
        return str(rng.choice([*statements, *calls]))

    def _was_shown(self, number: int) -> bool:
        return any(
            r.call.name == "get_order" and r.call.arguments.get("order") == number
            for r in self._results
        )

    def _required_status(self, request: Request) -> str:
        return request.required_words[-1]

    def _is_open(self, request: Request) -> bool:
        order = self.orders[request.number]
        if order["status"] not in desks.STATUSES:
            return False
        field = {"move": "address", "exchange": "colour"}.get(request.kind)
        return field is None or order[field] != request.detail

    @staticmethod
    def _arguments(request: Request) -> dict[str, Any]:
        detail = {"move": "address", "exchange": "colour"}.get(request.kind)
        more = {detail: request.detail} if detail else {}
        return {"order": request.number, **more}

    # Random draws ---------------------------------------------------------------------

    def _draw_orders(self, rng: np.random.Generator, count: int, short: bool) -> str:
        """Draw all customers' orders; return the name of the one who asks.

        Args:
            rng: Generator of everything.
            count: Number of orders per customer.
            short: Whether names, numbers and prices are short.
        """
        names: list[str] = []
        while len(names) < 1 + _OTHERS:
            name = str(rng.choice(words.FIRST_NAMES))
            name = name if short else f"{name} {rng.choice(words.LAST_NAMES)}"
            if name not in names:
                names.append(name)
        least, prices = (1, (1, 10)) if short else (100, (10, 100))
        numbers = rng.choice(9 * least, len(names) * count, replace=False) + least
        pairs = [(c, i) for c in words.COLOURS for i in words.ITEMS]
        self.orders: desks.Orders = {}
        for k, name in enumerate(names):
            for j, pair in enumerate(rng.choice(len(pairs), count, replace=False)):
                colour, item = pairs[pair]
                self.orders[int(numbers[k * count + j])] = {
                    "name": name,
                    "item": item,
                    "colour": colour,
                    "price": int(rng.integers(*prices)),
                    "status": str(rng.choice(desks.STATUSES)),
                    "address": self._draw_address(rng),
                }
        return names[0]

    @staticmethod
    def _draw_address(rng: np.random.Generator) -> str:
        return f"{rng.integers(1, 100)} {rng.choice(words.STREETS)} Street"

    def _draw_requests(
        self,
        rng: np.random.Generator,
        name: str,
        count: int,
        kinds: list[str],
        forbidden: float,
    ) -> list[Request]:
        """Draw the customer's requests, and set the goal."""
        owned = [
            number for number, order in self.orders.items() if order["name"] == name
        ]
        requests = []
        for number in rng.choice(owned, count, replace=False):
            kind = str(rng.choice(kinds))
            others = [s for s in desks.STATUSES if s != desks.ALLOWED[kind]]
            allowed = bool(rng.random() >= forbidden)
            order = self.orders[int(number)]
            # The status alone decides whether the policy allows the request.
            order["status"] = (
                desks.ALLOWED[kind] if allowed else str(rng.choice(others))
            )
            requests.append(self._request(rng, kind, int(number), allowed))
        goal = self.orders
        for request in requests:
            if request.allowed:
                goal = desks.changed(goal, request.number, **_outcome(request))
        self.goal = desks.state_hash(goal)
        return requests

    def _request(
        self, rng: np.random.Generator, kind: str, number: int, allowed: bool
    ) -> Request:
        order = self.orders[number]
        others = [c for c in words.COLOURS if c != order["colour"]]
        detail = {"move": self._draw_address(rng), "exchange": str(rng.choice(others))}
        required_words = [str(number)]
        if not allowed:
            required_words.append(order["status"])
        elif kind == "refund":
            required_words.append(str(order["price"]))
        what = f"{order['colour']} {order['item']}"
        return Request(
            kind, number, what, detail.get(kind, ""), allowed, tuple(required_words)
        )


def _outcome(request: Request) -> dict[str, str]:
    """Return the fields that a request changes in its order."""
    return {
        "cancel": {"status": "cancelled"},
        "refund": {"status": "refunded"},
        "move": {"address": request.detail},
        "exchange": {"colour": request.detail},
    }[request.kind]
