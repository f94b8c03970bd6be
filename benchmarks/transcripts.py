"""Cost of transcripts: time of an iteration with and without, bytes per token.

Run:  python benchmarks/transcripts.py --iterations 12

Two algorithms with the same settings, one of them with ``per_iteration = 0``, train
alternately in one process, so that other load affects both equally. The script prints
the median ratio of consecutive iterations, the figures of docs/transcripts.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import ray

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.transcripts.collector import TranscriptCollector, read_result

ALGORITHMS = {"GRPO": (GRPOConfig, 8), "LLMPPO": (LLMPPOConfig, 1)}


class Without(TranscriptCollector):
    """Transcript callback that stores no episodes."""

    per_iteration = 0


def build(name: str, callbacks: type[TranscriptCollector]) -> Any:
    """Return an algorithm on guess_number with a tiny model."""
    config_class, group_size = ALGORITHMS[name]
    config = (
        config_class()
        .environment("guess_number-v0", env_config={"upper": 15, "max_turns": 4})
        .generation(max_new_tokens=8)
        .rollouts(episodes_per_iteration=64, group_size=group_size)
        .training(minibatch_size=32)
        .callbacks(callbacks)
        .debugging(seed=0)
    )
    if name == "GRPO":
        config.training(drop_zero_variance_groups=False)
    return config.build_algo()


def seconds_of(algo: Any) -> tuple[float, dict[str, Any]]:
    """Train one iteration; return its seconds and its result."""
    begin = time.perf_counter()
    result = algo.train()
    return time.perf_counter() - begin, result


def measure(name: str, iterations: int) -> None:
    """Print ratio and sizes."""
    kept, bare = build(name, TranscriptCollector), build(name, Without)
    ratios, sizes, tokens = [], [], []
    for iteration in range(iterations + 2):
        order = (kept, bare) if iteration % 2 else (bare, kept)
        seconds = {}
        for algo in order:
            seconds[algo], result = seconds_of(algo)
            if algo is kept and iteration >= 2:
                records = read_result(result)
                sizes.append(sum(len(json.dumps(r)) for r in records))
                tokens.append(sum(t["tokens"] for r in records for t in r["turns"]))
                columns = [t["columns"] for r in records for t in r["turns"]]
        if iteration >= 2:  # the first ones warm up
            ratios.append(seconds[kept] / seconds[bare])
    kept.stop()
    bare.stop()
    of_tokens = len(json.dumps(columns)) / tokens[-1]
    print(
        f"{name}: iteration time with transcripts / without: median "
        f"{statistics.median(ratios):.3f} of {len(ratios)} pairs; "
        f"{statistics.mean(sizes) / 1024:.0f} KiB and {statistics.mean(tokens):.0f} "
        f"tokens per iteration, {of_tokens:.0f} bytes of columns per token"
    )


def main() -> None:
    """Measure both algorithms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=12)
    given = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    for name in ALGORITHMS:
        measure(name, given.iterations)


if __name__ == "__main__":
    main()
