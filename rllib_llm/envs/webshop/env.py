"""``webshop_text-v0``: buy the product that an instruction describes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import last_tagged, require_bool, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.envs.webshop import goals
from rllib_llm.envs.webshop.expert import advise
from rllib_llm.envs.webshop.families import FAMILIES
from rllib_llm.envs.webshop.reward import score
from rllib_llm.envs.webshop.shop import catalogue
from rllib_llm.envs.webshop.visit import Visit

_ACTION = re.compile(r"\b(search|click)[ \t]*\[([^\[\]]*)\]", re.IGNORECASE)


@register_text_env("webshop_text-v0")
class WebShopText(TextEnv):
    """Search, look at products, choose options, buy. Return WebShop's reward.

    Pages, actions and the reward are those of WebShop (Yao et al. 2022,
    arXiv:2207.01206), the catalogue is synthetic. The splits share no goals: no type
    with the same set of attributes occurs in both.
    """

    max_turns = 15
    format_hint = "Use search[words] or click[button]."

    def start(
        self,
        rng: np.random.Generator,
        products: int = 1000,
        families: int = len(FAMILIES),
        catalogue_seed: int = 0,
        attributes: int = 2,
        options: int = 1,
        hidden: int = 0,
        results: int = 10,
        short: bool = False,
    ) -> str:
        """Draw an instruction.

        Args:
            rng: Generator of the instruction.
            products: Number of products in the catalogue, in [20, 100000].
            families: Number of product families, of four types each, in [1, 10].
            catalogue_seed: Seed of the catalogue, >= 0.
            attributes: Number of attributes in the instruction, in [0, 3].
            options: Number of options in the instruction, in [0, 2].
            hidden: Number of attributes that titles omit and only the pages of
                features show, starting with those of the instruction, in [0, 2].
            results: Number of products on a page of results, in [1, 50].
            short: Whether to use short titles, ids and prices, and to show the
                instruction on the first page only, for the smallest models; with at
                most 2 attributes.
        """
        require_int("products", products, 20, 100_000)
        require_int("families", families, 1, len(FAMILIES))
        require_int("catalogue_seed", catalogue_seed, 0, 2**31 - 1)
        self.short = require_bool("short", short)
        require_int("attributes", attributes, 0, 2 if short else 3)
        require_int("options", options, 0, 2)
        require_int("hidden", hidden, 0, 2)
        require_int("results", results, 1, 50)
        shop = catalogue(products, families, catalogue_seed, short)
        self.goal = goals.draw_goal(
            rng,
            shop,
            self.split,
            attributes=attributes,
            options=options,
            step=1 if short else 10,
        )
        self.instruction = goals.instruction(rng, self.goal, short)
        self.visit = Visit(shop, results, hidden)
        self._tool: dict[str, Any] = {}
        return (
            f"Instruction: {self.instruction}\n{self.format_hint}\n{self.visit.show()}"
        )

    def parse(self, completion: str) -> tuple[str, str] | None:
        """Return the last search or click."""
        self._tool = {}
        tagged = last_tagged(_ACTION, completion)
        return (tagged[0].lower(), tagged[1]) if tagged else None

    def reply(self, action: tuple[str, str]) -> TurnResult:
        """Open a page, or buy; an action without a button changes nothing."""
        kind, text = action
        is_search = kind == "search"
        was_done = self.visit.search(text) if is_search else self.visit.click(text)
        self._tool = {"tool": kind, "tool_error": not was_done}
        if is_search:
            self._tool["query"] = text
        if self.visit.is_over:
            return self.outcome()
        return TurnResult(self._page(), success=False)

    def more_info(self) -> dict[str, Any]:
        """Return the action of this turn, and whether the page allowed it."""
        return {"tool": None, "query": None, "tool_error": False, **self._tool}

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the action of the scripted expert; see the module ``expert``."""
        return advise(self.visit, self.goal)

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a search for a random type of product, or a random click."""
        listed = self.admissible_actions()
        if listed is None:
            ids = list(self.visit.shop.products)
            of = self.visit.shop.products[ids[int(rng.integers(len(ids)))]]
            return f"search[{of.type}]"
        return listed[int(rng.integers(len(listed)))]

    def admissible_actions(self) -> list[str] | None:
        """Return all clicks; None on the search page, where any text is valid."""
        buttons = self.visit.buttons()
        return [f"click[{b.lower()}]" for b in buttons] if buttons else None

    def _page(self) -> str:
        page = self.visit.show()
        return page if self.short else f"Instruction: {self.instruction}\n{page}"

    def outcome(self) -> TurnResult:
        """Return the result of the purchase."""
        worth = score(self.goal, self.visit.product, self.visit.chosen)
        metrics = {
            "r_type": worth.type,
            "attributes": float(worth.attributes),
            "options": float(worth.options),
            "price": float(worth.price),
        }
        return TurnResult(
            f"Thank you for shopping with us! Score: {worth.reward:.2f}",
            worth.reward,
            terminated=True,
            success=worth.is_full,
            metrics=metrics,
        )
