"""Pages of MiniWoB++ in a browser: starting a task, acting, and reading the state.

Only the HTML files of the package are used: its Python code requires another version of
Gymnasium than RLlib.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllib_llm.envs.browser.actions import PageAction
from rllib_llm.envs.browser.client import EXTRA, Browser, require_selenium
from rllib_llm.envs.browser.elements import Element, read_elements
from rllib_llm.envs.child_process import EnvProcessError
from rllib_llm.errors import ConfigError, MissingExtraError, did_you_mean

# What the pages show beside the task: the instruction, scores, and the start button.
_OMITTED = "#query, #reward-display, #click-canvas, #sync-task-cover"
# The clock of a task ends it after 10 s, and animations take time: neither the load of
# the machine nor the speed of the model shall change an episode. 2**31 - 1 ms is the
# longest time of a timer.
# The focus would go on from the episode before.
_START = """
if (document.activeElement) document.activeElement.blur();
core.EPISODE_MAX_TIME = 2147483647;
if (window.jQuery) jQuery.fx.off = true;
core.setDataMode(arguments[1]);
Math.seedrandom(arguments[0]);
core.startEpisodeReal();
"""
# Under load the driver may return before the page is loaded. The number in the address
# tells a page from the one before; the cover is made when a page has been loaded.
_IS_LOADED = """
return location.search === arguments[0] && typeof core === 'object' && !!core.cover_div;
"""
_IS_READY = "return WOB_TASK_READY;"
_READ = """
const said = core.getUtterance();
return {
  task: typeof said === 'string' ? said : said.utterance,
  done: WOB_DONE_GLOBAL,
  reward: WOB_RAW_REWARD_GLOBAL,
  elements: WOB_DONE_GLOBAL ? [] : rllibPage.look(arguments[0]),
};
"""
# Of the pages of all tasks, in pixels.
PAGE_SIZE = (160, 210)
# The blinking mark of the focus and moving parts would make pictures depend on time.
_STILL = """
if (!document.getElementById('rllib-still')) {
  const style = document.createElement('style');
  style.id = 'rllib-still';
  style.textContent = '* { caret-color: transparent !important; ' +
    'animation: none !important; transition: none !important; }';
  document.head.appendChild(style);
}
"""
_FAR = (490, 5)  # a place of the window beside the page
_POLL_S = 0.02
_INSTALL = "pip install --no-deps 'miniwob>=1.0,<1.2'"


@dataclasses.dataclass(frozen=True)
class PageState:
    """Content of a page, and the outcome so far.

    Attributes:
        task: The instruction.
        elements: The visible elements, empty at the end.
        is_done: Whether the task has ended.
        reward: The page's reward without its factor for time, in [-1, 1]; 0 before the
            end.
        png: Screenshot of the page as a file; empty if none was asked for, and at the
            end.
    """

    task: str
    elements: tuple[Element, ...]
    is_done: bool = False
    reward: float = 0.0
    png: bytes = b""

    @classmethod
    def read(cls, observed: Mapping[str, Any]) -> PageState:
        """Return the state that the script of this module returns."""
        is_done = bool(observed["done"])
        return cls(
            " ".join(str(observed["task"]).split()),
            tuple(read_elements(observed["elements"])),
            is_done,
            float(observed["reward"]) if is_done else 0.0,
        )


class MiniWobPages:
    """One browser with tasks of MiniWoB++.

    Pages that can be started in place stay open, each in a tab of its own.

    Attributes:
        has_screenshots: Whether the states have screenshots.
        limit: Number of pages that stay open, at least 1.
    """

    has_screenshots = False
    limit = 1

    def __init__(self) -> None:
        self._folder = pages_folder()
        self._num_loads = 0
        # The end of the address with which each task was loaded last; it has no other.
        self._searches: dict[str, str] = {}
        self.browser = Browser()

    def start(self, task: str, seed: int, split: str, anew: bool) -> PageState:
        """Start an episode on a task's page.

        Args:
            task: A name of :func:`task_names`.
            seed: Seed of the page's random numbers, in [0, 2**31).
            split: ``train`` or ``test``; some pages have two sets of data.
            anew: Whether the page is loaded although it is open, so that nothing of
                earlier episodes is left on it; that takes several times as long.

        Raises:
            EnvProcessError: If the browser fails.
        """
        tab = "" if anew or self.limit == 1 else task
        if anew or not self._is_open(task, tab):
            self._load(task, tab)
        if self.has_screenshots:
            self.browser.call("run", _STILL)
            # The mouse is where the last episode has left it, and what is below it may
            # look different.
            self.browser.call("point", *_FAR, False)
        self.browser.call("run", _START, seed, split)
        self._wait_until(_IS_READY)
        return self.read()

    def act(self, action: PageAction) -> PageState:
        """Apply an action that the page allows.

        Raises:
            EnvProcessError: If the browser fails; the episode is lost then.
        """
        self.browser.act(action)
        return self.read()

    def read(self) -> PageState:
        """Return what the page shows."""
        state = PageState.read(self.browser.call("run", _READ, _OMITTED))
        if not self.has_screenshots or state.is_done:
            return state
        png = self.browser.call("screenshot", *PAGE_SIZE)
        return dataclasses.replace(state, png=png)

    def _load(self, task: str, tab: str) -> None:
        self._searches.pop(task, None)  # until it is loaded
        self._num_loads += 1
        search = f"?load={self._num_loads}"
        address = (self._folder / f"{task}.html").as_uri() + search
        try:
            self.browser.call("show", tab, self.limit)
            self.browser.call("open", address)
        except EnvProcessError:
            # Nothing is lost yet: another browser can load the same page.
            self.browser.call("show", tab, self.limit)
            self.browser.call("open", address)
        self._wait_until(_IS_LOADED, search)
        self._searches[task] = search

    def _is_open(self, task: str, tab: str) -> bool:
        """Return whether the browser works and its tab shows the task's page."""
        if task not in self._searches:
            return False
        try:
            self.browser.call("show", tab, self.limit)
            return bool(self.browser.call("run", _IS_LOADED, self._searches[task]))
        except EnvProcessError:
            return False  # another browser is started for the next call

    def _wait_until(self, script: str, *arguments: str) -> None:
        end = time.monotonic() + self.browser.timeout_s
        while not self.browser.call("run", script, *arguments):
            if time.monotonic() > end:
                self.browser.kill()
                raise EnvProcessError(
                    f"The page was not ready within {self.browser.timeout_s:g} s."
                )
            time.sleep(_POLL_S)


def require_pages() -> None:
    """Check that Selenium and the pages are installed.

    Raises:
        MissingExtraError: If one of them is not.
    """
    require_selenium()
    pages_folder()


@functools.lru_cache
def pages_folder() -> Path:
    """Return the folder of the pages in the installed package.

    Raises:
        MissingExtraError: If it is not installed.
    """
    # Found without being imported: the package needs a newer Gymnasium than RLlib.
    spec = importlib.util.find_spec("miniwob")
    for place in (spec and spec.submodule_search_locations) or ():
        folder = Path(place) / "html" / "miniwob"
        if folder.is_dir():
            return folder
    raise MissingExtraError(
        "This feature needs the package 'miniwob', of which only the pages are used. "
        f"Install it with: pip install 'rllib-llm[{EXTRA}]' && {_INSTALL}"
    )


def task_names() -> frozenset[str]:
    """Return the names of all tasks that the package has pages for."""
    return frozenset(path.stem for path in pages_folder().glob("*.html"))


def check_task(task: str) -> None:
    """Check that a task has a page.

    Raises:
        ConfigError: If it has none.
    """
    if task not in task_names():
        hint = did_you_mean(str(task), task_names())
        raise ConfigError(f"Unknown MiniWoB++ task={task!r}. {hint}")
