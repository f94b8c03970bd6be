"""Adapter of MiniWoB++: tasks on small web pages, in a real browser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.adapters.miniwob_experts import EXPERTS
from rllib_llm.envs.adapters.miniwob_pages import (
    PAGE_SIZE,
    MiniWobPages,
    PageState,
    check_task,
    require_pages,
)
from rllib_llm.envs.adapters.miniwob_views import PageView, ScreenView, page_view
from rllib_llm.envs.browser.actions import FORMAT_HINT, ActionProblem, PageAction
from rllib_llm.envs.parsing import require_float, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv, in_split
from rllib_llm.errors import ConfigError

# Pages that are started again in place, as MiniWoB++'s own environment does: nothing of
# the episode before is left on them. Tabs and dialogs keep marks of it.
RESTARTED = frozenset(EXPERTS) - {
    "click-dialog",
    "click-dialog-2",
    "click-tab",
    "click-tab-2",
}


@register_text_env("miniwob-v0")
class MiniWob(TextEnv):
    """Carry out an instruction on a web page; ``task`` selects the kind of page.

    The model reads the page as numbered elements or sees its picture (``mode``).

    MiniWoB++ (Liu et al. 2018, arXiv:1802.08802), after World of Bits (Shi et al.
    2017). Each environment has a browser in a process of its own. The reward at the end
    is the page's, without its factor for time; 1 is success. A browser that fails or
    hangs is replaced; the episode is an error then, not a failure of the agent.

    A snapshot holds the page's seed and the actions so far; restoring it replays them.

    Raises:
        MissingExtraError: If Selenium or the pages of MiniWoB++ are not installed.
        ConfigError: At the first reset, if Chromium is not installed.
    """

    max_turns = 15
    format_hint = FORMAT_HINT
    _KEPT = TextEnv._KEPT | {"_pages"}

    def __init__(self, env_config: dict[str, Any] | None = None):
        require_pages()
        super().__init__(env_config)
        self._pages: MiniWobPages | None = None

    def start(
        self,
        rng: np.random.Generator,
        task: str | Sequence[str] = "click-test-2",
        timeout_s: float = 60.0,
        mode: str = "dom",
        pixels: int = PAGE_SIZE[0],
        grid: Sequence[int] = PAGE_SIZE,
        open_pages: int = 8,
    ) -> TurnResult:
        """Draw the page.

        Args:
            rng: Generator of the task and of the page's seed.
            task: A task of MiniWoB++, or a list of which each episode draws one.
            timeout_s: Limit of each call of the browser, in seconds.
            mode: ``"dom"``: the page is a list of numbered elements, in text.
                ``"screen"``: it is a picture, and clicks name places.
            pixels: Width of the picture, in [16, 160]; its height is 21/16 of it.
            grid: Columns and rows of the places that can be clicked; by default the
                page's pixels.
            open_pages: Number of pages that stay open in the browser, from 1 to 64:
                tasks whose page is open start in place, without loading it.
        """
        self.view: PageView = page_view(mode, pixels, grid)
        tasks = [task] if isinstance(task, str) else list(task)
        if not tasks:
            raise ConfigError("task=[] must be a task of MiniWoB++, or several.")
        for each in tasks:
            check_task(each)
        self.timeout_s = require_float("timeout_s", timeout_s, 1.0, 3600.0)
        self.open_pages = require_int("open_pages", open_pages, 1, 64)
        self.task = tasks[int(rng.integers(len(tasks)))]
        while True:
            seed = int(rng.integers(2**31))
            if in_split(f"{self.task} {seed}", self.split):
                break
        self._game = (self.task, seed, self.split)
        self.actions: list[PageAction] = []
        self.problem = ""
        self.state = self._start()
        text, images = self.view.shown(self.state, self.state.task, self.view.hint)
        return TurnResult(text, images=images)

    def parse(self, completion: str) -> PageAction | None:
        """Return the last action, None if the page does not allow it."""
        try:
            return self.view.read(completion, self.state)
        except ActionProblem as problem:
            self.problem = str(problem)
            return None

    def reply(self, action: PageAction) -> TurnResult:
        """Apply the action and show the page."""
        assert self._pages is not None, "The environment is closed."
        self.actions.append(action)
        self.state = state = self._pages.act(action)
        if not state.is_done:
            text, images = self.view.shown(state)
            return TurnResult(text, images=images)
        success = state.reward >= 1.0
        text = "The task is done." if success else "The task has failed."
        solved = {f"solved_{self.task.replace('-', '_')}": float(success)}
        return TurnResult(text, state.reward, True, success=success, metrics=solved)

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the next action towards the goal.

        Raises:
            NotImplementedError: For tasks without an expert in the mode.
            ValueError: If the grid is too coarse for an element of the page.
        """
        if self.task not in EXPERTS:
            raise NotImplementedError(
                f"task={self.task!r} has no expert; {', '.join(EXPERTS)} have one."
            )
        action = EXPERTS[self.task](self.state.task, self.state.elements)
        return self.view.written(action, self.state)

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a random action."""
        return self.view.random(rng, self.state)

    def restore(self, state: bytes) -> None:
        """Return to a :meth:`snapshot` by replaying its actions."""
        super().restore(state)
        self.state = self._start()
        for action in self.actions:
            self.state = self._open().act(action)

    def close(self) -> None:
        """End the browser."""
        pages, self._pages = self._pages, None
        if pages is not None:
            pages.browser.close()

    def interrupt(self) -> None:
        """Kill the browser, so that a call that hangs returns with an error."""
        if self._pages is not None:
            self._pages.browser.kill()

    def _invalid(self) -> TurnResult:
        text, images = self.view.shown(self.state, self.problem)
        return TurnResult(
            text,
            images=images,
            reward=self.invalid_action_reward,
            terminated=self.invalid_action == "end",
        )

    def _start(self) -> PageState:
        return self._open().start(*self._game, anew=self.task not in RESTARTED)

    def _open(self) -> MiniWobPages:
        if self._pages is None:
            self._pages = MiniWobPages()
        self._pages.browser.timeout_s = self.timeout_s
        self._pages.limit = self.open_pages
        self._pages.has_screenshots = isinstance(self.view, ScreenView)
        return self._pages
