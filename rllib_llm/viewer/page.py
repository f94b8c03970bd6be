"""Put the page together: template, style, script and data in one file."""

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
# In the order in which they stand in the page.
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
        The file, and what it shows.

    Raises:
        ConfigError: If there are no transcripts.
    """
    out = run / PAGE_FILE if out is None else out
    contents = read_contents(run, out.parent, most_episodes=most_episodes)
    text = build_page(contents)
    out.parent.mkdir(parents=True, exist_ok=True)
    # A reader of the old page, or a crash, must not meet half of the new one.
    draft = out.with_name(out.name + ".tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(out)
    return out, contents


def build_page(contents: dict[str, Any]) -> str:
    """Return the HTML of :func:`read_contents`' answer.

    The data is compressed and in base64, so that no text of a model can end its
    element; the script puts texts into the page as text nodes alone.
    """
    # JSON has no NaN, but an environment's numbers may be one.
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


def _finite(value: Any) -> Any:
    """Return ``value`` with None for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _part(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
