"""docs/pettingzoo_walkthrough.md: its game and its table are those of benchmarks/."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import harbour
import harbour_start

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pettingzoo_walkthrough.md").read_text(encoding="utf-8")


def test_the_game_on_the_page_is_the_measured_one():
    source = Path(harbour.__file__).read_text(encoding="utf-8")
    game = source.partition("from __future__ import annotations\n\n")[2]
    assert "class Harbour" in game and game in PAGE


def test_the_table_is_made_of_the_stored_results(capsys):
    harbour_start.print_table()
    assert capsys.readouterr().out in PAGE
    files = [*harbour_start.RESULTS.glob("*.json")]
    assert len(files) == 3 * len(harbour_start.ARMS)


def test_a_start_at_chance_learns_less_than_one_at_twice_chance():
    """Compare the statement below the table of the page with the stored results."""

    def runs(*arm):
        paths = [harbour_start.path_of(*arm, seed) for seed in range(3)]
        return [json.loads(path.read_text()) for path in paths]

    chance = 1 / len(harbour.BERTHS)
    assert all(abs(r["before"] - chance) < 0.05 for r in runs(300, 1.0))
    assert all(r["after"] < 0.25 for r in runs(300, 1.0))
    half = runs(300, 0.5)
    assert all(1.8 * chance < r["before"] < 3 * chance for r in half)
    assert all(r["after"] > 0.9 for r in half)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.learning
def test_the_game_is_learnt_from_a_half_good_start(ray_session, monkeypatch):
    monkeypatch.setattr(harbour_start, "ITERATIONS", 10)
    found = harbour_start.run(300, 0.5, 0)
    assert 0.25 < found["before"] < 0.6 < 0.75 < found["after"]
