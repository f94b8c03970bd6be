"""Elements of pages as numbered lines."""

from __future__ import annotations

import pytest

from rllib_llm.envs.browser.elements import Element, page_text, quoted, read_elements


def described(kind, name="", value="", *, focused=False, options=()):
    return {
        "kind": kind,
        "name": name,
        "value": value,
        "focused": focused,
        "options": options,
        "box": [1, 2, 3, 4],
    }


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (described("button", "No"), '1 button "No"'),
        (described("field", "tt", 'a "b"'), r'1 field "tt": "a \"b\""'),
        (described("textarea", value="a\n b"), '1 textarea "": "a b"'),
        (described("checkbox", "x", "on", focused=True), '1 checkbox "x" on (focused)'),
        (described("radio", "x", "off"), '1 radio "x" off'),
        (described("tab", "Tab #1", "on"), '1 tab "Tab #1" on'),
        (described("tab", "Tab #2"), '1 tab "Tab #2"'),
        (
            described("list", "l", "b", options=["a", "b"]),
            '1 list "l": "b" of "a", "b"',
        ),
    ],
)
def test_lines(given, line):
    (element,) = read_elements([given])
    assert element.line == page_text([element]) == line
    assert element.box == (1, 2, 3, 4)


def test_numbers_count_from_one_and_empty_pages_say_so():
    elements = read_elements([described("text", "a"), described("link", "b")])
    assert [e.number for e in elements] == [1, 2]
    assert page_text(elements) == '1 text "a"\n2 link "b"'
    assert page_text([]) == "The page is empty."


def test_long_texts_are_cut():
    (element,) = read_elements([described("text", "x" * 500)])
    assert element.name == "x" * 200 + "..."


def test_quotation_marks_and_backslashes_are_escaped():
    assert quoted('a\\"') == r'"a\\\""'
    assert Element(1, "text", "a").line == '1 text "a"'
