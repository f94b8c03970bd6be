"""Soak test of miniwob-v0: many episodes in real browsers, some of which are killed.

    python benchmarks/browser_soak.py [--episodes 1000] [--slots 2] [--kill-every 50]

plays episodes of the expert in several browsers at a time and kills a browser in the
middle of every fiftieth episode. A failed episode is repeated with its seed, as the
sampler does. Printed are episodes that failed twice (lost), episodes without success,
time per reset and step, CPU time of the browser per page that is loaded and per page
that is started in place, memory of a browser with its driver at the beginning and at
the end, and what is left of processes and files. ``--kill-every 0`` kills none. Needs
Chromium, chromedriver and the pages.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from rllib_llm.envs import make_env
from rllib_llm.envs.adapters.miniwob_experts import EXPERTS
from rllib_llm.envs.child_process import EnvProcessError

_TRIES = 2
_WARM = 5  # episodes before the first measurement of memory


@dataclasses.dataclass
class Counts:
    """Counts of one slot.

    Attributes:
        episodes: Finished episodes.
        failed: Episodes that ended without success.
        repeated: Episodes that were repeated because the browser failed.
        lost: Episodes whose repetition failed as well.
        kills: Browsers that this script killed.
        reset_s: Seconds of each reset that succeeded.
        step_s: Seconds of each step that succeeded.
        loaded_s: CPU seconds of the browser in resets that loaded a page.
        in_place_s: The same of resets on an open page.
        memory: MiB of a browser, at the beginning and the end.
        groups: Process groups of all browsers.
    """

    episodes: int = 0
    failed: int = 0
    repeated: int = 0
    lost: int = 0
    kills: int = 0
    reset_s: list[float] = dataclasses.field(default_factory=list)
    step_s: list[float] = dataclasses.field(default_factory=list)
    loaded_s: list[float] = dataclasses.field(default_factory=list)
    in_place_s: list[float] = dataclasses.field(default_factory=list)
    memory: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    groups: set[int] = dataclasses.field(default_factory=set)


class Slot(threading.Thread):
    """Plays episodes in one environment until the common counter ends."""

    def __init__(self, seeds: itertools.count, arguments: argparse.Namespace):
        super().__init__()
        self._seeds, self._arguments = seeds, arguments
        options = {"task": arguments.tasks, "open_pages": arguments.open_pages}
        self._env = make_env("miniwob-v0", options)
        self.counts = Counts()

    def run(self) -> None:
        """Play."""
        first = 0.0
        while (seed := next(self._seeds)) < self._arguments.episodes:
            every = self._arguments.kill_every
            self._play(seed, every > 0 and seed % every == every - 1)
            if self.counts.episodes == _WARM:
                first = memory_of(self._browser.pid)
        last = memory_of(self._browser.pid)
        self.counts.memory.append((first, last))
        self._env.close()

    @property
    def _browser(self):
        return self._env._pages.browser

    def _play(self, seed: int, kills: bool) -> None:
        for attempt in range(_TRIES):
            try:
                success = self._episode(seed, kills and attempt == 0)
            except EnvProcessError:
                self.counts.repeated += 1
                continue
            self.counts.episodes += 1
            self.counts.failed += not success
            return
        self.counts.lost += 1

    def _episode(self, seed: int, kills: bool) -> bool:
        split = ("train", "test")[seed % 2]
        rng = np.random.default_rng(seed)
        before = self._load_and_cpu()
        self._timed(self.counts.reset_s, self._env.reset, seed, split)
        self.counts.groups.add(self._browser.pid)
        after = self._load_and_cpu()
        if before[0] == after[0]:  # the same browser
            loads = after[1] > before[1]
            into = self.counts.loaded_s if loads else self.counts.in_place_s
            into.append(after[2] - before[2])
        if kills:
            os.killpg(self._browser.pid, signal.SIGKILL)
            self.counts.kills += 1
        while True:
            action = self._env.expert_action(rng)
            reply = self._timed(self.counts.step_s, self._env.step, action)
            if reply[2] or reply[3]:
                return bool(reply[4]["success"])

    def _load_and_cpu(self) -> tuple[int, int, float]:
        """Return the browser's group, the pages it has loaded, and its CPU seconds."""
        pages = self._env._pages
        if pages is None or pages.browser.pid is None:
            return -1, 0, 0.0
        return pages.browser.pid, pages._num_loads, cpu_of(pages.browser.pid)

    def _timed(self, into: list[float], call, *arguments):
        began = time.perf_counter()
        if len(arguments) == 2:
            seed, split = arguments
            value = call(seed=seed, options={"split": split})
        else:
            value = call(*arguments)
        into.append(time.perf_counter() - began)
        return value


