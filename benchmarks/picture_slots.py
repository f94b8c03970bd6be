"""Memory per environment slot and steps per second of runs that read pictures.

Run:    python benchmarks/picture_slots.py [--slots 1 16 64] [--episodes 128]
Prints: a row per environment and number of slots, each measured in a process of its
        own: turns per second, the largest resident memory while the tiny models sample,
        and what a slot adds to that of one slot.

``frozen_lake_pictures-v0`` draws a picture per turn, ``frozen_lake-v0`` writes the same
map; the policies are the tiny models from their random start, on one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

MODELS = {"frozen_lake_pictures-v0": "tiny-vlm", "frozen_lake-v0": "tiny"}


def resident_mib() -> float:
    """Return the largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def sample(env: str, slots: int, episodes: int) -> dict[str, float]:
    """Sample episodes with a number of slots; return rate and memory."""
    import torch

    from rllib_llm import GRPOConfig
    from rllib_llm.cli.session import quiet_loggers

    quiet_loggers()
    torch.set_num_threads(1)
    config = (
        GRPOConfig()
        .environment(env, env_config={"size": 4, "slippery": False})
        .language_model(model=MODELS[env])
        .generation(max_new_tokens=8)
        .rollouts(episodes_per_iteration=episodes, group_size=2)
        .env_runners(num_envs_per_env_runner=slots)
    )
    algo = config.build_algo()
    algo.sample_groups(1)  # what is built once
    built = resident_mib()
    start = time.perf_counter()
    turns = sum(map(len, algo.sample_groups(episodes // 2)))
    seconds = time.perf_counter() - start
    algo.stop()
    return {
        "turns_per_s": turns / seconds,
        "built_mib": built,
        "peak_mib": resident_mib(),
    }


def measured(env: str, slots: int, episodes: int) -> dict[str, float]:
    """Return the result of :func:`sample` in a process of its own."""
    command = [sys.executable, __file__, "--one", env, str(slots), str(episodes)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        env, slots, episodes = given.one
        print(json.dumps(sample(env, int(slots), int(episodes))))
        return
    print("| environment | slots | turns/s | MiB built | MiB at most | MiB per slot |")
    print("|---|---|---|---|---|---|")
    for env in MODELS:
        first = None
        for slots in given.slots:
            found = measured(env, slots, given.episodes)
            first = first or (slots, found["peak_mib"])
            added = slots - first[0]
            per = (found["peak_mib"] - first[1]) / added if added else float("nan")
            print(
                f"| `{env}` | {slots} | {found['turns_per_s']:.1f} "
                f"| {found['built_mib']:.0f} | {found['peak_mib']:.0f} | {per:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
