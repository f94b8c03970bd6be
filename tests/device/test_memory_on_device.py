"""Memory of updates on an accelerator, against the plan and the page on scaling."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_on_device import (
    MODELS,
    bytes_per_parameter,
    cache_beside_learner,
    host_bytes_of_loading,
    offloaded_and_not,
)

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
def test_updates_need_what_is_planned(on_device, device_name, name):
    found = on_device(bytes_per_parameter, name)
    # Above it are the activations of one short episode.
    assert found["planned"] - 0.05 <= found["peak"] <= found["planned"] + 0.4, found
    if "reference" not in name:
        assert found["peak"] <= 16.5, found
    # Of the plan, gradients and temporaries do not outlive an update.
    assert found["kept"] < found["planned"] - 0.2, found
    if device_name == "cuda":
        return  # the page has the stand-in's numbers
    measured = [found[key] for key in ("built", "kept", "peak", "planned")]
    assert measured == pytest.approx(of_page(name), abs=0.1)


def test_the_cache_leaves_room_for_a_learner_that_is_built_after_it(
    on_device, device_name
):
    if device_name == "cuda":
        pytest.skip("a CUDA device's capacity cannot be set")
    found = on_device(cache_beside_learner)
    # The stand-in's own objects are the tenth of a conversation.
    assert found["slots"] == 10, found
    assert found["peak"] <= found["capacity"]
    assert "GiB of standin:0 are available" in found["error"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_offloaded_optimiser_takes_the_same_steps(on_device, dtype):
    found = on_device(offloaded_and_not, dtype)
    assert all(found.values()), found


def test_loading_copies_no_model_in_host_memory(on_device, device_name):
    if device_name == "cuda":
        pytest.skip("host memory is counted beside the stand-in only")
    found = on_device(host_bytes_of_loading)
    # Weights are mapped from the file. The stand-in makes clones on the CPU, tensor by
    # tensor.
    assert found["built"] < 0.5, found
    assert found["after"] < 0.1, found
    assert found["saved"] < 1.1, found
