"""A long run whose processes and nodes are killed, beside one that is left alone.

Run:     python benchmarks/soak.py --iterations 500 --every 10 --storage FOLDER
Table:   python benchmarks/soak.py --table
Writes:  benchmarks/results/soak.json

A Ray cluster of four nodes on this machine: the head, two for EnvRunners, one for two
Learners. A Tuner trains ``guess_number_grpo`` on it, with a torch engine in an actor
that both EnvRunners share, checkpoints, and Tune's restarts. Each time the run has made
``--every`` iterations, an EnvRunner, the engine, a Learner or a node with an EnvRunner
is killed; another node then joins. At the end every iteration must be in the results
once, trained with exactly the groups whose turn it was.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
# In the usual folder it would be the default cluster of all processes.
os.environ.setdefault("RAY_TMPDIR", tempfile.mkdtemp(prefix="ray"))

import psutil
import ray
from ray import tune
from ray.cluster_utils import Cluster
from transformers import AutoModelForCausalLM

from rllib_llm import GRPO, GRPOConfig
from rllib_llm.data.episode_data import task_of
from rllib_llm.engines import ActorEngine, TorchEngine
from rllib_llm.evaluation.success_statistics import wilson_interval
from rllib_llm.recipes import load_recipe
from rllib_llm.recipes.run_stages import prepare
from rllib_llm.recipes.tuning import make_tuner

RESULTS = Path(__file__).parent / "results" / "soak.json"
TITLES = {
    "env_runner": "ray::LLMEnvRunner",
    "engine": "ray::EngineHost",
    "learner": "ray::_WrappedExecutable",
}
SETTINGS = [
    "env_runners.num_env_runners=2",
    "learners.num_learners=2",
    "learners.num_cpus_per_learner=1",
    "resources.placement={env_runners: samplers, learners: trainers}",
    "resources.wait_for_nodes_s=120",
    "fault_tolerance.delay_between_env_runner_restarts_s=1",
    "fault_tolerance.env_runner_health_probe_timeout_s=5",
    "fault_tolerance.min_healthy_timeout_s=120",
    "rollouts.episodes_per_iteration=64",
    "tune.checkpoint_frequency=5",
    "tune.max_failures=1000",
    "training.lr=1e-4",
    "evaluation.evaluation_duration=200",
]
SAMPLERS = {"num_cpus": 1, "resources": {"samplers": 1}}
TRAINERS = {"num_cpus": 2, "resources": {"trainers": 1}}
TASKS = "trained_groups"


def build_torch_engine(folder: str, **settings: Any) -> TorchEngine:
    """Return an engine with a copy of the model; the actor calls it."""
    return TorchEngine(AutoModelForCausalLM.from_pretrained(folder), **settings)


class SoakConfig(GRPOConfig):
    """GRPO whose EnvRunners share one torch engine in an actor."""

    def build_generation_engine(self, module: Any, **_: Any) -> ActorEngine:
        """Return this EnvRunner's client of the actor."""
        context, renderer = self.resolved_context_tokens(), self.chat_renderer()
        build = functools.partial(
            build_torch_engine,
            self.resolved_model,
            max_slots=2 * self.num_envs_per_env_runner,
            max_context_tokens=context,
            tokenizer=renderer.tokenizer,
            vocabulary=renderer.vocabulary,
        )
        return ActorEngine(
            build,
            name=self.engine_actor,
            max_context_tokens=context,
            has_tokenizer=True,
        )


class Soak(GRPO):
    """GRPO that adds the sampled groups of an iteration to its result."""

    @classmethod
    def get_default_config(cls) -> SoakConfig:
        """Return the config with the engine in an actor."""
        return SoakConfig(cls)

    def sample_groups(self, num_groups: int) -> Any:
        """Keep which groups these are."""
        episodes = super().sample_groups(num_groups)
        self._groups = Counter(task_of(episode).group_id for episode in episodes)
        return episodes

    def step(self) -> dict[str, Any]:
        """Add them to the result: group and number of its episodes."""
        result = super().step()
        return result | {TASKS: sorted(self._groups.items())}


@dataclasses.dataclass(frozen=True)
class Limits:
    """Conditions that end a run before its last iteration.

    Attributes:
        minutes: Longest time of the run.
        stall_minutes: Longest time without a new iteration: it hangs, or the machine
            has no time for it.
    """

    minutes: float
    stall_minutes: float


