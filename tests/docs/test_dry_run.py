"""docs/recipes.md shows the plan that a dry run prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rllib_llm.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


@pytest.mark.slow
def test_the_plan_on_the_page_is_the_one_that_is_printed():
    text = PAGE.read_text(encoding="utf-8")
    (shown,) = re.findall(
        r"^```text\n(recipe .*?)^```$", text, re.MULTILINE | re.DOTALL
    )
    done = CliRunner().invoke(app, ["train", "frozen_lake_ppo", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert shown in done.output
