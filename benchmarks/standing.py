"""Throughput of floor, this package and TRL on the standing workload.

Run:  python benchmarks/standing.py tiny [--dtype bfloat16] [--peer-python PYTHON]
      python benchmarks/standing.py smollm --dtype bfloat16 --groups 4 ...

Every repeat measures all implementations one after the other, in CPU seconds of their
process, so that the ratios do not depend on other load. Prints Markdown tables for
docs/performance.md, which describes the columns.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from floor import PART, Floor, Shape, check
from floor import measure as measure_floor
from floor_game import measure_trace, trace_of
from standing_game import form_of

HERE = Path(__file__).parent
RATES: dict[str, Callable[[Any], float]] = {
    "rollout: sampled tok / CPU-s": lambda m: m.sampled / m.rollout_s,
    "update: trained tok / CPU-s": lambda m: m.trained / m.update_s,
    "iteration: sampled tok / CPU-s": lambda m: m.sampled / m.total_s,
}


@dataclasses.dataclass
class Measured:
    """One update: CPU seconds of its parts, and tokens.

    Attributes:
        rollout_s: Sampling, including environments.
        update_s: Time from episodes to new weights.
        total_s: The whole iteration.
        sampled: Number of sampled tokens.
        trained: Number of trained tokens.
        sequence: Tokens of the trained rows, including prompts.
        rss_mib: Peak memory of the process so far.
        success: Share of the sampled episodes that were solved.
    """

    rollout_s: float
    update_s: float
    total_s: float
    sampled: int
    trained: int
    sequence: int
    rss_mib: float
    success: float = float("nan")


class Ours:
    """An algorithm of this package, measured from outside.

    Args:
        config: Config of the algorithm.
        clock: CPU seconds of this process, or wall time with remote EnvRunners.

    Attributes:
        episodes: Episodes of the last iteration.
    """

    def __init__(
        self, config: Any, clock: Callable[[], float] = time.process_time
    ) -> None:
        self.algo = config.build_algo()
        self._clock = clock
        self._spent: dict[str, float] = {}
        self.episodes: list[Any] = []
        group, runner = self.algo.learner_group, self.algo.env_runner
        group.update = self._timed("update", group.update)
        if config.num_env_runners:
            self.algo.sample_groups = self._timed("rollout", self.algo.sample_groups)
        else:
            runner.sample = self._timed("rollout", runner.sample)

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = self._clock()
            result = function(*args, **kwargs)
            self._spent[name] = self._clock() - start
            if name == "rollout":
                self.episodes = result
            return result

        return call

    def measure(self) -> Measured:
        """Run one training iteration."""
        self._spent.clear()
        start = self._clock()
        result = self.algo.train()
        total = self._clock() - start
        learner = result["learners"]["default_policy"]
        return Measured(
            self._spent["rollout"],
            self._spent["update"],
            total,
            int(result["env_runners"]["num_completion_tokens"]),
            int(learner["num_trained_tokens"]),
            int(learner["num_sequence_tokens"]),
            peak_rss_mib(),
            float(result["env_runners"]["success_rate"]),
        )


class Peer:
    """TRL in another Python, driven over a pipe.

    Args:
        python: Interpreter of an environment with TRL.
        model: Folder of the model.
        options: Options of peer_trl.py, with underscores.
    """

    def __init__(self, python: str, model: str, **options: Any) -> None:
        script = str(HERE / "peer_trl.py")
        words = [python, script, "--model", model]
        for name, value in options.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self) -> Measured:
        """Request one update."""
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"The peer ended with {self._process.wait()}.")
        return Measured(**json.loads(line))

    def stop(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()


def part_of(size: str) -> int:
    """Return TRL's rows per forward pass: logits of 49,152 tokens take much memory."""
    return 8 if size == "smollm" else 64


