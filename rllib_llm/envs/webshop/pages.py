"""``webshop_pages-v0``: the shop of ``webshop_text-v0`` in a real browser."""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.browser.actions import (
    FORMAT_HINT,
    ActionProblem,
    PageAction,
    read_action,
)
from rllib_llm.envs.browser.client import Browser, require_selenium
from rllib_llm.envs.browser.elements import TYPED, Element, page_text, read_elements
from rllib_llm.envs.child_process import EnvProcessError
from rllib_llm.envs.parsing import require_float
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.webshop.env import WebShopText
from rllib_llm.envs.webshop.families import FAMILIES
from rllib_llm.envs.webshop.server import Shopping, ShopServer
from rllib_llm.envs.webshop.visit import Visit

_OMITTED = "#instruction"  # the observation has it
_STEP = "return document.readyState === 'complete' ? document.body.dataset.step : '';"
_LOOK = "return rllibPage.look(arguments[0]);"
_POLL_S = 0.005


@register_text_env("webshop_pages-v0")
class WebShopPages(WebShopText):
    """Shop on web pages: the tasks and the reward of ``webshop_text-v0``.

    A server on 127.0.0.1 serves the pages, a browser in a process of its own shows
    them. Actions are those of ``miniwob-v0``.

    Raises:
        MissingExtraError: If Selenium is not installed.
        ConfigError: At the first reset, if Chromium is not installed.
    """

    max_turns = 20
    format_hint = FORMAT_HINT
    _KEPT = WebShopText._KEPT | {"_browser", "_server"}

    def __init__(self, env_config: dict[str, Any] | None = None):
        require_selenium()
        super().__init__(env_config)
        self._browser: Browser | None = None
        self._server: ShopServer | None = None

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
        timeout_s: float = 60.0,
    ) -> str:
        """Draw an instruction, as ``webshop_text-v0`` does, and open the shop.

        Args:
            rng: Generator of the instruction.
            products: See ``webshop_text-v0``, like the next seven.
            families: See there.
            catalogue_seed: See there.
            attributes: See there.
            options: See there.
            hidden: See there.
            results: See there.
            short: See there.
            timeout_s: Limit of each call of the browser, in seconds.
        """
        self.timeout_s = require_float("timeout_s", timeout_s, 1.0, 3600.0)
        super().start(
            rng,
            products,
            families,
            catalogue_seed,
            attributes,
            options,
            hidden,
            results,
            short,
        )
        self._first: Visit = copy.deepcopy(self.visit)
        self.actions: list[PageAction] = []
        self.problem = ""
        self._load()
        shown = page_text(self.elements)
        return f"Instruction: {self.instruction}\n{shown}\n{self.format_hint}"

    def parse(self, completion: str) -> Any | None:
        """Return the last action, None if the page does not allow it."""
        self._tool = {}
        try:
            return read_action(completion, self.elements)
        except ActionProblem as problem:
            self.problem = str(problem)
            return None

    def reply(self, action: Any) -> TurnResult:
        """Apply the action and show the page."""
        self.actions.append(action)
        self._act(action)
        if self.visit.is_over:
            return self.outcome()
        return TurnResult(self._page(), success=False)

    def admissible_actions(self) -> list[str] | None:
        """Return None: any text can be typed."""
        return None

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the scripted expert's action on the page."""
        return self._on_page(super().expert_action(rng))

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a search for a random type of product, or a random click."""
        listed = super().admissible_actions()
        if listed is None:
            return self._on_page(super().random_action(rng), replaces=False)
        return self._on_page(listed[int(rng.integers(len(listed)))])

    def restore(self, state: bytes) -> None:
        """Return to a snapshot by replaying its actions."""
        super().restore(state)
        played, self.visit = self.actions, copy.deepcopy(self._first)
        self._load()
        for action in played:
            self._act(action)

    def close(self) -> None:
        """End the browser and the server."""
        if self._browser is not None:
            self._browser.close()
        if self._server is not None:
            self._server.close()
        self._browser = self._server = None

    def interrupt(self) -> None:
        """Kill the browser, so that a call that hangs returns with an error."""
        if self._browser is not None:
            self._browser.kill()

    # Helpers --------------------------------------------------------------------

    def _load(self) -> None:
        """Serve the visit, load its page and read it."""
        self._browser = self._browser or Browser()
        self._browser.timeout_s = self.timeout_s
        self._server = self._server or ShopServer()
        self._server.serve(self.visit, self.instruction, self._thanks)
        address = self._server.address
        try:
            self._browser.call("open", address)
        except EnvProcessError:
            # Nothing is lost yet: another browser can load the same page.
            self._browser.call("open", address)
        self._read()

    def _act(self, action: PageAction) -> None:
        """Apply an action, wait for the server if it asks one, and read the page."""
        shopping = self._shopping
        before = shopping.step
        submits = self._submits(action)
        self._require_browser().act(action)
        if submits:
            if not shopping.wait_beyond(before, self.timeout_s):
                self.interrupt()
                raise EnvProcessError(
                    f"The browser sent no request within {self.timeout_s:g} s."
                )
            kind, text, was_done = shopping.last
            self._tool = {"tool": kind, "tool_error": not was_done}
            if kind == "search":
                self._tool["query"] = text
        self._read()

    def _submits(self, action: PageAction) -> bool:
        """Return whether an action makes the browser ask the server."""
        if action.kind == "click":
            return self.elements[int(action.number or 0) - 1].kind == "button"
        focused = next((e.kind for e in self.elements if e.is_focused), "")
        return action.text == "enter" and action.kind == "press" and bool(focused)

    def _read(self) -> None:
        """Read the page once it is the server's current one."""
        browser, step = self._require_browser(), str(self._shopping.step)
        end = time.monotonic() + self.timeout_s
        while browser.call("run", _STEP) != step:
            if time.monotonic() > end:
                self.interrupt()
                raise EnvProcessError(
                    f"The browser did not show the page within {self.timeout_s:g} s."
                )
            time.sleep(_POLL_S)
        self.elements: list[Element] = read_elements(
            browser.call("run", _LOOK, _OMITTED)
        )

    def _page(self) -> str:
        shown = page_text(self.elements)
        return shown if self.short else f"Instruction: {self.instruction}\n{shown}"

    def _invalid(self) -> TurnResult:
        result = super()._invalid()
        result.observation = f"{self.problem}\n{self._page()}"
        return result

    def _on_page(self, text: str, *, replaces: bool = True) -> str:
        """Return the action on the page for one of ``webshop_text-v0``.

        Args:
            text: A search or click.
            replaces: Whether other words in the search field are replaced.
        """
        kind, words = super().parse(text) or ("", "")
        if kind == "search":
            field = next(e for e in self.elements if e.kind in TYPED)
            if field.value != words and (replaces or not field.value):
                return str(PageAction("type", field.number, words))
            words = "search"
        button = next(
            e
            for e in self.elements
            if e.kind == "button" and e.name.lower() == words.lower()
        )
        return str(PageAction("click", button.number))

    def _thanks(self) -> str:
        return self.outcome().observation

    @property
    def _shopping(self) -> Shopping:
        shopping = None if self._server is None else self._server.shopping
        assert shopping is not None, "The environment is closed."
        return shopping

    def _require_browser(self) -> Browser:
        assert self._browser is not None, "The environment is closed."
        return self._browser
