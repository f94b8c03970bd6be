"""The documentation holds: code runs, settings exist, links lead somewhere.

Fenced blocks in Markdown, by the words after the fence:

- ``python``: compiles, and what it names of the package exists;
- ``python run``: is executed, all such blocks of a page in one namespace;
- ``text output``: what the executed block before it prints;
- ``yaml``: loads as a recipe;
- ``bash``: its ``rllib-llm`` and ``make`` lines name what exists.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import io
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from rllib_llm.algorithms import ALGORITHMS
from rllib_llm.algorithms.config.schema import (
    SECTIONS,
    declared_settings,
    settings_of,
)
from rllib_llm.data.types import DEFAULT_STOP_POLICIES
from rllib_llm.envs import TEXT_ENVS
from rllib_llm.errors import MissingExtraError

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "tuned_examples").rglob("*.md"),
    ]
)
_FENCE = re.compile(r"^(`{3,})([^\n`]*)\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


@dataclasses.dataclass
class Block:
    """A fenced block of a page."""

    kind: str
    text: str
    line: int


def blocks(page: Path, *kinds: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = [
        Block(m[2].strip(), m[3], text[: m.start()].count("\n") + 2)
        for m in _FENCE.finditer(text)
    ]
    return [b for b in found if not kinds or b.kind in kinds]


def pages_with(*kinds: str):
    pages = [p for p in PAGES if blocks(p, *kinds)]
    return pytest.mark.parametrize(
        "page", pages, ids=[str(p.relative_to(ROOT)) for p in pages]
    )


# Code --------------------------------------------------------------------------------


@pages_with("python", "python run")
def test_python_compiles_and_names_what_exists(page):
    for block in blocks(page, "python", "python run"):
        tree = ast.parse(block.text, filename=f"{page}:{block.line}")
        nodes = list(ast.walk(tree))
        declared = {
            ast.unparse(n.target) for n in nodes if isinstance(n, ast.AnnAssign)
        }
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module.startswith("rllib_llm"):
                module = import_module(node.module)
                missing = [a.name for a in node.names if not hasattr(module, a.name)]
                assert not missing, f"{page}:{block.line}: {node.module} {missing}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                known = fluent_keywords(node.func.attr)
                given = {k.arg for k in node.keywords if k.arg} - declared
                assert known is None or given <= known, (
                    f"{page}:{block.line}: .{node.func.attr}({given - known})"
                )


def fluent_keywords(method: str) -> set[str] | None:
    """Return the keywords of a section's fluent method; None for other methods."""
    from rllib_llm.algorithms.config.sections import SECTIONS, section_keys

    if method not in SECTIONS:
        return None
    classes = [ALGORITHMS.get(name).config_class() for name in ALGORITHMS]
    return {key for c in classes for key in section_keys(c, method)}


@pytest.fixture
def untouched_registries(monkeypatch):
    """Pages may register environments and algorithms; forget them afterwards."""
    for registry in (TEXT_ENVS, ALGORITHMS):
        registry.names()
        monkeypatch.setattr(registry, "_items", dict(registry._items))


@pages_with("python run")
def test_marked_blocks_run_and_print_what_the_page_says(
    page, untouched_registries, request
):
    if any("build_algo" in b.text for b in blocks(page, "python run")):
        request.getfixturevalue("ray_session")
    namespace = {"__name__": "documentation"}
    printed = None
    for block in blocks(page, "python run", "text output"):
        if block.kind == "python run":
            lines = "\n" * (block.line - 1) + block.text
            # Not with this file's "from __future__ import annotations".
            code = compile(lines, str(page), "exec", dont_inherit=True)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(code, namespace)
            printed = out.getvalue()
        else:
            assert printed == block.text, f"{page}:{block.line}"


@pages_with("yaml")
def test_yaml_loads_as_a_recipe(page):
    from rllib_llm import yaml_io
    from rllib_llm.recipes import recipe_from_dict

    for block in blocks(page, "yaml"):
        where = f"{page}:{block.line}"
        recipe = recipe_from_dict(yaml_io.parse(block.text, where))
        # Not checked further: models and environments of the reader's own.
        assert all(stage.stop for stage in recipe.stages), where


@pages_with("bash")
def test_commands_exist(page):
    import typer

    from rllib_llm.cli.main import app

    command = typer.main.get_command(app)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for block in blocks(page, "bash"):
        for line in block.text.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["rllib-llm"]:
                verb = command.commands[words[1]]
                verb.make_context(words[1], words[2:])  # raises for unknown options
            elif words[:1] == ["make"]:
                assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), line


# Links and form ----------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_links_lead_somewhere(page):
    prose = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for match in _LINK.finditer(prose):
        target = match[1] or match[2]
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(path), f"{page}: {target}"


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    prose = _FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings
    }


def test_readme_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= 150
    assert max(map(len, lines)) <= 160
    assert text.count("](") <= 40


# Completeness ------------------------------------------------------------------------


def shipped_envs() -> list[str]:
    return [n for n in TEXT_ENVS if TEXT_ENVS.get(n).__module__.startswith("rllib_llm")]