def peak_rss_mib() -> float:
    """Return the peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=("tiny", "small", "smollm"))
    parser.add_argument(
        "--variant",
        default="fixed",
        choices=("fixed", "game"),
        help="game: the floor replays the lengths that we sampled",
    )
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--groups", type=int, default=8, help="of 8 episodes")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer-python", help="Python of an environment with TRL")
    parser.add_argument(
        "--peer-modes", nargs="+", default=["rollout_func", "environment_factory"]
    )
    args = parser.parse_args()
    contenders, stop = build(args)
    for contender in contenders.values():
        contender()  # warm-up
    runs: dict[str, list[Any]] = {name: [] for name in contenders}
    for _ in range(args.repeats):
        for name, contender in contenders.items():
            runs[name].append(contender())
    stop()
    print_rates(runs, f"{args.size}, {args.variant}, {args.dtype}")
    print_ratios(runs)


def model_folder(size: str, variant: str) -> str:
    """Return the folder of the model after SFT, which another process prepares.

    SFT would count towards the CPU seconds and the peak memory of this one.
    """
    prepare = (
        "import standing_workload as w; print(w.standing_config({!r}, {!r}).lm_model)"
    )
    return subprocess.run(
        [sys.executable, "-c", prepare.format(size, variant)],
        cwd=HERE,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.split()[-1]


def build(args: argparse.Namespace) -> tuple[dict[str, Callable[[], Any]], Any]:
    """Return the implementations, this package first, and a function to stop them."""
    model = model_folder(args.size, args.variant)
    from standing_workload import standing_config

    from rllib_llm.cli.session import quiet_loggers

    quiet_loggers()
    torch.set_num_threads(1)
    config = standing_config(
        args.size, args.variant, dtype=args.dtype, groups=args.groups
    )
    # Speed is measured here, so the policy stays what it is.
    ours = Ours(config.training(lr=1e-6, drop_zero_variance_groups=False))
    for _ in range(2):
        memory = ours.measure().rss_mib  # before the floor's memory counts
    dtype = getattr(torch, args.dtype)
    check(model, dtype)
    floor, part = Floor(model, dtype), PART[args.dtype]
    contenders: dict[str, Callable[[], Any]] = {
        "rllib_llm": lambda: dataclasses.replace(ours.measure(), rss_mib=memory),
    }
    if args.variant == "fixed" and args.size != "smollm":
        contenders["floor"] = lambda: measure_floor(floor, Shape(), part)
    else:  # what ours has just played
        contenders["floor"] = lambda: measure_trace(
            floor, trace_of(ours.episodes), part
        )
    peers = []
    for mode in args.peer_modes if args.peer_python else ():
        options = {"mode": mode, "variant": args.variant, "dtype": args.dtype}
        options |= {"groups": args.groups, "form": form_of(args.size)}
        options |= {"minibatch": 8 * args.groups, "part": part_of(args.size)}
        peers.append(Peer(args.peer_python, model, **options))
        contenders[f"TRL, {mode}"] = peers[-1].measure

    def stop() -> None:
        ours.algo.stop()
        for peer in peers:
            peer.stop()

    return contenders, stop


def print_rates(runs: dict[str, list[Any]], title: str) -> None:
    """Print medians with their range, and shares of the floor."""
    print(f"\n{title}: median (least to most) of {len(runs['rllib_llm'])} repeats\n")
    head = ["contender"]
    for name in RATES:
        head += [name, "share of floor"]
    head += ["iteration, CPU-s", "sampled tokens", "peak RSS, MiB"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for name, measured in runs.items():
        cells = [name]
        for rate in RATES.values():
            cells += [spread([rate(m) for m in measured])]
            floor = runs.get("floor")
            cells += [f"{median_ratio(rate, measured, floor):.2f}" if floor else "-"]
        cells += [f"{statistics.median(m.total_s for m in measured):.2f}"]
        cells += [f"{statistics.median(m.sampled for m in measured):,.0f}"]
        rss = getattr(measured[-1], "rss_mib", None)
        cells += [f"{rss:,.0f}" if rss else "-"]
        print(f"| {' | '.join(cells)} |")


def print_ratios(runs: dict[str, list[Any]]) -> None:
    """Print the ratio of this package's tokens per CPU second to that of the peers."""
    peers = [name for name in runs if name not in ("floor", "rllib_llm")]
    if not peers:
        return
    print("\n| rllib_llm over | rollout | update | iteration |\n|---|---|---|---|")
    for peer in peers:
        pair = runs["rllib_llm"], runs[peer]
        ratios = [median_ratio(rate, *pair) for rate in RATES.values()]
        print(f"| {peer} | {' | '.join(f'{r:.2f}x' for r in ratios)} |")


def median_ratio(rate: Any, ours: list[Any], theirs: list[Any]) -> float:
    """Return the median over repeats of the ratio of consecutive measurements."""
    pairs = zip(ours, theirs, strict=True)
    return statistics.median(rate(a) / rate(b) for a, b in pairs)


def spread(values: list[float]) -> str:
    """Return median and range."""
    middle = statistics.median(values)
    return f"{middle:,.0f} ({min(values):,.0f} to {max(values):,.0f})"


if __name__ == "__main__":
    main()
