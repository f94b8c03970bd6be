"""Scripted experts of tasks of MiniWoB++: they read what the model reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from rllib_llm.envs.browser.actions import PageAction
from rllib_llm.envs.browser.elements import TYPED, Element

Elements = Sequence[Element]
Expert = Callable[[str, Elements], PageAction]
_QUOTED = re.compile(r'"([^"]*)"')
_ORDINALS = {"1st": 0, "2nd": 1, "3rd": 2}
_WIDGETS = {"text": "field"}  # the page's word for a kind


def named(elements: Elements, name: str, kinds: Iterable[str] = ()) -> Element:
    """Return the first element with a name, and with one of ``kinds`` if given."""
    wanted = set(kinds)
    return next(
        e for e in elements if e.name == name and (not wanted or e.kind in wanted)
    )


def click(element: Element) -> PageAction:
    """Return the click on an element."""
    return PageAction("click", element.number)


def _button(task: str, elements: Elements) -> PageAction:
    """Click the only button."""
    return click(next(e for e in elements if e.kind == "button"))


def _button_one(task: str, elements: Elements) -> PageAction:
    return click(named(elements, "ONE"))


def _one_then_two(task: str, elements: Elements) -> PageAction:
    """Click ONE; the focus shows that it has been clicked."""
    one = named(elements, "ONE")
    return click(named(elements, "TWO") if one.is_focused else one)


def _quoted_button(task: str, elements: Elements) -> PageAction:
    return click(named(elements, _words(task)[0], ("button",)))


def _quoted_link(task: str, elements: Elements) -> PageAction:
    return click(named(elements, _words(task)[0], ("link",)))


def _dialog_button(task: str, elements: Elements) -> PageAction:
    name = _words(task)[0]
    return click(named(elements, "Close" if name == "x" else name, ("button",)))


def _tab(task: str, elements: Elements) -> PageAction:
    number = re.findall(r"Tab #\d", task)[0]
    return click(named(elements, number, ("tab",)))


def _link_in_tabs(task: str, elements: Elements) -> PageAction:
    """Click the link if it is shown, else the tab after the open one."""
    name = _words(task)[0]
    if any(e.kind == "link" and e.name == name for e in elements):
        return _quoted_link(task, elements)
    tabs = [e for e in elements if e.kind == "tab"]
    opened = next(i for i, tab in enumerate(tabs) if tab.value == "on")
    return click(tabs[(opened + 1) % len(tabs)])


def _enter(task: str, elements: Elements) -> PageAction:
    """Type the quoted text into all fields, and submit."""
    return _fill(elements, [_words(task)[0]] * len(_fields(elements)))


def _enter_in_case(task: str, elements: Elements) -> PageAction:
    text = _words(task)[0]
    return _fill(elements, [text.upper() if "upper case" in task else text.lower()])


def _login(task: str, elements: Elements) -> PageAction:
    return _fill(elements, _words(task)[:2])


def _read_table(task: str, elements: Elements) -> PageAction:
    key = re.findall(r"the value of (.+) into", task)[0]
    cells = [e.name for e in elements if e.kind == "text"]
    return _fill(elements, [cells[cells.index(key) + 1]])


def _calculate(task: str, elements: Elements) -> PageAction:
    shown = " ".join(e.name for e in elements if e.kind == "text")
    left, sign, right = re.findall(r"(\d+) ([-+x]) (\d+)", shown)[0]
    a, b = int(left), int(right)
    return _fill(elements, [str({"+": a + b, "-": a - b, "x": a * b}[sign])])


def _focus(task: str, elements: Elements) -> PageAction:
    places = [i for word, i in _ORDINALS.items() if word in task] or [0]
    return click(_fields(elements)[places[0]])


def _option(task: str, elements: Elements) -> PageAction:
    radio = named(elements, _listed(task)[0], ("radio",))
    return click(radio) if radio.value == "off" else _button(task, elements)


def _checkboxes(task: str, elements: Elements) -> PageAction:
    """Correct the first checkbox that is not as wanted, else submit."""
    wanted = _listed(task)
    for element in elements:
        if element.kind == "checkbox":
            is_on = element.value == "on"
            if is_on != (element.name in wanted):
                return click(element)
    return _button(task, elements)


def _choose(task: str, elements: Elements) -> PageAction:
    name = re.findall(r"Select (.+) from the list", task)[0]
    offers = next(e for e in elements if e.kind == "list")
    if offers.value == name:
        return _button(task, elements)
    return PageAction("select", offers.number, name, offers.options.index(name))


def _widget(task: str, elements: Elements) -> PageAction:
    kind = _words(task)[0]
    return click(next(e for e in elements if e.kind == _WIDGETS.get(kind, kind)))


def _colour(task: str, elements: Elements) -> PageAction:
    name = re.findall(r"on the (\w+) colored", task)[0]
    return click(named(elements, name, ("box",)))


EXPERTS: Mapping[str, Expert] = {
    "choose-list": _choose,
    "click-button": _quoted_button,
    "click-button-sequence": _one_then_two,
    "click-checkboxes": _checkboxes,
    "click-checkboxes-large": _checkboxes,
    "click-checkboxes-transfer": _checkboxes,
    "click-color": _colour,
    "click-dialog": _button,
    "click-dialog-2": _dialog_button,
    "click-link": _quoted_link,
    "click-option": _option,
    "click-tab": _tab,
    "click-tab-2": _link_in_tabs,
    "click-test": _button,
    "click-test-2": _button_one,
    "click-widget": _widget,
    "enter-password": _enter,
    "enter-text": _enter,
    "enter-text-2": _enter_in_case,
    "enter-text-dynamic": _enter,
    "focus-text": _focus,
    "focus-text-2": _focus,
    "login-user": _login,
    "read-table": _read_table,
    "simple-arithmetic": _calculate,
}


def _words(task: str) -> list[str]:
    """Return the texts in quotation marks."""
    return _QUOTED.findall(task)


def _listed(task: str) -> list[str]:
    """Return the names in "Select NAMES and click Submit."."""
    names = re.findall(r"Select (.+) and click Submit", task)[0]
    return [] if names == "nothing" else names.split(", ")


def _fields(elements: Elements) -> list[Element]:
    return [e for e in elements if e.kind in TYPED]


def _fill(elements: Elements, texts: Sequence[str]) -> PageAction:
    """Type each text into its field, then click the only button."""
    for field, text in zip(_fields(elements), texts, strict=True):
        if field.value != text:
            return PageAction("type", field.number, text)
    return _button("", elements)
