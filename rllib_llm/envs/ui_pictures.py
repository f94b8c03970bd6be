"""Small apps whose screens are shown as pictures: the tasks of the screens in text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.ui import UiScreens
from rllib_llm.envs.ui_apps import APPS
from rllib_llm.envs.ui_drawing import draw
from rllib_llm.pictures.contract import PLACEHOLDER


@register_text_env("ui_pictures-v0")
class UiPictures(UiScreens):
    """Reach a goal state of an app by taps on its picture, or do one named step.

    Apps, tasks, actions, rewards, infos and splits are those of ``ui-v0``, seed by
    seed. The screen is in the picture alone: each label has a colour of its own, and a
    picture of 128 pixels or more shows its letters, too.
    """

    def start(
        self,
        rng: np.random.Generator,
        mode: str = "task",
        apps: Sequence[str] = tuple(APPS),
        plan: bool = False,
        checks: int = 0,
        pixels: int = 64,
    ) -> TurnResult:
        """Draw an app in some state, and its task.

        Args:
            rng: Generator of all.
            mode: ``task``: until the app's goal state is reached. ``step``: one action
                on a screen, which the instruction names.
            apps: Names of the apps: ``form``, ``settings``, ``list``, ``tabs``.
            plan: Whether the action is read from the last line alone. The expert then
                writes the actions that are left above it, anew in each turn.
            checks: Actions in a row, each without an effect, that are refused with the
                reason and do not count as turns; not in the mode ``step``.
            pixels: Height and width of the picture, in [32, 512].
        """
        self.pixels = require_int("pixels", pixels, 32, 512)
        self.begin(rng, mode, apps, True, plan, checks)
        return self._shown(f"{self.task}\n{self.format_hint}")

    def _shown(self, text: str) -> TurnResult:
        """Return a picture of the screen, and a text below it."""
        picture = draw(self.app.elements(), self.pixels)
        return TurnResult(f"{PLACEHOLDER}\n{text or 'Go on.'}", images=[picture])
