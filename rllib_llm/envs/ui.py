"""Operate small apps whose screens are texts: elements with boxes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import last_match, require_choice
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv, in_split
from rllib_llm.envs.ui_apps import APPS, Action, App, Element, screen
from rllib_llm.errors import ConfigError

_PATTERN = re.compile(
    r"\b(?:(tap)[ \t]+([0-9]{1,3})[ \t]+([0-9]{1,3})|(type)[ \t]+(\w{1,30})"
    r"|(scroll)|(back))\b",
    re.IGNORECASE,
)
_WORDS = ("Ana", "Bob", "Eve", "Ida", "Leo", "Max", "Ned", "Uma")


@register_text_env("ui-v0")
class Ui(TextEnv):
    """Reach a goal state of an app by taps, or do one named step. Return 1 then.

    Lines of text stand for the picture of a screen: each element has a kind, a label
    and a box. In the mode ``step`` an episode is one action that the instruction
    names. Tasks are split into train and test by the hash of the first screen.
    """

    max_turns = 8
    format_hint = "Use 'tap 49 14', 'type Ana', 'scroll' or 'back'."

    def start(
        self,
        rng: np.random.Generator,
        mode: str = "task",
        apps: Sequence[str] = tuple(APPS),
    ) -> str:
        """Draw an app in some state, and its task.

        Args:
            rng: Generator of all.
            mode: ``task``: until the app's goal state is reached. ``step``: one action
                on a screen, which the instruction names.
            apps: Names of the apps: ``form``, ``settings``, ``list``, ``tabs``.
        """
        self.is_step = require_choice("mode", mode, ("task", "step")) == "step"
        if isinstance(apps, str) or not apps or not set(apps) <= set(APPS):
            raise ConfigError(f"apps={apps!r} must be a list of {', '.join(APPS)}.")
        while True:
            self.app: App = APPS[apps[int(rng.integers(len(apps)))]](rng)
            task = self._draw_step(rng) if self.is_step else self.app.task
            prompt = f"{task}\n{screen(self.app.elements())}"
            if in_split(prompt, self.split):
                break
        self.type_right, self.inside = 0.0, 0.0
        return f"{prompt}\n{self.format_hint}"

    def parse(self, completion: str) -> Action | None:
        """Return the last action, e.g. ``("tap", "49", "14")``."""
        self.type_right, self.inside = 0.0, 0.0
        match = last_match(_PATTERN, completion)
        if match is None:
            return None
        kind, *arguments = (group for group in match.groups() if group)
        return (kind.lower(), *arguments)

    def reply(self, action: Action) -> TurnResult:
        """Compare the step, or apply the action and show the screen."""
        wanted = self.wanted if self.is_step else self.app.next_action()
        is_right = self._compare(action, wanted)
        if self.is_step:
            text = "Correct!" if is_right else "That is wrong."
            return TurnResult(text, float(is_right), terminated=True, success=is_right)
        has_effect = self.app.apply(action)
        if self.app.is_done():
            return TurnResult("Done!", reward=1.0, terminated=True, success=True)
        shown = screen(self.app.elements())
        return TurnResult(shown if has_effect else f"No effect.\n{shown}")

    def more_info(self) -> dict[str, Any]:
        """Return whether the turn's action has the right type, and hits the element.

        ``inside`` is 1 for a tap in the box of the right element, and 0 for all other
        actions. Of several shortest ways, one is compared.
        """
        return {"type_right": self.type_right, "inside": self.inside}

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the next action of a shortest way."""
        return " ".join(self.wanted if self.is_step else self.app.next_action())

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a tap on any element, or any other action."""
        elements = self.app.elements()
        kind = str(
            rng.choice(["tap", "type", "scroll", "back"], p=[0.7, 0.1, 0.1, 0.1])
        )
        if kind == "tap" and elements:
            return " ".join(elements[int(rng.integers(len(elements)))].tap)
        return f"type {rng.choice(_WORDS)}" if kind == "type" else _plain(kind)

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
        self.inside = float(
            action[0] == "tap" and self._hit(action) == self._hit(wanted)
        )
        return bool(self.inside)

    def _hit(self, action: Action) -> Element | None:
        x, y = int(action[1]), int(action[2])
        return next((e for e in self.app.elements() if e.has(x, y)), None)


def _plain(kind: str) -> str:
    return "back" if kind == "tap" else kind
