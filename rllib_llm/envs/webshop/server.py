"""HTTP server of the shop on 127.0.0.1, for browsers and for people."""

from __future__ import annotations

import dataclasses
import threading
import urllib.parse
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rllib_llm.envs.webshop.html_pages import page_html
from rllib_llm.envs.webshop.visit import Visit

_MOST_BYTES = 10_000  # of a request; a button's name is short


@dataclasses.dataclass
class Shopping:
    """A visit that is served.

    Attributes:
        visit: The visit; requests change it.
        instruction: The task.
        sold: Returns the text after the purchase.
        step: Number of the page, raised by each request for an action.
        last: Kind, text and effect of the last action: ("search", "sofa", True).
        changed: Notified after each action.
    """

    visit: Visit
    instruction: str
    sold: Callable[[], str]
    step: int = 0
    last: tuple[str, str, bool] = ("", "", False)
    changed: threading.Condition = dataclasses.field(
        default_factory=threading.Condition
    )

    def apply(self, kind: str, text: str) -> None:
        """Search or click; a button that the page lacks has no effect."""
        with self.changed:
            if not self.visit.is_over:
                act = self.visit.search if kind == "search" else self.visit.click
                self.last = (kind, text, act(text))
            self.step += 1
            self.changed.notify_all()

    def page(self) -> str:
        """Return the open page as HTML."""
        with self.changed:
            sold = self.sold() if self.visit.is_over else ""
            return page_html(self.visit, self.instruction, self.step, sold)

    def wait_beyond(self, step: int, timeout_s: float) -> bool:
        """Wait until more than ``step`` actions were requested; False if late."""
        with self.changed:
            return self.changed.wait_for(lambda: self.step > step, timeout_s)


class ShopServer:
    """Serves one :class:`Shopping` at a time, on 127.0.0.1 only.

    Attributes:
        shopping: The visit that is served; None before :meth:`serve`.

    Args:
        port: Port to listen on; 0: any free one.
    """

    def __init__(self, port: int = 0):
        self.shopping: Shopping | None = None
        handler = type("Handler", (_Handler,), {"shop": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Address of the open page."""
        return f"http://127.0.0.1:{self._server.server_port}/"

    def serve(
        self, visit: Visit, instruction: str, sold: Callable[[], str]
    ) -> Shopping:
        """Serve a visit in place of the one before, and return it.

        Its steps continue those of the one before: no two pages have the same number.
        """
        step = 0 if self.shopping is None else self.shopping.step + 1
        self.shopping = Shopping(visit, instruction, sold, step)
        return self.shopping

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    shop: ShopServer

    def do_GET(self) -> None:
        """Show the page, or search."""
        parts = urllib.parse.urlsplit(self.path)
        shopping = self.shop.shopping
        if shopping is None or parts.path not in ("/", "/search"):
            self.send_error(HTTPStatus.NOT_FOUND)
        elif parts.path == "/":
            self._show(shopping)
        else:
            shopping.apply("search", _field(parts.query, "words"))
            self._go_on()

    def do_POST(self) -> None:
        """Click a button."""
        shopping = self.shop.shopping
        length = int(self.headers.get("Content-Length") or 0)
        if shopping is None or self.path != "/click" or length > _MOST_BYTES:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = self.rfile.read(length).decode("utf-8", "replace")
        shopping.apply("click", _field(body, "button"))
        self._go_on()

    def log_message(self, format: str, *args: object) -> None:
        """Write no log of requests."""

    def _show(self, shopping: Shopping) -> None:
        page = shopping.page().encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(page)

    def _go_on(self) -> None:
        # A redirection, so that loading the page again does not repeat the action.
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", "/")
        self.send_header("Content-Length", "0")
        self.end_headers()


def _field(query: str, name: str) -> str:
    return urllib.parse.parse_qs(query, keep_blank_values=True).get(name, [""])[0]
