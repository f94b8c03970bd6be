"""Time of reading random rows of a data file: dataset-v0, datasets, and Ray Data.

Run:     python benchmarks/dataset_rows.py
         python benchmarks/dataset_rows.py --rows 20000 --reads 100
Writes:  benchmarks/results/dataset_rows.json

All three read the same rows of one JSON Lines file, in a random order, one at a time,
as an episode begins with its row. The time to open the file (the index, the Arrow copy,
the actors) is reported apart.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

RESULTS = Path(__file__).parent / "results"
Read = Callable[[int], str]


def main() -> None:
    """Time the three, one after the other, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--row-chars", type=int, default=1450)
    parser.add_argument("--reads", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dataset_rows_") as folder:
        os.environ["RLLIB_LLM_CACHE"] = f"{folder}/cache"
        os.environ["HF_DATASETS_CACHE"] = f"{folder}/arrow"
        file = _write(Path(folder) / "rows.jsonl", given.rows, given.row_chars)
        numbers = np.random.default_rng(given.seed).integers(
            given.rows, size=given.reads
        )
        record: dict[str, Any] = {
            **vars(given),
            "megabytes": round(file.stat().st_size / 1e6, 1),
            "versions": {name: version(name) for name in ("datasets", "ray")},
            "python": platform.python_version(),
        }
        for name, opened in (
            ("own index", _own),
            ("datasets", _datasets),
            ("Ray Data", _ray_data),
        ):
            record[name] = _timed(opened, file, numbers.tolist())
            print(name, record[name])
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "dataset_rows.json"
    path.write_text(json.dumps(record, indent=1) + "\n")


def _write(file: Path, rows: int, chars: int) -> Path:
    """Write rows whose prompt begins with their number."""
    filler = "a word and another " * (chars // 19 + 1)
    with file.open("w") as out:
        for number in range(rows):
            prompt = f"{number}: {filler}"[:chars]
            out.write(
                json.dumps({"id": number, "prompt": prompt, "answer": "a"}) + "\n"
            )
    return file


def _timed(
    opened: Callable[[Path], Read], file: Path, numbers: list[int]
) -> dict[str, float]:
    began = time.perf_counter()
    read = opened(file)
    open_s = time.perf_counter() - began
    read(0)  # the first read may start what later ones use
    times = []
    for number in numbers:
        began = time.perf_counter()
        prompt = read(number)
        times.append(time.perf_counter() - began)
        assert prompt.startswith(f"{number}: "), "another row was read"
    return {
        "open_s": round(open_s, 2),
        "median_ms": round(float(np.median(times)) * 1e3, 3),
        "mean_ms": round(float(np.mean(times)) * 1e3, 3),
    }


def _own(file: Path) -> Read:
    from rllib_llm.envs.dataset.index import DatasetSpec, open_dataset

    test = file.with_name("test.jsonl")
    test.write_text('{"prompt": "held out", "answer": "a"}\n')
    data = open_dataset(DatasetSpec((str(file),), (str(test),)))
    return lambda number: data.row("train", number).prompt


def _datasets(file: Path) -> Read:
    import datasets

    datasets.disable_progress_bars()
    rows = datasets.load_dataset("json", data_files=str(file), split="train")
    return lambda number: rows[number]["prompt"]


def _ray_data(file: Path) -> Read:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    warnings.simplefilter("ignore")  # to_random_access_dataset is deprecated
    rows = ray.data.read_json(str(file)).to_random_access_dataset("id", num_workers=1)
    return lambda number: ray.get(rows.get_async(number))["prompt"]


if __name__ == "__main__":
    main()
