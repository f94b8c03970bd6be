"""Pages of the shop as HTML: the texts of a visit, with its buttons as buttons."""

from __future__ import annotations

import html
import re

from rllib_llm.envs.webshop.visit import Visit

_BUTTON = re.compile(r"\[([^\[\]]*)\]")
_STYLE = """
body { font-family: sans-serif; max-width: 50em; margin: 1em auto; padding: 0 1em; }
#instruction { background: #eef; padding: .6em; }
p { margin: .4em 0; } button { margin-right: .3em; } input { width: 60%; }
"""
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Shop</title>
<style>{style}</style></head>
<body data-step="{step}"><p id="instruction">{instruction}</p>
{content}
</body></html>
"""
_SEARCH = """<form action="search"><p>
<input name="words" aria-label="Words" autocomplete="off"> <button>Search</button>
</p></form>"""


def page_html(visit: Visit, instruction: str, step: int, sold: str = "") -> str:
    """Return the open page as a document.

    It has the texts and buttons that ``Visit.show`` has, line by line.

    Args:
        visit: The visit.
        instruction: The task.
        step: Number that the page carries; programs tell old pages from new ones by it.
        sold: The text after a purchase.
    """
    if visit.is_over:
        content = f"<p>{html.escape(sold)}</p>"
    elif visit.page == "search":
        content = _SEARCH
    else:
        lines = "\n".join(map(_line, visit.show().splitlines()))
        content = f'<form action="click" method="post">\n{lines}\n</form>'
    return _PAGE.format(
        style=_STYLE, step=step, instruction=html.escape(instruction), content=content
    )


def _line(text: str) -> str:
    """Return a line of text with a button for each name in brackets."""
    parts = []
    for i, part in enumerate(_BUTTON.split(text)):
        escaped = html.escape(part.strip())
        if i % 2:
            parts.append(f'<button name="button" value="{escaped}">{escaped}</button>')
        elif escaped:
            parts.append(f"<span>{escaped}</span>")
    return f"<p>{' '.join(parts)}</p>"
