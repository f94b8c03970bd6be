"""Hooks of MkDocs (mkdocs.yml): pages outside docs/ and patterns in the navigation.

The pages in docs/ are written for a checkout: they link to recipes, sources and pages
outside docs/, and their code fences have marks for the tests. For the site,

- linked files outside docs/ become pages below ``repository/``;
- notebooks become pages;
- ``folder/*`` in the navigation expands to the pages of the folder without an entry of
  their own, and the remaining pages are put into a last section.
"""

from __future__ import annotations

import fnmatch
import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
COPIES = "repository/"
REST = "More"

_FENCED = re.compile(r"(^(`{3,}).*?^\2[ \t]*$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_MARKED_FENCE = re.compile(r"^(`{3,}\w+) .*$", re.MULTILINE)
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages outside docs/ and complete the navigation."""
    from mkdocs.structure.files import File

    for file in [f for f in files if f.src_uri.endswith(".ipynb")]:
        page = file.src_uri.removesuffix(".ipynb") + ".md"
        text = notebook_as_markdown(json.loads(file.content_string))
        files.append(File.generated(config, page, content=text))
    _add_copies(files, config)
    pages = sorted(f.src_uri for f in files.documentation_pages())
    config.nav = complete_nav(config.nav, pages)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Resolve the links of a page relative to its path in the repository."""
    here = page.file.src_uri
    origin = _origin(here)

    def moved(match: re.Match[str]) -> str:
        target = _target(origin, match[2])
        if target is None:
            return match[0]
        link = posixpath.relpath(_place(target), posixpath.dirname(here))
        return f"{match[1]}{link}{match[3]}"

    parts = _FENCED.split(markdown)
    prose = slice(0, None, 3)  # split yields prose, fenced block, its backticks, ...
    parts[prose] = [_LINK.sub(moved, part) for part in parts[prose]]
    parts[1::3] = [_MARKED_FENCE.sub(r"\1", part, count=1) for part in parts[1::3]]
    parts[2::3] = [""] * len(parts[2::3])
    return "".join(parts)


# Files outside docs/ ------------------------------------------------------------------


def _add_copies(files: Files, config: Any) -> None:
    """Add pages for all files outside docs/ in links or in the navigation."""
    waiting = [f for f in files if f.src_uri.endswith(".md")]
    for entry in _entries(config.nav):
        if entry.startswith(COPIES):
            waiting.append(_copy(entry.removeprefix(COPIES), config))
    while waiting:
        file = waiting.pop()
        if file.src_uri.startswith(COPIES):
            if files.get_file_from_path(file.src_uri):
                continue
            files.append(file)
        origin = _origin(file.src_uri)
        for match in _LINK.finditer(_FENCED.sub("", file.content_string)):
            target = _target(origin, match[2])
            if target and not target.startswith("docs/"):
                waiting.append(_copy(target, config))


def _copy(name: str, config: Any) -> File:
    from mkdocs.exceptions import PluginError
    from mkdocs.structure.files import File

    path = ROOT / name
    if not path.is_file():
        raise PluginError(
            f"{name} is linked from a page or named in mkdocs.yml, but is no file. "
            "Link to a file that exists."
        )
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        language = _LANGUAGES.get(path.suffix, "text")
        text = f"# {path.name}\n\n````{language}\n{text}\n````\n"
    return File.generated(config, _place(name), content=text)


def _place(name: str) -> str:
    """Return the path on the site of a file of the repository."""
    if name.startswith("docs/"):
        page = name.removeprefix("docs/")
        return page.removesuffix(".ipynb") + ".md" if page.endswith(".ipynb") else page
    return COPIES + (name if name.endswith(".md") else f"{name}.md")


def _origin(src_uri: str) -> str:
    """Return the path in the repository of a page of the site."""
    if src_uri.startswith(COPIES):
        name = src_uri.removeprefix(COPIES)
        plain = name.removesuffix(".md")
        return plain if (ROOT / plain).is_file() else name
    return f"docs/{src_uri}"


def _target(origin: str, link: str) -> str | None:
    """Return the target file of a link on the page ``origin``; None for a URL."""
    if re.match(r"[a-z]+:", link):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))


# Navigation ---------------------------------------------------------------------------


def complete_nav(nav: list[Any], pages: list[str]) -> list[Any]:
    """Expand patterns, and add a last section with the pages without an entry."""
    named = set(_entries(nav))
    patterns = [p for p in named if "*" in p]
    named.update(p for p in pages for q in patterns if fnmatch.fnmatch(p, q))
    rest = [p for p in pages if p not in named and not p.startswith(COPIES)]
    explicit = {e for e in _entries(nav) if "*" not in e}
    resolved = _resolve(nav, [p for p in pages if p not in explicit])
    return resolved + ([{REST: rest}] if rest else [])


def _resolve(entry: Any, pages: list[str]) -> Any:
    if isinstance(entry, dict):
        return {title: _resolve(value, pages) for title, value in entry.items()}
    if not isinstance(entry, list):
        return entry
    found: list[Any] = []
    for item in entry:
        if isinstance(item, str) and "*" in item:
            found.extend(fnmatch.filter(pages, item))
        else:
            found.append(_resolve(item, pages))
    return found


def _entries(nav: Any) -> list[str]:
    """Return all leaves of a navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    children = nav.values() if isinstance(nav, dict) else nav
    return [leaf for child in children for leaf in _entries(child)]


# Notebooks ----------------------------------------------------------------------------


def notebook_as_markdown(notebook: dict[str, Any]) -> str:
    """Return a notebook's texts, code and printed output."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        is_code = cell["cell_type"] == "code"
        parts.append(f"```python\n{source}\n```" if is_code else source)
        texts = [_printed(output) for output in cell.get("outputs", ())]
        if any(texts):
            parts.append(f"```text\n{''.join(texts).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _printed(output: dict[str, Any]) -> str:
    text = output.get("text") or output.get("data", {}).get("text/plain", "")
    return "".join(text)