class Machines:
    """The cluster and the processes on it."""

    def __init__(self) -> None:
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": 0}
        )
        self.samplers = [self.cluster.add_node(**SAMPLERS) for _ in range(2)]
        self.cluster.add_node(**TRAINERS)

    def kill(self, kind: str) -> bool:
        """Kill a process or node of a kind; False if none is there just now."""
        if kind == "node":
            self.cluster.remove_node(self.samplers.pop(0), allow_graceful=False)
            self.samplers.append(self.cluster.add_node(**SAMPLERS))
            return True
        victims = [p for p in descendants() if title(p).startswith(TITLES[kind])]
        if not victims:
            return False
        random.choice(victims).send_signal(signal.SIGKILL)
        return True


def descendants() -> list[psutil.Process]:
    """Return the processes that this one started, directly or not."""
    return psutil.Process().children(recursive=True)


def title(process: psutil.Process) -> str:
    """Return a process's title; empty if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def tune_run(storage: Path, iterations: int) -> None:
    """Train to the end, in a process of its own; actors that die are replaced."""
    # This program's classes, which other processes cannot import.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    stop = f"stop.training_iteration={iterations}"
    often = f"evaluation.evaluation_interval={min(50, iterations)}"
    settings = [*SETTINGS, stop, often]
    (recipe,) = load_recipe("guess_number_grpo", settings).stages
    config = prepare(recipe)
    tune.register_trainable("Soak", Soak)
    recipe = dataclasses.replace(recipe, algo="Soak")
    make_tuner(recipe, storage, config=config).fit()


@dataclasses.dataclass
class Ended:
    """A run that has ended.

    Attributes:
        kills: Iteration and kind of each kill.
        seconds: Wall time.
        stalled: Whether it was ended because no iteration came for too long.
    """

    kills: list[dict[str, Any]]
    seconds: float
    stalled: bool = False


def train(
    machines: Machines, storage: Path, every: int, iterations: int, limits: Limits
) -> Ended:
    """Run to the end, and kill something after each ``every`` iterations if not 0.

    After a limit the run ends with what it has.
    """
    command = [sys.executable, __file__, "--tune-only", "--storage", str(storage)]
    process = subprocess.Popen(
        [*command, "--iterations", str(iterations)],
        env={**os.environ, "RAY_ADDRESS": machines.cluster.address},
        stdout=subprocess.DEVNULL,
        stderr=(storage / "errors.txt").open("w"),
    )
    kills, started, seen, changed = [], time.monotonic(), 0, time.monotonic()
    length = 0
    while process.poll() is None:
        time.sleep(0.2)
        now, before, length = time.monotonic(), length, written_bytes(storage)
        if length != before:
            newest = max((r["training_iteration"] for r in rows(storage)), default=0)
            # An iteration that is repeated is progress, too.
            seen, changed = newest, now
        stalled = now - changed > 60 * limits.stall_minutes
        if stalled or now - started > 60 * limits.minutes:
            process.kill()
            process.wait()
            return Ended(kills, now - started, stalled)
        if every and seen // every > len(kills) and seen < iterations:
            kind = random.choice([*TITLES, "node"])
            # At any moment of the next iteration.
            time.sleep(random.random())
            if machines.kill(kind):
                kills.append({"iteration": seen, "kind": kind})
                print(kills[-1], f"{time.monotonic() - started:.0f} s", flush=True)
    if process.returncode:
        raise SystemExit((storage / "errors.txt").read_text()[-3000:])
    return Ended(kills, time.monotonic() - started)


def written_bytes(storage: Path) -> int:
    """Return how long the results of all iterations are."""
    return sum(path.stat().st_size for path in storage.glob("*/*/result.json"))


def rows(storage: Path) -> list[dict[str, Any]]:
    """Return the results of all iterations that were written whole."""
    found = []
    for path in storage.glob("*/*/result.json"):
        for line in path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # the last line is being written
    return found


def summary(ended: Ended, storage: Path) -> dict[str, Any]:
    """Return what a run's results say.

    An iteration after the newest checkpoint is made again when a Learner dies: the last
    row of an iteration counts.
    """
    found = last_rows(storage)
    evaluated = [
        row["evaluation"]["env_runners"]
        for row in found.values()
        if row.get("evaluation")
    ]
    lost, doubled = wrong_groups(found)
    return {
        "iterations": len(found),
        "repeated": len(rows(storage)) - len(found),
        "restart_seconds": restart_seconds(storage),
        "lost_groups": lost,
        "doubled_groups": doubled,
        "lost_episodes": sum(row["num_episodes_lost"] for row in found.values()),
        "retried": sum(row["num_groups_retried"] for row in found.values()),
        "success": [row["success_rate"] for row in evaluated],
        "episodes": [row["num_episodes"] for row in evaluated],
        "kills": ended.kills,
        "seconds": ended.seconds,
        "stalled": ended.stalled,
    }


def last_rows(storage: Path) -> dict[int, dict[str, Any]]:
    """Return the last result of each iteration."""
    return {row["training_iteration"]: row for row in rows(storage)}


def restart_seconds(storage: Path) -> list[int]:
    """Return the time from each restart's last result before it to its first one."""
    return [
        row["timestamp"] - before["timestamp"]
        for before, row in itertools.pairwise(rows(storage))
        if row["iterations_since_restore"] == 1
    ]


