"""GB per second of the package's packing and loading of weights, in host memory.

Run:  python benchmarks/weight_transfer.py

A state of float32 tensors is converted to bfloat16 and put into Ray's object store, as
by a Learner with ``weight_sync_dtype: bfloat16``; then it is fetched and copied into a
module's tensors, as by an EnvRunner. No device, no network. Medians of repeats.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import ray
import torch

from rllib_llm import weights


def main() -> None:
    """Print GB/s of bfloat16 bytes, which are half of the parameters' bytes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=512, help="bfloat16 bytes")
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    bytes_held = args.mib * 2**20
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=3 * bytes_held)
    layers = {f"{i}": torch.randn(bytes_held // 32) for i in range(16)}
    targets = {name: t.to(torch.bfloat16) for name, t in layers.items()}
    seconds = []
    for _ in range(args.repeats + 1):
        start = time.perf_counter()
        reference = ray.put(weights.pack(layers, dtype="bfloat16"))
        packed = time.perf_counter()
        weights.copy_into(targets, weights.unpack(ray.get(reference)), "the model")
        seconds.append((packed - start, time.perf_counter() - packed))
        del reference
    # The first repeat allocates the store's pages.
    pack, load = bytes_held / 1e9 / np.median(seconds[1:], axis=0)
    print(f"pack and put {pack:.2f} GB/s, get and load {load:.2f} GB/s")


if __name__ == "__main__":
    main()
