"""Gradients of padded and packed rows, with torch's SDPA and flash attention.

The rows have log-normal lengths, as conversations have. Gradients are compared with
those of padded rows and SDPA. Without the package flash-attn its rows are left out.
"""

from __future__ import annotations

import gc
import importlib.util
from typing import Any

import numpy as np
from part import Part, run
from update import BF16, Case, config_of, episodes, tokens_of

FLASH = "flash_attention_2"


def main(part: Part) -> None:
    """Write one row per attention implementation and packing."""
    model = "small" if part.is_small else "0.6B"
    lengths = row_lengths(*((6, 24) if part.is_small else (64, 512)))
    rows = episodes(lengths, seed=0)
    expected: Any = None
    for attention in ("sdpa", FLASH):
        if attention == FLASH and (reason := why_no_flash(part)):
            part.row(attention=FLASH, note=reason)
            continue
        for packing in (False, True):
            gradients = measure(part, model, attention, packing, rows, expected)
            expected = gradients if expected is None else expected
            gc.collect()
    if part.device_name == "cuda":
        count_copies(part, model, rows)


def why_no_flash(part: Part) -> str | None:
    """Return what flash attention lacks here."""
    if part.device_name != "cuda":
        return "it runs on CUDA alone"
    if importlib.util.find_spec("flash_attn") is None:
        return "flash-attn is not installed"
    return None


def row_lengths(number: int, median: int) -> list[int]:
    """Return log-normal numbers of tokens of rows, at most four times the median."""
    drawn = np.random.default_rng(0).lognormal(np.log(median), 0.6, number)
    return [int(n) // 2 * 2 for n in drawn.clip(4, 4 * median)]


def learner_of(part: Part, model: str, attention: str, packing: bool) -> Any:
    """Return a Learner."""
    from learner_helpers import make_learner

    settings = {**BF16, "model_kwargs": {"attn_implementation": attention}}
    with part.placed():
        case = Case(model, settings, {"packing": packing})
        return make_learner(config_of(part, case))


def measure(
    part: Part,
    model: str,
    attention: str,
    packing: bool,
    rows: list[Any],
    expected: Any,
) -> Any:
    """Write the row of one case; return its gradients by name."""
    from learner_helpers import gradients as gradients_of

    learner = learner_of(part, model, attention, packing)
    gradients = gradients_of(learner, rows)
    # As an update, without the optimiser's step.
    seconds = part.seconds(lambda: gradients_of(learner, rows))
    row: dict[str, Any] = {
        "attention": attention,
        "packing": packing,
        "tokens_per_s": sum(map(tokens_of, rows)) / seconds,
        "s": seconds,
    }
    if expected is not None:
        row["gradient_difference"] = difference(gradients, expected)
    part.row(**row)
    return gradients


def difference(gradients: dict[str, Any], expected: dict[str, Any]) -> float:
    """Return the largest difference in units of the largest gradient."""
    largest = max(float(g.abs().max()) for g in expected.values())
    return (
        max(float((gradients[name] - g).abs().max()) for name, g in expected.items())
        / largest
    )


def count_copies(part: Part, model: str, rows: list[Any]) -> None:
    """Write how many copies to the device an update starts, by the kind of memory."""
    import torch
    from learner_helpers import update

    learner = learner_of(part, model, "sdpa", True)
    update(learner, rows)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA]
    ) as profile:
        update(learner, rows)
        torch.cuda.synchronize()
    events = {e.key: e.count for e in profile.key_averages() if "HtoD" in e.key}
    for kind in ("Pinned", "Pageable"):
        copies = sum(count for key, count in events.items() if kind in key)
        part.row(note=f"{copies} copies to the device from {kind.lower()} memory")


if __name__ == "__main__":
    run(main, "torch", "transformers", "ray", "gymnasium")
