"""Small apps of ``ui-v0``: elements with boxes, screens, and what actions change."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

Action = tuple[str, ...]  # e.g. ("tap", "50", "14"), ("type", "Ana"), ("scroll",)
ROWS = 6  # rows of elements that a screen shows at once
_ROW_HEIGHT = 10
_NAMES = ("Ana", "Bob", "Eve", "Ida", "Leo", "Max", "Ned", "Uma")
_FIELDS = ("Name", "City", "Note")
_SAVE = "Save"
_PAGES = ("Sound", "Screen", "Power", "Maps")
_SWITCHES = ("Alarm", "Beep", "Dark", "Auto", "Sync", "Share")
_ITEMS = (
    *("Apple", "Bread", "Cocoa", "Dates", "Eggs", "Figs", "Grapes", "Honey"),
    *("Jam", "Kale", "Lemon", "Milk"),
)
_TABS = ("Home", "Work")
LABELS = (*_FIELDS, _SAVE, *_PAGES, *_SWITCHES, *_ITEMS, *_TABS)
KINDS = ("button", "link", "tab", "switch", "field", "item")


@dataclasses.dataclass(frozen=True)
class Element:
    """One element of a screen.

    Attributes:
        kind: ``button``, ``link``, ``tab``, ``switch``, ``field`` or ``item``.
        label: Its text.
        box: Left, top, right and bottom, inclusive, in percent of the screen.
        value: ``on`` or ``off``, a field's text, or "".
    """

    kind: str
    label: str
    box: tuple[int, int, int, int]
    value: str = ""

    @property
    def name(self) -> str:
        """Its line on the screen without the box."""
        return f"{self.kind} {self.label}" + (f" {self.value}" if self.value else "")

    @property
    def text(self) -> str:
        """Its line on the screen."""
        return f"{self.name} [{' '.join(map(str, self.box))}]"

    @property
    def tap(self) -> Action:
        """The tap at its centre."""
        left, top, right, bottom = self.box
        return ("tap", str((left + right) // 2), str((top + bottom) // 2))

    def has(self, x: int, y: int) -> bool:
        """Return whether a point is in the box."""
        left, top, right, bottom = self.box
        return left <= x <= right and top <= y <= bottom


def row_box(row: int, column: int = 0, columns: int = 1) -> tuple[int, int, int, int]:
    """Return the box of a row, or of one of its equal columns."""
    width = 100 // columns
    top = row * _ROW_HEIGHT
    return (column * width, top, (column + 1) * width - 1, top + _ROW_HEIGHT - 1)


class App:
    """An app with a state, a task, and the way to its goal.

    Attributes:
        task: The instruction.
        page: Name of the page that is shown, "" for the first.
    """

    task: str
    page = ""

    def elements(self) -> list[Element]:
        """Return the elements of the screen, from the top."""
        raise NotImplementedError

    def press(self, element: Element) -> None:
        """Apply a tap on an element."""
        raise NotImplementedError

    def write(self, text: str) -> bool:
        """Write text into the field in focus; return whether there is one."""
        return False

    def scroll(self) -> bool:
        """Show the next rows; return whether there are more."""
        return False

    def back(self) -> bool:
        """Return to the first page; return whether this was another one."""
        was, self.page = self.page, ""
        return bool(was)

    def is_done(self) -> bool:
        """Return whether the goal state is reached."""
        raise NotImplementedError

    def next_action(self) -> Action:
        """Return a shortest next action towards the goal."""
        raise NotImplementedError

    def way(self, limit: int) -> list[tuple[Action, str]]:
        """Return the first actions of a shortest way, and each in words.

        Args:
            limit: Largest number of actions, >= 1.
        """
        trial = copy.deepcopy(self)
        way: list[tuple[Action, str]] = []
        while len(way) < limit and not trial.is_done():
            action = trial.next_action()
            way.append((action, trial.in_words(action)))
            trial.apply(action)
        return way

    def in_words(self, action: Action) -> str:
        """Return an action with the label of the element that it taps."""
        hit = self.hit(action) if action[0] == "tap" else None
        return " ".join(action) if hit is None else f"tap {hit.label}"

    def hit(self, tap: Action) -> Element | None:
        """Return the element that a tap hits, if any."""
        if len(tap) == 2:  # by its label
            named = (e for e in self.elements() if e.label.lower() == tap[1].lower())
            return next(named, None)
        x, y = (int(a) for a in tap[1:])
        return next((e for e in self.elements() if e.has(x, y)), None)

    def labelled(self, label: str) -> Action:
        """Return the tap on the element with a label."""
        return next(e for e in self.elements() if e.label == label).tap

    def apply(self, action: Action) -> bool:
        """Apply an action; return whether it had an effect."""
        kind, *arguments = action
        if kind == "tap":
            hit = self.hit(action)
            if hit is not None:
                self.press(hit)
            return hit is not None
        if kind == "type":
            return self.write(arguments[0])
        return self.scroll() if kind == "scroll" else self.back()


class Form(App):
    """Write a word into one of three fields, and save."""

    def __init__(self, rng: np.random.Generator):
        self.fields = {str(f): "" for f in rng.permutation(_FIELDS)}
        self.goal = (str(rng.choice(_FIELDS)), str(rng.choice(_NAMES)))
        self.focus, self.saved = "", False
        self.task = f"Set {self.goal[0]} to {self.goal[1]} and save."

    def elements(self) -> list[Element]:
        """Return the fields and the button."""
        shown = [
            Element("field", name, row_box(i), value or ("_" * (name == self.focus)))
            for i, (name, value) in enumerate(self.fields.items())
        ]
        return [*shown, Element("button", _SAVE, row_box(len(shown)))]

    def press(self, element: Element) -> None:
        """Focus a field, or save."""
        self.focus = element.label if element.kind == "field" else ""
        self.saved |= element.kind == "button"

    def write(self, text: str) -> bool:
        """Write into the field in focus."""
        if self.focus:
            self.fields[self.focus] = text
            self.saved = False
        return bool(self.focus)

    def is_done(self) -> bool:
        """Return whether the field has the word and was saved."""
        name, text = self.goal
        return self.saved and self.fields[name] == text

    def next_action(self) -> Action:
        """Focus, write, save."""
        name, text = self.goal
        if self.fields[name] == text:
            return self.labelled(_SAVE)
        return ("type", text) if self.focus == name else self.labelled(name)


class Settings(App):
    """Open one of three pages, and turn one of its switches on or off."""

    def __init__(self, rng: np.random.Generator):
        pages = [str(p) for p in rng.permutation(_PAGES)[:3]]
        names = [str(s) for s in rng.permutation(_SWITCHES)]
        self.switches = {
            page: {s: bool(rng.random() < 0.5) for s in names[2 * i : 2 * i + 2]}
            for i, page in enumerate(pages)
        }
        page = str(rng.choice(pages))
        switch = str(rng.choice(list(self.switches[page])))
        self.goal = (page, switch)
        self.before = {p: dict(s) for p, s in self.switches.items()}
        state = _on_off(not self.switches[page][switch])
        self.task = f"Turn {switch} in {page} {state}."

    def elements(self) -> list[Element]:
        """Return the pages, or the switches of one."""
        if not self.page:
            names = enumerate(self.switches)
            return [Element("link", name, row_box(i)) for i, name in names]
        return [
            Element("switch", name, row_box(i), _on_off(value))
            for i, (name, value) in enumerate(self.switches[self.page].items())
        ]

    def press(self, element: Element) -> None:
        """Open a page, or turn a switch."""
        if element.kind == "link":
            self.page = element.label
        else:
            self.switches[self.page][element.label] ^= True

    def is_done(self) -> bool:
        """Return whether exactly the goal's switch has changed."""
        wanted = {p: dict(s) for p, s in self.before.items()}
        wanted[self.goal[0]][self.goal[1]] ^= True
        return self.switches == wanted

    def next_action(self) -> Action:
        """Undo wrong switches, go to the page, turn the switch."""
        page, switch = self.goal
        wrong = [
            (p, s)
            for p, values in self.switches.items()
            for s, value in values.items()
            if (value != self.before[p][s]) != ((p, s) == (page, switch))
        ]
        page, switch = next((w for w in wrong if w[0] == self.page), wrong[0])
        if self.page == page:
            return self.labelled(switch)
        return ("back",) if self.page else self.labelled(page)


