"""Actions on pages: their texts, and which of them a page allows."""

from __future__ import annotations

import pytest

from rllib_llm.envs.browser.actions import (
    FORMAT_HINT,
    KEYS,
    ActionProblem,
    PageAction,
    read_action,
)
from rllib_llm.envs.browser.elements import Element

PAGE = (
    Element(1, "button", "Go"),
    Element(2, "field", "name", is_focused=True),
    Element(3, "list", "l", "a", options=("a", 'b "c"')),
    Element(4, "textarea", ""),
)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("click 1", PageAction("click", 1)),
        ("I click 4 first. No: Click 2.", PageAction("click", 2)),
        ('type 2 "Ann"', PageAction("type", 2, "Ann")),
        ('type "Ann"', PageAction("type", None, "Ann")),
        ('type 4 ""', PageAction("type", 4, "")),
        (r'type 4 "a \"b\" \\"', PageAction("type", 4, 'a "b" \\')),
        ('select 3 "a"', PageAction("select", 3, "a", 0)),
        (r'select 3 "b \"c\""', PageAction("select", 3, 'b "c"', 1)),
        *((f"press {key}", PageAction("press", text=key)) for key in KEYS),
    ],
)
def test_the_last_action_counts(text, action):
    assert read_action(text, PAGE) == action
    assert read_action(str(action), PAGE) == action


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", FORMAT_HINT),
        ("click", FORMAT_HINT),
        ("type 2 Ann", FORMAT_HINT),
        ("press delete", FORMAT_HINT),
        ("click 0", "no element 0. The page has elements 1 to 4"),
        ("click 5", "no element 5"),
        ('type 1 "x"', "a field or textarea, but element 1 is a button"),
        ('type 2 "\U0001f600"', "characters without a key"),
        ('type 2 "a\ue007"', "characters without a key"),
        ('select 2 "a"', "in a list, but element 2 is a field"),
        ('select 3 "c"', r'no option "c". It has "a", "b \"c\""'),
    ],
)
def test_what_the_page_does_not_allow_is_explained(text, words):
    with pytest.raises(ActionProblem) as caught:
        read_action(text, PAGE)
    assert words in str(caught.value)


def test_typing_without_a_number_needs_a_focused_field():
    with pytest.raises(ActionProblem, match="No element is focused"):
        read_action('type "x"', PAGE[:1])
    with pytest.raises(ActionProblem, match="element 1 is a button"):
        read_action('type "x"', [Element(1, "button", "Go", is_focused=True)])
