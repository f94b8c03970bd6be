"""Memory of updates on an accelerator, against the plan and the page on scaling."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_on_device import MODELS, bytes_per_parameter

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"


def of_page(name: str) -> list[float]:
    """Return the numbers of a line of the page's table."""
    cells = [
        line.strip("| ").split(" | ")
        for line in PAGE.read_text().splitlines()
        if line.startswith(f"| {name} | ")
    ]
    (numbers,) = (line[1:] for line in cells if len(line) == 5)
    return [float(number) for number in numbers]


@pytest.mark.parametrize("name", MODELS)
def test_updates_need_what_is_planned(on_device, name):
    found = on_device(bytes_per_parameter, name)
    # Above it are the activations of one short episode.
    assert found["planned"] - 0.05 <= found["peak"] <= found["planned"] + 0.4, found
    if "reference" not in name:
        assert found["peak"] <= 16.5, found
    # Of the plan, gradients and temporaries do not outlive an update.
    assert found["kept"] < found["planned"] - 0.2, found
    measured = [found[key] for key in ("built", "kept", "peak", "planned")]
    assert measured == pytest.approx(of_page(name), abs=0.1)