@pytest.mark.parametrize("name", shipped_envs())
def test_every_environment_has_a_page_with_its_options(name):
    titled = [
        text
        for page in (ROOT / "docs" / "environments").glob("*.md")
        if f"`{name}`" in (text := page.read_text(encoding="utf-8")).split("\n", 1)[0]
    ]
    assert len(titled) == 1, f"{name} needs one page whose title names it"
    overview = ROOT / "docs" / "environments" / "README.md"
    assert name in overview.read_text(encoding="utf-8")
    try:
        options = TEXT_ENVS.get(name)().options()
    except MissingExtraError as error:
        pytest.skip(str(error))
    for option, default in options.items():
        assert f"| `{option}` | {default} |" in titled[0], option


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_has_a_page_with_its_settings(name):
    entry = ALGORITHMS.get(name)
    folder = entry.module.split(".")[2]
    page = (ROOT / "docs" / "algorithms" / f"{folder}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {name}\n")
    assert entry.paper.rsplit(":", 1)[1] in page
    for key in declared_settings(entry.config_class(), "training"):
        assert f"`{key}`" in page, key


def test_every_tuned_example_stands_in_their_readme():
    folder = ROOT / "tuned_examples"
    rows = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    for path in folder.rglob("*.yaml"):
        link = f"({path.relative_to(folder).as_posix()})"
        described = " ".join(yaml.safe_load(path.read_text())["description"].split())
        assert any(link in row and described in row for row in rows), path.name


def test_every_field_of_a_recipe_is_explained():
    from rllib_llm.recipes.recipe import FIELDS
    from rllib_llm.recipes.tune_settings import TUNE_DEFAULTS

    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    for name in (*FIELDS, *TUNE_DEFAULTS):
        assert re.search(rf"^\|[^|]*`{name}`", page, re.MULTILINE), name


@pytest.mark.parametrize("section", ["language_model", "generation", "rollouts", "sft"])
def test_every_setting_of_our_sections_is_explained(section):
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    table = page.split(f"\n| `{section}` | default |", 1)[1].split("\n\n", 1)[0]
    config_class = ALGORITHMS.get("LLMPPO").config_class()
    for key in declared_settings(config_class, section):
        assert re.search(rf"^\|[^|]*`{key}`", table, re.MULTILINE), key


def test_stop_policies_are_those_in_the_code():
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    for reason, policy in DEFAULT_STOP_POLICIES.items():
        row = rf"^\| `{reason.value}` \|.*\| `{policy.value}` \|$"
        assert re.search(row, page, re.MULTILINE), reason


def test_every_dependency_has_a_reason():
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    settings = {
        k.arg: k.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Call)
        for k in n.keywords
    }
    required = {
        re.match(r"[\w.-]+(\[\w+\])?", requirement)[0]
        for requirement in ast.literal_eval(settings["install_requires"])
    }
    extras = {ast.literal_eval(k) for k in settings["extras_require"].keys}
    for name in required | extras:
        assert re.search(rf"^\| `{re.escape(name)}` \|", page, re.MULTILINE), name


# Defaults ----------------------------------------------------------------------------

_SETTING = re.compile(
    r"^\| ((?:`\w+`(?: \(RLlib\))?(?:, )?)+)(?: \(RLlib\))? \| ([^|]*) \|", re.MULTILINE
)
_SECTIONED = ["language_model", "generation", "rollouts", "sft"]
_TABLES = [
    *(("recipes.md", section, "LLMPPO") for section in _SECTIONED),
    ("algorithms/ppo.md", "setting", "LLMPPO"),
    ("algorithms/grpo.md", "setting", "GRPO"),
    ("algorithms/marft.md", "setting", "MARFT"),
    ("algorithms/sft.md", "setting", "SFT"),
    ("algorithms/selfplay.md", "setting", "SelfPlay"),
]


def shown_defaults(page: str, section: str) -> dict[str, str]:
    """Return what the tables of a page say about defaults, by setting."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = {}
    for part in re.split(rf"\n\| `?{section}`? \| default \|", text)[1:]:
        for names, cell in _SETTING.findall(part.split("\n\n", 1)[0]):
            keys = re.findall(r"`(\w+)`", names)
            cells = re.split(r", (?![^\[{]*[\]}])", cell) if len(keys) > 1 else [cell]
            cells *= len(keys) if len(cells) == 1 else 1
            assert len(cells) == len(keys), f"{page}: {names} | {cell}"
            found |= zip(keys, cells, strict=True)
    return found


def default_of(settings, section: str, key: str):
    sections = ("training", *SECTIONS) if section == "setting" else (section,)
    paths = (f"{each}.{key}" for each in sections)
    return next(settings[path].default for path in paths if path in settings)


@pytest.mark.parametrize("page, section, algo", _TABLES)
def test_defaults_of_settings_are_those_of_the_code(page, section, algo):
    settings = settings_of(ALGORITHMS.get(algo).config_class())
    shown = shown_defaults(page, section)
    assert shown
    for key, cell in shown.items():
        # A word of explanation may follow, after a colon or a semicolon.
        literal = cell if cell.startswith(("{", "[")) else re.split("[:;]", cell)[0]
        stated = yaml.safe_load(literal.strip("`"))
        value = default_of(settings, section, key)
        value = list(value) if isinstance(value, tuple) else value
        if stated in ("none", "None"):
            assert value in (None, [], "none"), f"{page}: {key}"
        elif isinstance(value, float):
            assert float(stated) == value, f"{page}: {key}"
        else:
            assert stated == value, f"{page}: {key}"


def test_concepts_name_all_methods_that_rllib_does_not_have():
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    from rllib_llm.algorithms.config.sections import SECTIONS

    page = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| `AlgorithmConfig` \|.*$", page, re.MULTILINE)
    classes = [ALGORITHMS.get(name).config_class() for name in ALGORITHMS]
    ours = {
        s
        for s in SECTIONS
        if not hasattr(AlgorithmConfig, s) and any(hasattr(c, s) for c in classes)
    }
    assert ours <= set(re.findall(r"`(\w+)`", row))
