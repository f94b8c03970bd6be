"""Assembly of the HTML page from template, style, scripts and data."""

from __future__ import annotations

import base64
import gzip
import html
import json
import math
from pathlib import Path
from typing import Any

from rllib_llm.viewer.contents import MOST_EPISODES, read_contents

PAGE_FILE = "transcripts.html"

_FOLDER = Path(__file__).with_name("page")
# In the order in which the page contains them.
_SCRIPTS = ("dom", "virtual", "data", "scales", "filters", "turns", "curves", "keys")


def write_page(
    run: Path, out: Path | None = None, *, most_episodes: int = MOST_EPISODES
) -> tuple[Path, dict[str, Any]]:
    """Write the page of a run.

    Args:
        run: A run folder, or a trial folder.
        out: The file; None: ``transcripts.html`` in ``run``.
        most_episodes: See :func:`read_contents`.

    Returns:
        The file and its contents.

    Raises:
        ConfigError: The run does not have transcripts.
    """
    out = run / PAGE_FILE if out is None else out
    contents = read_contents(run, out.parent, most_episodes=most_episodes)
    text = build_page(contents)
    out.parent.mkdir(parents=True, exist_ok=True)
    # Written and renamed, so that neither a reader nor a crash sees an incomplete page.
    draft = out.with_name(out.name + ".tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(out)
    return out, contents


def build_page(contents: dict[str, Any]) -> str:
    """Return the HTML page of the contents from :func:`read_contents`.

    The data is compressed and base64-encoded, so that a model's text cannot close its
    element. The script inserts texts as text nodes only.
    """
    # Numbers of an environment may be NaN, which JSON does not allow.
    data = json.dumps(_finite(contents), allow_nan=False, separators=(",", ":"))
    packed = gzip.compress(data.encode("utf-8"), mtime=0)
    script = "\n".join(_part(f"{name}.js") for name in (*_SCRIPTS, "main"))
    page = _part("page.html")
    for mark, text in (
        ("@TITLE@", html.escape(f"{contents['name']}: transcripts")),
        ("@STYLE@", _part("style.css")),
        ("@SCRIPT@", script),
        ("@DATA@", base64.b64encode(packed).decode("ascii")),
    ):
        page = page.replace(mark, text, 1)
    return page


def _finite(value: object) -> Any:
    """Return ``value`` with None for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _part(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