def equal_iterations(one: Path, other: Path) -> int:
    """Return how many iterations have the same return, loss and gradient in two runs.

    Equal to the bit; NaN, of an iteration without an update, equals NaN.
    """

    def values(row: dict[str, Any]) -> str:
        learner = row["learners"].get("default_policy", {})
        return json.dumps(
            [row["env_runners"]["episode_return_mean"]]
            + [learner.get(n) for n in ("total_loss", "grad_norm")]
        )

    left, right = last_rows(one), last_rows(other)
    return sum(values(left[i]) == values(right[i]) for i in left.keys() & right.keys())


def wrong_groups(found: dict[int, dict[str, Any]]) -> tuple[int, int]:
    """Return how many groups were trained never or incomplete, and how many twice."""
    trained = Counter({})
    for row in found.values():
        trained.update(dict(map(tuple, row[TASKS])))
    per_iteration = len(found[1][TASKS])
    size = found[1][TASKS][0][1]
    expected = range(per_iteration * len(found))
    lost = sum(trained[group] < size for group in expected)
    doubled = sum(number > size for number in trained.values())
    return lost + len(trained.keys() - set(expected)), doubled


def print_table() -> None:
    """Print one row per run."""
    names = ("iterations", "repeated", "lost_groups", "doubled_groups", "retried")
    notes = []
    print("| run | kills | " + " | ".join(n.replace("_", " ") for n in names), end="")
    print(" | minutes | held-out success at the end (95 %) |\n|" + 9 * "---|")
    for name, run in json.loads(RESULTS.read_text()).items():
        kinds = Counter(kill["kind"] for kill in run["kills"])
        killed = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())) or "-"
        success, episodes = run["success"][-1], run["episodes"][-1]
        low, high = wilson_interval(success * episodes, episodes)
        cells = [name, killed, *(str(run[n]) for n in names)]
        cells += [f"{run['seconds'] / 60:.0f}"]
        cells += [f"{success:.3f} ({low:.3f} to {high:.3f})"]
        print(f"| {' | '.join(cells)} |")
        if run["restart_seconds"]:
            notes.append(f"{name}: restarts took {run['restart_seconds']} s")
        if "equal_iterations" in run:
            equal, of = run["equal_iterations"], run["iterations"]
            notes.append(f"equal return, loss and gradient: {equal} of {of} iterations")
    print("\n" + "\n".join(notes))


def main() -> None:
    """Run both, print one line for each and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=600.0, help="of each run")
    parser.add_argument("--stall-minutes", type=float, default=10.0)
    parser.add_argument("--storage", type=Path)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--tune-only", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.table:
        return print_table()
    if args.storage is None:
        parser.error("--storage is required.")
    if args.tune_only:
        return tune_run(args.storage, args.iterations)
    random.seed(0)
    found, iterations = {}, args.iterations
    for name, every in (("killed", args.every), ("alone", 0)):
        machines, storage = Machines(), args.storage / name
        storage.mkdir(parents=True)
        limits = Limits(args.minutes, args.stall_minutes)
        ended = train(machines, storage, every, iterations, limits)
        found[name] = summary(ended, storage)
        # The undisturbed run as long as the other one.
        iterations = found[name]["iterations"]
        machines.cluster.shutdown()
        print(name, found[name], flush=True)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        if name == "alone":
            equal = equal_iterations(args.storage / "killed", storage)
            found[name]["equal_iterations"] = equal
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        if ended.stalled:
            raise SystemExit(
                f"{name}: no new iteration in {limits.stall_minutes:g} min."
            )
    print_table()
    return None


if __name__ == "__main__":
    main()