def processes_of(group: int) -> list[int]:
    """Return the numbers of all processes of a group, from ``/proc``."""
    numbers = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.getpgid(int(name)) == group:
                    numbers.append(int(name))
            except ProcessLookupError:  # has ended meanwhile
                continue
    return numbers


def is_zombie(pid: int) -> bool:
    """Return whether a process has ended and only waits for its parent."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def cpu_of(group: int) -> float:
    """Return the CPU seconds of a group and of its children that have ended."""
    ticks = 0
    for pid in processes_of(group):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_of(group: int) -> float:
    """Return the proportional memory (PSS) of a group in MiB; shared pages once."""
    kib = 0
    for pid in processes_of(group):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        kib += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kib / 1024


def report(slots: list[Slot], seconds: float) -> str:
    """Return the printed table."""
    counts = [slot.counts for slot in slots]

    def total(name: str) -> int:
        return sum(getattr(c, name) for c in counts)

    resets = np.concatenate([c.reset_s for c in counts]) * 1000
    steps = np.concatenate([c.step_s for c in counts]) * 1000
    memory = np.array([pair for c in counts for pair in c.memory])
    groups = set().union(*(c.groups for c in counts))
    left = [p for g in groups for p in processes_of(g) if not is_zombie(p)]
    folders = list(Path(tempfile.gettempdir()).glob("rllib_llm_browser_*"))
    rows = {
        "episodes; lost; without success": (
            f"{total('episodes')}; {total('lost')}; {total('failed')}"
        ),
        "browsers killed; episodes repeated": f"{total('kills')}; {total('repeated')}",
        "wall time": f"{seconds:.0f} s",
        "episodes per second; steps per second": (
            f"{total('episodes') / seconds:.1f}; {len(steps) / seconds:.1f}"
        ),
        "ms per reset, median; 99 %": (
            f"{np.median(resets):.0f}; {np.percentile(resets, 99):.0f}"
        ),
        "ms per step, median; 99 %": (
            f"{np.median(steps):.0f}; {np.percentile(steps, 99):.0f}"
        ),
        "CPU ms of the browser per page: loaded; in place": "; ".join(
            f"{np.mean(ms):.0f} ({len(ms)})" if len(ms) else "-"
            for ms in (
                1000 * np.concatenate([c.loaded_s for c in counts]),
                1000 * np.concatenate([c.in_place_s for c in counts]),
            )
        ),
        f"MiB of a browser after {_WARM} episodes; at the end": "; ".join(
            " / ".join(f"{value:.0f}" for value in column) for column in memory.T
        ),
        "processes left; folders left": f"{len(left)}; {len(folders)}",
    }
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join(["| what | value |", "|---|---|", *lines])


def main() -> None:
    """Play and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--tasks", nargs="+", default=sorted(EXPERTS))
    parser.add_argument("--open-pages", type=int, default=8, help="in each browser")
    parser.add_argument("--slots", type=int, default=2, help="browsers at a time")
    parser.add_argument(
        "--kill-every", type=int, default=50, help="in episodes; 0: never"
    )
    arguments = parser.parse_args()
    seeds = itertools.count()
    slots = [Slot(seeds, arguments) for _ in range(arguments.slots)]
    began = time.perf_counter()
    for slot in slots:
        slot.start()
    for slot in slots:
        slot.join()
    print(report(slots, time.perf_counter() - began))


if __name__ == "__main__":
    main()
