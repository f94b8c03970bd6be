"""Examples on the pages of optional libraries print the documented output."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
_BLOCKS = re.compile(r"^```(python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("page", "library"),
    [
        ("environments/open_spiel.md", "pyspiel"),
        ("environments/text_arena.md", "textarena"),
        ("environments/pettingzoo_classic.md", "rlcard"),
        ("environments/babyai.md", "minigrid"),
        ("environments/reasoning_gym.md", "reasoning_gym"),
        pytest.param("environments/miniwob.md", "selenium", marks=pytest.mark.slow),
        pytest.param(
            *("environments/webshop_pages.md", "selenium"), marks=pytest.mark.slow
        ),
        pytest.param("environments/textworld.md", "textworld", marks=pytest.mark.slow),
        pytest.param(
            *("environments/scienceworld.md", "scienceworld"), marks=pytest.mark.slow
        ),
    ],
)
def test_examples_print_what_the_page_says(page, library):
    pytest.importorskip(library)
    program = {"scienceworld": "java", "selenium": "chromedriver"}.get(library)
    if program and shutil.which(program) is None:
        pytest.skip(f"no {program}")
    # Later blocks show other things.
    (_, code), (_, wanted) = _BLOCKS.findall((DOCS / page).read_text("utf-8"))[:2]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue() == wanted


def test_the_self_play_page_states_the_uniform_policys_exploitability():
    pytest.importorskip("pyspiel")
    page = (DOCS / "selfplay.md").read_text("utf-8")
    (code,) = (c for _, c in _BLOCKS.findall(page) if "measure_exploit" in c)
    names = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, names)
    assert "# 11/24, (1/8, -1/8)" in code
    assert names["found"].exploitability == pytest.approx(11 / 24)
    assert names["found"].values == pytest.approx((1 / 8, -1 / 8))
