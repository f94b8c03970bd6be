"""docs/presets has a page for every preset; what it says is in the shipped YAML."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from literature import load_methods

from rllib_llm import yaml_io
from rllib_llm.algorithms.config.sections import SECTIONS, section_keys
from rllib_llm.components.registry import COMPONENTS
from rllib_llm.recipes import load_recipe, search_spaces, shipped_recipes

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "presets"
PAGES = sorted(p for p in FOLDER.glob("*.md") if p.name != "README.md")
OF_ONE = [p for p in PAGES if p.name != "teams.md"]
# What stands in code font beside names: choices, options and letters of formulas.
VALUES = {"token", "turn", "word", "hops"}
SYMBOLS = {"std", "g", "l", "m", "target_i", "c_it"}
_EXCERPT = re.compile(r"^```yaml (\w+)/(\w+)\.yaml\n(.*?)^```$", re.M | re.S)
_PRESET = re.compile(
    r"\(\.\./\.\./tuned_examples/(?:grpo|ppo|prompt_search)/(\w+)\.yaml\)"
)
_WORD = re.compile(r"`([a-z_0-9]+)(?:: [^`]*)?`")
_KNOB = re.compile(r"^\| `(\w+)\.(\w+)` \| (.*?) \|", re.M)


def named(page):
    return pytest.mark.parametrize(page, PAGES, ids=lambda p: p.stem)


def presets() -> list[str]:
    """Return the shipped recipes of GRPO and PPO that literature.yaml names."""
    methods = load_methods()
    names = {name for row in methods.rows for name in row.yaml} | {*methods.examples}
    paths = shipped_recipes()
    return sorted(n for n in names if paths[n].parent.name in ("grpo", "ppo"))


def preset_of(page: Path) -> str:
    """Return the preset that the page names first."""
    return _PRESET.findall(page.read_text(encoding="utf-8"))[0]


@functools.cache
def stages_of(name: str) -> list[dict[str, Any]]:
    return [stage.resolved for stage in load_recipe(name).stages]


def specs(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the components with settings in a section, nested ones too."""
    if isinstance(value, dict) and "name" in value:
        yield value
    inside = value.values() if isinstance(value, dict) else value
    for each in inside if isinstance(value, dict | list) else ():
        yield from specs(each)


def value_of(name: str, head: str, key: str) -> Any:
    """Return what a preset has for ``section.key`` or ``component.key``."""
    stages = stages_of(name)
    if head in (*SECTIONS, "env_config"):
        given = [s[head][key] for s in stages if key in s.get(head, {})]
        if given:
            return given[0]
        config = load_recipe(name).stages[0].build_config(search_spaces.first_of)
        assert key in section_keys(type(config), head), f"no setting {head}.{key}"
        return getattr(config, key)
    found = [
        spec
        for stage in stages
        for section in ("rollouts", "training")
        for spec in specs(stage.get(section, {}))
        if spec["name"] == head
    ]
    components = [
        COMPONENTS[kind].get(head) for kind in COMPONENTS if head in COMPONENTS[kind]
    ]
    defaults = {k: p.default for one in components for k, p in one.parameters.items()}
    assert key == "weight" or key in defaults, f"no component {head} with {key}"
    given = [spec[key] for spec in found if key in spec]
    return given[0] if given else defaults.get(key, 1.0)


@pytest.mark.parametrize("name", presets())
def test_every_preset_has_a_page(name):
    """In docs/presets; examples of no system: that of their environment will do."""
    methods = load_methods()
    pages = PAGES
    if name in methods.examples:
        generated = ROOT / "docs" / "literature.md"
        pages = [p for p in (ROOT / "docs").rglob("*.md") if p != generated]
    link = f"tuned_examples/{shipped_recipes()[name].parent.name}/{name}.yaml)"
    assert any(link in p.read_text("utf-8") for p in pages), f"no page links {link}"


@named("page")
def test_the_index_has_it_and_it_is_short(page):
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"({page.name})" in index
    lines = page.read_text(encoding="utf-8").splitlines()
    assert 20 <= len(lines) <= 50 and lines[0].startswith("# ")


@named("page")
def test_yaml_on_the_page_is_that_of_the_preset(page):
    found = _EXCERPT.findall(page.read_text(encoding="utf-8"))
    assert found
    for folder, name, text in found:
        shipped = shipped_recipes()[name]
        assert shipped.parent.name == folder
        says = shipped.read_text(encoding="utf-8")
        lines = iter(says.splitlines())
        for line in text.splitlines():
            assert line in lines, f"{line!r} is not in {name}.yaml, or in other order"
        whole = yaml_io.parse(says, name)
        for section, part in yaml_io.parse(text, page.name).items():
            if isinstance(part, dict):
                assert part.items() <= whole[section].items(), section
            else:
                assert part == whole[section], section


@pytest.mark.parametrize("page", OF_ONE, ids=lambda p: p.stem)
def test_knobs_have_the_values_of_the_preset(page):
    name = preset_of(page)
    knobs = _KNOB.findall(page.read_text(encoding="utf-8"))
    assert len(knobs) >= 3
    for head, key, here in knobs:
        shown = yaml_io.parse(f"x: {here}", page.name)["x"]
        value = value_of(name, head, key)
        assert yaml.safe_dump(shown) == yaml.safe_dump(value), f"{head}.{key}"


@pytest.mark.parametrize("page", OF_ONE, ids=lambda p: p.stem)
def test_what_was_measured_is_what_the_preset_says(page):
    text = page.read_text(encoding="utf-8")
    says = shipped_recipes()[preset_of(page)].read_text(encoding="utf-8")
    head = " ".join(line[1:].strip() for line in says.split("\ndesc")[0].splitlines())
    measured = re.search(r"\bMeasured (\d.*)", head)
    if measured is None:
        assert "**Not measured.**" in text
    else:
        assert f"**Measured** {measured[1]}" in text


@functools.cache
def known_words() -> frozenset[str]:
    from rllib_llm.algorithms import ALGORITHMS

    classes = [ALGORITHMS.get(name).config_class() for name in ALGORITHMS]
    keys = {k for c in classes for s in SECTIONS for k in _keys(c, s)}
    components = {
        n: COMPONENTS[kind].get(n) for kind in COMPONENTS for n in COMPONENTS[kind]
    }
    settings = {k for one in components.values() for k in one.parameters}
    docs = ROOT / "docs"
    texts = [(docs / n).read_text("utf-8") for n in ("metrics.md", "rewards.md")]
    logged = {word for text in texts for word in _WORD.findall(text)}
    return frozenset({*keys, *SECTIONS, *components, *settings, *logged})


def _keys(config_class: Any, section: str) -> list[str]:
    return section_keys(config_class, section) if section != "league" else []


@named("page")
def test_names_on_the_page_exist(page):
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    # The last column of the knobs has other packages' names.
    prose = re.sub(r"^(\| `\w+\.\w+` \|).*$", r"\1", prose, flags=re.M)
    unknown = {*_WORD.findall(prose)} - known_words() - VALUES - SYMBOLS
    assert not unknown, f"no component, setting or metric: {unknown}"
