"""Operate small apps whose screens are texts: elements with boxes."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import last_match, require_bool, require_choice, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv, in_split
from rllib_llm.envs.ui_apps import APPS, Action, App, screen
from rllib_llm.errors import ConfigError

_PATTERN = re.compile(
    r"\b(?:(tap)[ \t]+([0-9]{1,3})[ \t]+([0-9]{1,3})|(type)[ \t]+(\w{1,30})"
    r"|(scroll)|(back))\b",
    re.IGNORECASE,
)
_BY_LABEL = re.compile(
    r"\b(?:(tap)[ \t]+(\w{1,30})|(type)[ \t]+(\w{1,30})|(scroll)|(back))\b",
    re.IGNORECASE,
)
_LABEL_HINT = "Use 'tap Save', 'type Ana', 'scroll' or 'back'."
_PLANNED = 4  # most actions of a plan
_REASONS = {
    "tap": "nothing is there.",
    "type": "no field is in focus.",
    "scroll": "there is nothing to scroll.",
    "back": "this is the first page.",
}
_WORDS = ("Ana", "Bob", "Eve", "Ida", "Leo", "Max", "Ned", "Uma")


class UiScreens(TextEnv):
    """Tasks on the screens of small apps, however they are shown."""

    max_turns = 8
    format_hint = "Use 'tap 49 14', 'type Ana', 'scroll' or 'back'."

    def begin(
        self,
        rng: np.random.Generator,
        mode: str,
        apps: Sequence[str],
        boxes: bool,
        plan: bool,
        checks: int,
    ) -> None:
        """Draw an app in some state, and its task. The arguments are those of Ui."""
        self.is_step = require_choice("mode", mode, ("task", "step")) == "step"
        self.boxes, self.plans = (
            require_bool("boxes", boxes),
            require_bool("plan", plan),
        )
        self.checks = checks
        self._check_options()
        self.refused = 0  # in a row
        if isinstance(apps, str) or not apps or not set(apps) <= set(APPS):
            raise ConfigError(f"apps={apps!r} must be a list of {', '.join(APPS)}.")
        while True:
            self.app: App = APPS[apps[int(rng.integers(len(apps)))]](rng)
            self.task = self._draw_step(rng) if self.is_step else self.app.task
            if in_split(f"{self.task}\n{self._screen()}", self.split):
                break
        self.type_right, self.inside, self.right_step = 0.0, 0.0, 0.0
        self.format_hint = type(self).format_hint if self.boxes else _LABEL_HINT

    def parse(self, completion: str) -> Action | None:
        """Return the last action, e.g. ``("tap", "49", "14")``."""
        self.type_right, self.inside, self.right_step = 0.0, 0.0, 0.0
        if self.plans:  # a plan names actions, too
            completion = completion.strip().rpartition("\n")[2]
        match = last_match(_PATTERN if self.boxes else _BY_LABEL, completion)
        if match is None:
            return None
        kind, *arguments = (group for group in match.groups() if group)
        return (kind.lower(), *arguments)

    def reply(self, action: Action) -> TurnResult:
        """Compare the step, or apply the action and show the screen."""
        wanted = self.wanted if self.is_step else self.app.next_action()
        is_right = self._compare(action, wanted)
        self.right_step = float(is_right)
        if self.is_step:
            text = "Correct!" if is_right else "That is wrong."
            return TurnResult(text, float(is_right), terminated=True, success=is_right)
        if self.refused < self.checks and not copy.deepcopy(self.app).apply(action):
            self.refused += 1
            self.turn -= 1
            return TurnResult(f"Refused: {_REASONS[action[0]]}")
        self.refused = 0
        has_effect = self.app.apply(action)
        if self.app.is_done():
            return TurnResult("Done!", reward=1.0, terminated=True, success=True)
        return self._shown("" if has_effect else "No effect.")

    def more_info(self) -> dict[str, Any]:
        """Return whether the turn's action has the right type, and hits the element.

        ``inside`` is 1 for a tap in the box of the right element, and 0 for all other
        actions; ``right_step`` is 1 for the right action, with its word. Of several
        shortest ways, one is compared.
        """
        return {
            "type_right": self.type_right,
            "inside": self.inside,
            "right_step": self.right_step,
        }

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the next action of a shortest way."""
        if self.is_step:
            return " ".join(self.wanted)
        return self._written(self.app.way(_PLANNED if self.plans else 1))

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a tap on any element, or any other action."""
        elements = self.app.elements()
        kind = str(
            rng.choice(["tap", "type", "scroll", "back"], p=[0.7, 0.1, 0.1, 0.1])
        )
        if kind == "tap" and elements:
            aim = elements[int(rng.integers(len(elements)))]
            return self._written([(aim.tap, f"tap {aim.label}")])
        if kind == "type":
            action: Action = ("type", str(rng.choice(_WORDS)))
        else:
            action = ("back" if kind == "tap" else kind,)
        return self._written([(action, " ".join(action))])

    def _written(self, way: Sequence[tuple[Action, str]]) -> str:
        """Return a text that plays the first of these actions and plans all."""
        action, words = way[0]
        played = " ".join(action) if self.boxes else words
        if not self.plans:
            return played
        return f"Plan: {', '.join(words for _, words in way)}.\n{played}"

    def _shown(self, text: str) -> TurnResult:
        """Return a text, which may be "", and the screen."""
        return TurnResult("\n".join(filter(None, [text, self._screen()])))

    def _screen(self) -> str:
        return screen(self.app.elements(), self.boxes)

    def _check_options(self) -> None:
        """Refuse options of the mode ``task`` in the other one."""
        require_int("checks", self.checks, 0, 10)
        if self.is_step and (self.plans or self.checks or not self.boxes):
            raise ConfigError(
                f"plan={self.plans}, checks={self.checks}, boxes={self.boxes}: "
                "mode='step' has one action, which needs no plan, is not repeated and "
                "names an element already. Use mode='task'."
            )

    def _draw_step(self, rng: np.random.Generator) -> str:
        """Walk a part of the way, draw an action, and return its instruction."""
        for _ in range(int(rng.integers(3))):
            self.app.apply(self.app.next_action())
            if self.app.is_done():
                break
        elements = self.app.elements()
        kind = str(
            rng.choice(["tap", "type", "scroll", "back"], p=[0.7, 0.1, 0.1, 0.1])
        )
        if kind == "tap":
            aim = elements[int(rng.integers(len(elements)))]
            self.wanted: Action = aim.tap
            return f"Tap {aim.label}."
        if kind == "type":
            self.wanted = ("type", str(rng.choice(_WORDS)))
            return f"Type {self.wanted[1]}."
        self.wanted = (kind,)
        return "Scroll down." if kind == "scroll" else "Go back."

    def _compare(self, action: Action, wanted: Action) -> bool:
        """Set the two parts of the step's score; return whether all is right."""
        self.type_right = float(action[0] == wanted[0])
        if wanted[0] != "tap":
            return action == wanted
        hit = self.app.hit
        self.inside = float(action[0] == "tap" and hit(action) == hit(wanted))
        return bool(self.inside)


