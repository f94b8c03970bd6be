"""State of a visit to the shop: the open page, its buttons and its text."""

from __future__ import annotations

import dataclasses

from rllib_llm.envs.webshop.shop import Catalogue, Product

BACK, PREVIOUS, NEXT, BUY = "Back to Search", "< Prev", "Next >", "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews")


@dataclasses.dataclass
class Visit:
    """A customer's position in the shop, and the pages seen so far.

    Attributes:
        shop: The catalogue.
        results: Number of products on a page of results.
        hidden: Number of attributes that titles omit.
        page: "search", "results", "item", or one of ``SUB_PAGES``.
        query: Query of the last search.
        result_ids: Ids of the products that it returned.
        number: Current page of results, from 1.
        item: Id of the current or last product.
        chosen: Chosen options of that product, by name.
        opened: Ids of products whose options were shown.
        read: Ids of products whose features were shown.
        is_over: Whether a product was bought.
    """

    shop: Catalogue
    results: int
    hidden: int
    page: str = "search"
    query: str = ""
    result_ids: list[str] = dataclasses.field(default_factory=list)
    number: int = 1
    item: str = ""
    chosen: dict[str, str] = dataclasses.field(default_factory=dict)
    opened: set[str] = dataclasses.field(default_factory=set)
    read: set[str] = dataclasses.field(default_factory=set)
    is_over: bool = False

    @property
    def product(self) -> Product:
        """The current product."""
        return self.shop.products[self.item]

    def on_page(self) -> list[Product]:
        """Return the products on the current page of results."""
        first = (self.number - 1) * self.results
        ids = self.result_ids[first : first + self.results]
        return [self.shop.products[id_] for id_ in ids]

    def buttons(self) -> list[str]:
        """Return the labels of all buttons of the page."""
        if self.page == "search":
            return []
        if self.page == "results":
            turn = [PREVIOUS] * (self.number > 1) + [NEXT] * self._has_more()
            return [BACK, *turn, *(p.id for p in self.on_page())]
        if self.page in SUB_PAGES:
            return [BACK, PREVIOUS]
        values = (v for values in self.product.options.values() for v in values)
        return [BACK, PREVIOUS, *values, *SUB_PAGES, BUY]

    def search(self, words: str) -> bool:
        """Search if the page has a search bar; return whether it has."""
        if self.page != "search":
            return False
        self.query, self.number = words, 1
        self.result_ids = [product.id for product in self.shop.search(words)]
        self._open_results()
        return True

    def click(self, name: str) -> bool:
        """Click a button, ignoring case; return whether the page has it."""
        buttons = {button.lower(): button for button in self.buttons()}
        button = buttons.get(name.lower())
        if button is None:
            return False
        if button == BACK:
            self.page = "search"
        elif button == BUY:
            self.is_over = True
        elif button in SUB_PAGES:
            self.page = button
            if button == "Features":
                self.read.add(self.item)
        elif button in (PREVIOUS, NEXT):
            self._turn(button)
        elif self.page == "results":
            self.item, self.page = button, "item"
            self.opened.add(button)
        else:
            self._choose(button)
        return True

    def show(self) -> str:
        """Return the text of the page, with buttons in brackets."""
        if self.page == "search":
            return "[Search]"
        if self.page == "results":
            return self._show_results()
        head = f"[{BACK}] [{PREVIOUS}]"
        if self.page in SUB_PAGES:
            return f"{head}\n{self._show_part()}"
        product = self.product
        rated = f" Rating: {product.rating}" if product.brand else ""
        lines = [head, self._title(product), f"Price: {_dollars(product)}{rated}"]
        for name, values in product.options.items():
            chosen = f" = {self.chosen[name]}" if name in self.chosen else ""
            lines.append(f"{name}{chosen}: " + " ".join(f"[{v}]" for v in values))
        return "\n".join([*lines, " ".join(f"[{b}]" for b in (*SUB_PAGES, BUY))])

    def _turn(self, button: str) -> None:
        """Go back from a sub-page to the item, then to results, or turn a page."""
        if self.page in SUB_PAGES:
            self.page = "item"
        elif self.page == "item":
            self._open_results()
        else:
            self.number += 1 if button == NEXT else -1

    def _open_results(self) -> None:
        self.page, self.chosen = "results", {}

    def _choose(self, value: str) -> None:
        for name, values in self.product.options.items():
            if value in values:
                self.chosen[name] = value

    def _has_more(self) -> bool:
        return self.number * self.results < len(self.result_ids)

    def _title(self, product: Product) -> str:
        return product.title(self.hidden)

    def _show_results(self) -> str:
        turn = f" [{PREVIOUS}]" * (self.number > 1) + f" [{NEXT}]" * self._has_more()
        head = (
            f"[{BACK}] Page {self.number} (Total results: {len(self.result_ids)}){turn}"
        )
        shown = [f"[{p.id}] {self._title(p)} {_dollars(p)}" for p in self.on_page()]
        return "\n".join([head, *shown])

    def _show_part(self) -> str:
        product = self.product
        if self.page == "Features":
            return "\n".join(f"- {attribute}" for attribute in product.attributes)
        if self.page == "Reviews":
            return "\n".join(product.remarks) or "No reviews."
        made = f"{product.brand} makes this" if product.brand else "This is a"
        family = product.family
        first = product.attributes[0]
        return (
            f"{made} {product.type} for {family.department}, {family.name}. "
            f"It is {first}."
        )


def _dollars(product: Product) -> str:
    return f"${product.price:.2f}" if product.brand else f"${product.price:.0f}"
