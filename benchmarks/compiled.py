"""Times of the Learner's layers and of decoding with and without torch.compile.

Run:  OMP_NUM_THREADS=1 python benchmarks/compiled.py tiny [small]
      OMP_NUM_THREADS=1 python benchmarks/compiled.py tiny --decode

The update of the standing workload, in CPU seconds, measured alternately; the first
update of the compiled model contains the compilation. With ``--decode`` steps of the
torch engine's fused forward, of rows of unequal lengths.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from standing import Measured, Ours
from standing_workload import standing_config
from transformers import AutoModelForCausalLM

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.engines.model_runner import ModelRunner
from rllib_llm.engines.slot_cache import SlotCache
from rllib_llm.offline.prepare_model import prepare_language_model

NAMES = {"plain": None, "inductor": "inductor"}
TOKENS, STEPS = 100, 60  # before the first decoding step, and steps


class CompiledSteps:
    """A fused forward whose decoding steps are compiled; prefills are not."""

    called = ()

    def __init__(self, fused: Any) -> None:
        self._plain = fused
        self._compiled = torch.compile(fused.__call__, dynamic=True)

    def __call__(self, cache: Any, ids: Any, positions: Any, last: Any, *more: Any):
        """Return the logits."""
        run = self._compiled if last is None else self._plain
        return run(cache, ids, positions, last, *more)


def step_ms(runner: ModelRunner, batch: int) -> float:
    """Return the median time of a decoding step, in CPU milliseconds."""
    cache, rng = SlotCache(batch, 256, runner.device), np.random.default_rng(0)
    shorter, times = np.arange(batch) % 7, []
    with runner.serving():
        ids = rng.integers(0, 300, (batch, TOKENS))
        zeros, ones = np.zeros(batch, np.int64), np.ones(batch, np.int64)
        runner.forward(cache, 0, ids, zeros, TOKENS * ones)
        for step in range(STEPS):
            ids = rng.integers(0, 300, (batch, 1))
            started = time.process_time()
            runner.forward(cache, 0, ids, TOKENS + step - shorter, ones)
            times.append(time.process_time() - started)
    return 1e3 * statistics.median(times)


def decode(size: str, repeats: int) -> None:
    """Print the times of decoding steps of 64 and of 8 rows."""
    folder = prepare_language_model(standing_config(size))
    models = [AutoModelForCausalLM.from_pretrained(folder).eval() for _ in NAMES]
    plain, inductor = map(ModelRunner, models)
    inductor._fused = CompiledSteps(inductor._fused)
    for batch in (64, 8):
        step_ms(inductor, batch)  # compiles
        pairs = [
            (step_ms(plain, batch), step_ms(inductor, batch)) for _ in range(repeats)
        ]
        middle = [statistics.median(each) for each in zip(*pairs, strict=True)]
        ratio = statistics.median(b / a for a, b in pairs)
        cells = [f"{size}, {batch} rows", *(f"{m:.2f}" for m in middle), f"{ratio:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print one row per size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="+", choices=("tiny", "small"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--decode", action="store_true")
    args = parser.parse_args()
    quiet_loggers()
    torch.set_num_threads(1)
    if args.decode:
        print("| step | plain, CPU ms | inductor, CPU ms | ratio |\n|---|---|---|---|")
        for size in args.sizes:
            decode(size, args.repeats)
        return
    print(
        "| model | first update, CPU-s | update, CPU-s | relative to plain |\n"
        "|---|---|---|---|"
    )
    for size in args.sizes:
        runs: dict[str, list[Measured]] = {name: [] for name in NAMES}
        ours = {}
        for name, backend in NAMES.items():
            config = standing_config(size).language_model(compile=backend)
            config.training(lr=1e-6, drop_zero_variance_groups=False)
            ours[name] = Ours(config)
            runs[name].append(ours[name].measure())
        for _ in range(args.repeats):
            for name, contender in ours.items():
                runs[name].append(contender.measure())
        plain = [m.update_s / m.sequence for m in runs["plain"][1:]]
        for name, found in runs.items():
            rates = [m.update_s / m.sequence for m in found[1:]]
            pairs = zip(rates, plain, strict=True)
            ratio = statistics.median(a / b for a, b in pairs)
            middle = statistics.median(m.update_s for m in found[1:])
            cells = [f"{size}, {name}", f"{found[0].update_s:.1f}"]
            print(f"| {' | '.join(cells)} | {middle:.2f} | {ratio:.2f} |", flush=True)
        for contender in ours.values():
            contender.algo.stop()


if __name__ == "__main__":
    main()
