"""Headless Chromium, driven by Selenium; it runs in a process of its own.

Only :class:`~rllib_llm.envs.browser.client.Browser` builds it, in a child process.
"""

from __future__ import annotations

import base64
import importlib.resources
import shutil
from collections.abc import Mapping
from typing import Any

# Pages of environments are local: files, or servers on 127.0.0.1. All other addresses
# are sent to a proxy that does not exist, and no background service is started.
_FLAGS = (
    "--headless",
    "--no-sandbox",  # it needs rights that containers lack
    "--disable-gpu",
    "--disable-dev-shm-usage",  # small in containers
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--proxy-server=http://127.0.0.1:9",
    "--remote-debugging-pipe",  # makes the browser end with its driver
    "--force-device-scale-factor=1",
)
# Pages that were left stay in memory until the browser is short of it, 2 MiB each.
_COLLECTED_EVERY = 20  # pages
_OUTER_HEIGHT = 200  # pixels of the window that a page does not get, and more
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy")


class Chromium:
    """A browser whose calls go to one of its tabs, of which it starts with one.

    Args:
        binary: Path of Chromium.
        driver: Path of chromedriver.
        folder: Empty folder for the browser's files; removed by :meth:`close`.
        width: Width of the window in pixels.
        height: Least height of the page in pixels.
    """

    def __init__(self, binary: str, driver: str, folder: str, width: int, height: int):
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        self._folder = folder
        self._num_opened = 0
        options = webdriver.ChromeOptions()
        options.binary_location = binary
        size = f"--window-size={width},{height + _OUTER_HEIGHT}"
        for flag in (*_FLAGS, size, f"--user-data-dir={folder}/profile"):
            options.add_argument(flag)
        # An open dialog would make every later call fail.
        options.unhandled_prompt_behavior = "dismiss"
        self._driver = webdriver.Chrome(options=options, service=Service(driver))
        tools = importlib.resources.files(__package__).joinpath("page.js")
        self._tools = tools.read_text("utf-8")
        self._prepare_tab()
        # The tab used last stands last.
        self._tabs = {"": self._driver.current_window_handle}

    def show(self, tab: str, limit: int) -> None:
        """Send all later calls to a tab, which is opened empty if it is not there.

        Args:
            tab: Any name; ``""`` is the first one's.
            limit: Number of tabs to keep, at least 1: those used longest ago are
                closed.
        """
        if tab == next(reversed(self._tabs)):
            return
        if tab in self._tabs:
            handle = self._tabs.pop(tab)
            self._driver.switch_to.window(handle)
        else:
            self._driver.switch_to.new_window("tab")
            handle = self._driver.current_window_handle
            self._prepare_tab()
        self._tabs[tab] = handle
        while len(self._tabs) > limit:
            self._driver.switch_to.window(self._tabs.pop(next(iter(self._tabs))))
            self._driver.close()
            self._driver.switch_to.window(handle)

    def open(self, address: str) -> None:
        """Load a page and wait until it is ready."""
        self._num_opened += 1
        if self._num_opened % _COLLECTED_EVERY == 0:
            self._driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        self._driver.get(address)

    def run(self, script: str, *arguments: Any) -> Any:
        """Return the value of a script, a function body with ``arguments``."""
        return self._driver.execute_script(script, *arguments)

    def type(self, text: str) -> None:
        """Type a text into the focused element; a text without letters deletes it."""
        from selenium.webdriver.common.keys import Keys

        self._driver.switch_to.active_element.send_keys(text or Keys.DELETE)

    def press(self, key: str) -> None:
        """Press a key, e.g. ``enter``."""
        from selenium.webdriver.common.keys import Keys

        self._driver.switch_to.active_element.send_keys(_key(Keys, key))

    def point(self, x: float, y: float, clicks: bool) -> None:
        """Move the mouse to a place of the window, and click there if ``clicks``.

        Unlike a script's events, these reach what is on top at the place, with the
        focus and the marks that they bring about.

        Args:
            x: Pixels from the left of the window.
            y: Pixels from its top.
            clicks: Whether the left button is pressed and released.
        """
        kinds = ["mouseMoved", *(["mousePressed", "mouseReleased"] if clicks else [])]
        for kind in kinds:
            event: dict[str, Any] = {"type": kind, "x": x, "y": y}
            if kind != "mouseMoved":
                event |= {"button": "left", "clickCount": 1}
            self._driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)

    def screenshot(self, width: int, height: int) -> bytes:
        """Return a PNG file of the upper left part of the page, in pixels."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self._driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"format": "png", "clip": clip}
        )
        return base64.b64decode(shot["data"])

    def close(self) -> None:
        """End the browser and its driver, and remove its files."""
        try:
            self._driver.quit()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _prepare_tab(self) -> None:
        # Without it pages get focus events only if their tab is in front.
        self._driver.execute_cdp_cmd(
            "Emulation.setFocusEmulationEnabled", {"enabled": True}
        )
        self._driver.execute_cdp_cmd(
            "Page.addScriptToEvaluateOnNewDocument", {"source": self._tools}
        )


def environ_of_browser(given: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return the variables of the browser's process.

    Selenium must not look for newer drivers or send statistics, and must ask
    chromedriver without a proxy.

    Args:
        given: Variables of this process.
        folder: Place of temporary files, of which a killed browser leaves some.
    """
    kept = {k: v for k, v in given.items() if k.lower() not in _PROXIES}
    return {**kept, "SE_OFFLINE": "true", "SE_AVOID_STATS": "true", "TMPDIR": folder}


def find_program(names: tuple[str, ...]) -> str | None:
    """Return the path of the first program that is installed, None without one."""
    return next(filter(None, map(shutil.which, names)), None)


def _key(keys: Any, name: str) -> str:
    arrow = "ARROW_" if name in ("up", "down", "left", "right") else ""
    return str(getattr(keys, arrow + name.upper()))