@register_text_env("ui-v0")
class Ui(UiScreens):
    """Reach a goal state of an app by taps, or do one named step. Return 1 then.

    Lines of text stand for the picture of a screen: each element has a kind, a label
    and a box. In the mode ``step`` an episode is one action that the instruction
    names. Tasks are split into train and test by the hash of the first screen. With
    ``plan`` the action stands on the last line of a text, below a plan of what is left
    to do; with ``checks`` an action without an effect is refused before it is applied.
    """

    def start(
        self,
        rng: np.random.Generator,
        mode: str = "task",
        apps: Sequence[str] = tuple(APPS),
        boxes: bool = True,
        plan: bool = False,
        checks: int = 0,
    ) -> str:
        """Draw an app in some state, and its task.

        Args:
            rng: Generator of all.
            mode: ``task``: until the app's goal state is reached. ``step``: one action
                on a screen, which the instruction names.
            apps: Names of the apps: ``form``, ``settings``, ``list``, ``tabs``.
            boxes: Whether elements have boxes and taps are points; otherwise taps name
                labels. Not in the mode ``step``.
            plan: Whether the action is read from the last line alone. The expert then
                writes the actions that are left above it, anew in each turn.
            checks: Actions in a row, each without an effect, that are refused with the
                reason and do not count as turns; not in the mode ``step``.
        """
        self.begin(rng, mode, apps, boxes, plan, checks)
        return f"{self.task}\n{self._screen()}\n{self.format_hint}"
