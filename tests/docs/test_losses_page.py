"""docs/losses.md has a section for every component, with its settings and defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rllib_llm.components.registry import COMPONENTS

PAGE = (Path(__file__).parents[2] / "docs" / "losses.md").read_text(encoding="utf-8")
KINDS = {
    "policy_loss": "Policy losses",
    "loss_term": "Loss terms",
    "token_advantage_transform": "Token transforms",
}
ALL = [(kind, name) for kind in KINDS for name in COMPONENTS[kind].names()]


def sections(kind):
    part = PAGE.split(f"\n## {KINDS[kind]}\n", 1)[1].split("\n## ", 1)[0]
    found = re.split(r"^### `(\w+)`$", part, flags=re.MULTILINE)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


@pytest.mark.parametrize("kind, name", ALL)
def test_every_component_has_a_section(kind, name):
    section = sections(kind)[name]
    chosen = COMPONENTS[kind].get(name)
    for key in chosen.parameters:
        assert f"`{key}`" in section or f"`{key}: " in section, key
    for identifier in re.findall(r"\d{4}\.\d{5}", chosen.paper):
        assert identifier in section, identifier


@pytest.mark.parametrize("kind", KINDS)
def test_every_section_is_of_a_component(kind):
    assert set(sections(kind)) == set(COMPONENTS[kind].names())