class Listing(App):
    """Open an item of a long list, after scrolling to it."""

    def __init__(self, rng: np.random.Generator):
        self.items = [str(i) for i in rng.permutation(_ITEMS)]
        self.goal = str(rng.choice(self.items))
        self.first = 0
        self.task = f"Open {self.goal}."

    def elements(self) -> list[Element]:
        """Return the items in sight, or the open one."""
        if self.page:
            return [Element("item", self.page, row_box(0))]
        shown = enumerate(self.items[self.first : self.first + ROWS])
        return [Element("link", name, row_box(i)) for i, name in shown]

    def press(self, element: Element) -> None:
        """Open an item."""
        self.page = element.label

    def scroll(self) -> bool:
        """Show the next items; after the last the first again."""
        self.first = (self.first + ROWS) % len(self.items)
        return not self.page

    def is_done(self) -> bool:
        """Return whether the item is open."""
        return self.page == self.goal

    def next_action(self) -> Action:
        """Scroll until the item is in sight, open it."""
        if self.page:
            return ("back",)
        if self.goal in self.items[self.first : self.first + ROWS]:
            return self.labelled(self.goal)
        return ("scroll",)


class Tabs(App):
    """Delete an item of one of two tabs."""

    def __init__(self, rng: np.random.Generator):
        names = [str(i) for i in rng.permutation(_ITEMS)[:6]]
        self.tabs = dict(zip(_TABS, (names[:3], names[3:]), strict=True))
        self.tab = _TABS[0]
        self.goal = str(rng.choice(names))
        self.before = {tab: list(items) for tab, items in self.tabs.items()}
        tab = next(t for t, items in self.tabs.items() if self.goal in items)
        self.task = f"Delete {self.goal} in {tab}."

    def elements(self) -> list[Element]:
        """Return the tabs, and the items of the one that is open."""
        tabs = [Element("tab", t, row_box(0, i, 2)) for i, t in enumerate(self.tabs)]
        items = self.tabs[self.tab]
        return [
            *tabs,
            *(Element("button", n, row_box(i + 1)) for i, n in enumerate(items)),
        ]

    def press(self, element: Element) -> None:
        """Change the tab, or delete an item."""
        if element.kind == "tab":
            self.tab = element.label
        else:
            self.tabs[self.tab].remove(element.label)

    def is_done(self) -> bool:
        """Return whether exactly the goal's item is gone."""
        wanted = {
            t: [i for i in items if i != self.goal] for t, items in self.before.items()
        }
        return self.tabs == wanted

    def next_action(self) -> Action:
        """Change the tab, delete the item."""
        if self.goal in self.tabs[self.tab]:
            return self.labelled(self.goal)
        return self.labelled(next(t for t in self.tabs if t != self.tab))


APPS: Mapping[str, Callable[[np.random.Generator], App]] = {
    "form": Form,
    "settings": Settings,
    "list": Listing,
    "tabs": Tabs,
}


def screen(elements: Sequence[Element], boxes: bool = True) -> str:
    """Return a screen as text, one element per line, with or without boxes."""
    lines = (e.text if boxes else e.name for e in elements)
    return "\n".join(lines) or "An empty screen."


def _on_off(value: bool) -> str:
    return "on" if value else "off"
