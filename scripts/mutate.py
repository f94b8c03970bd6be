"""Inject known faults one at a time and check that the tests notice.

    python scripts/mutate.py                  # all faults of tests/faults/*.yaml
    python scripts/mutate.py --only rollout   # faults whose file or text has the word
    python scripts/mutate.py --check          # check only that each fault still applies

Each fault replaces a text in a source file. It is applied in a
temporary copy of the tree, never in the checkout; only the tests that it names run. A
fault that no test notices has *survived*; one whose text is gone is *stale*.
"""

from __future__ import annotations

import argparse
import builtins
import dataclasses
import gc
import importlib
import json
import os
import shutil
import signal
import subprocess
import symtable
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ROOT / "tests" / "faults"
# Large folders that the tests do not need.
_LEFT_OUT = ("docs/notebooks/",)
_FAST = "not slow and not gpu and not learning"
_PRELOADED = (
    "pytest",
    "torch",
    "ray.rllib.algorithms.ppo",
    "ray.tune",
    "scipy.signal",
    "scipy.stats",
    "pettingzoo",
    "transformers",
)
_EXIT_STATUS = {0: "survived", 1: "killed"}


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault to inject.

    Attributes:
        file: Source file, relative to the root.
        old: Text that occurs exactly once in the file.
        new: Its replacement.
        breaks: Description of the resulting error.
        tests: Files or node ids of the tests that should notice.
    """

    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]

    def faulty(self, path: Path) -> str:
        """Return the source of the file with the fault."""
        return path.read_text(encoding="utf-8").replace(self.old, self.new)

    @property
    def package(self) -> str:
        """Subpackage of the file."""
        parts = Path(self.file).parts
        return parts[1] if len(parts) > 2 else parts[-1]

    def problem(self, root: Path = ROOT) -> str | None:
        """Return the reason why it cannot be injected, or None."""
        path = root / self.file
        if not path.is_file():
            return "the file is gone"
        count = path.read_text(encoding="utf-8").count(self.old)
        if count != 1:
            return f"its text occurs {count} times, not once: {self.old[:60]!r}"
        if self.old == self.new:
            return "it changes nothing"
        try:
            names = undefined_names(self.faulty(path)) if path.suffix == ".py" else []
        except SyntaxError as error:
            return f"its replacement does not compile: {error}"
        if names:  # such a fault would be noticed by any test
            return f"its replacement reads {names[0]!r}, which nothing defines"
        for test in self.tests:
            name, _, node = test.partition("::")
            if not (root / name).is_file():
                return f"the test file {name} is gone"
            function = node.split("::")[-1].partition("[")[0]
            if node and f"def {function}(" not in (root / name).read_text("utf-8"):
                return f"the test {test} is gone"
        return None


@dataclasses.dataclass
class Outcome:
    """Result of an injected fault.

    Attributes:
        fault: The fault.
        status: "killed", "survived", "timeout" (a test hangs: noticed), or "error" (no
            test could run).
        seconds: How long its tests ran.
        noticed_by: The first test that failed.
        output: The end of what pytest printed, unless it was killed.
    """

    fault: Fault
    status: str
    seconds: float
    noticed_by: str = ""
    output: str = ""


def undefined_names(source: str) -> list[str]:
    """Return the names that a module reads and nothing defines."""
    module = symtable.symtable(source, "module.py", "exec")
    symbols = module.get_symbols()
    known = {*dir(builtins), "__file__", "__name__", "__class__"}
    known |= {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}
    known |= {table.get_name() for table in module.get_children()}
    found, tables = set(), [module]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_declared_global() and symbol.is_assigned():
                known.add(symbol.get_name())
            elif symbol.is_referenced() and (symbol.is_global() or table is module):
                found.add(symbol.get_name())
    return sorted(found - known)


def load_faults(folder: Path = FAULTS) -> list[Fault]:
    """Return all faults, in the order of their files.

    Raises:
        ValueError: An entry is incomplete.
    """
    found: list[Fault] = []
    for path in sorted(folder.glob("*.yaml")):
        for file, entry in yaml.safe_load(path.read_text(encoding="utf-8")).items():
            for given in entry["faults"]:
                tests = tuple(given.get("tests", entry.get("tests", ())))
                missing = {"old", "new", "breaks"} - set(given)
                if missing or not tests:
                    raise ValueError(f"{path.name}, {file}: {given} lacks {missing}.")
                texts = (given["old"], given["new"], given["breaks"])
                found.append(Fault(file, *texts, tests))
    return found


# Running -----------------------------------------------------------------------------


class Copy:
    """A temporary copy of the tree, in which one fault at a time is present.

    Args:
        folder: Its folder.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self.log = folder / "pytest.txt"
        self._scratch = folder / "scratch"
        self._touched = 0
        for name in _listed_files():
            if not name.startswith(_LEFT_OUT) and (ROOT / name).exists():
                target = self.root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if (ROOT / name).is_symlink():
                    target.symlink_to(os.readlink(ROOT / name))
                else:
                    shutil.copy2(ROOT / name, target)

    def inject(self, fault: Fault) -> None:
        """Apply the fault."""
        path = self.root / fault.file
        path.write_text(fault.faulty(path), encoding="utf-8")
        # Compiled files are known by time (in seconds) and size of their source.
        self._touched += 1
        stamp = path.stat().st_mtime + 10 * self._touched
        os.utime(path, (stamp, stamp))

    def revert(self, fault: Fault) -> None:
        """Revert the fault."""
        shutil.copy2(ROOT / fault.file, self.root / fault.file)

    def start(self, tests: Sequence[str], *, stop_early: bool = True) -> int:
        """Run tests in a child of this process; return its id."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        (self._scratch / "cache").mkdir(parents=True)
        child = os.fork()
        if child:
            return child
        try:
            os.setsid()
            output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(output, 1)
            os.dup2(output, 2)
            status = self._pytest(tests, stop_early)
        except BaseException as error:
            os.write(1, repr(error).encode())
            status = 3
        os._exit(status)

    def _pytest(self, tests: Sequence[str], stop_early: bool) -> int:
        import pytest

        os.chdir(self.root)
        os.environ["PYTHONPATH"] = str(self.root)
        os.environ["RLLIB_LLM_CACHE"] = str(self._scratch / "cache")
        sys.path.insert(0, str(self.root))
        base = f"--basetemp={self._scratch / 'tests'}"
        options = ["-q", "-rfE", "-p", "no:cacheprovider", base]
        options += ["-x"] if stop_early else []
        # A slow test that is named runs, one of a whole file does not.
        named = [test for test in tests if "::" in test]
        files = [test for test in tests if "::" not in test]
        status = 0
        for chosen, marks in ((files, ["-m", _FAST]), (named, [])):
            if chosen and not (status and stop_early):
                status = max(status, int(pytest.main([*options, *marks, *chosen])))
        sys.stdout.flush()
        return status

    def output(self) -> str:
        """Return the end of what pytest printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-6000:]


def _listed_files() -> list[str]:
    """Return the files of the checkout that are not ignored."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def preload() -> None:
    """Import the slow modules that never contain faults, for all child processes."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    for name in _PRELOADED:
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    assert "rllib_llm" not in sys.modules, "Children must import their own copy."
    gc.collect()
    gc.freeze()  # pytest collects garbage several times; none of this is any


def _wait(child: int, limit_s: float) -> int | None:
    """Return the exit status of a child; None if it was ended at the limit."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:  # it leads no group (yet)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _noticed_by(output: str) -> str:
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split()[1]
    return ""


def run_fault(copy: Copy, fault: Fault, limit_s: float) -> Outcome:
    """Inject a fault, run its tests, and take it out again."""
    copy.inject(fault)
    started = time.monotonic()
    try:
        code = _wait(copy.start(fault.tests), limit_s)
    finally:
        copy.revert(fault)
    seconds = time.monotonic() - started
    if code is None:
        return Outcome(fault, "timeout", seconds)
    output = copy.output()
    status = _EXIT_STATUS.get(code, "error")
    if status == "killed":
        return Outcome(fault, status, seconds, _noticed_by(output))
    return Outcome(fault, status, seconds, output=output)


def run_faults(faults: Sequence[Fault], limit_s: float) -> Iterator[Outcome]:
    """Yield the outcome of each fault.

    Raises:
        RuntimeError: The tests fail without any fault.
    """
    preload()
    with tempfile.TemporaryDirectory(prefix="faults_") as folder:
        copy = Copy(Path(folder))
        tests = sorted({test for fault in faults for test in fault.tests})
        whole = [t for t in tests if "::" not in t or t.split("::")[0] not in tests]
        code = _wait(copy.start(whole, stop_early=False), limit_s * len(whole))
        if code != 0:
            raise RuntimeError(f"Tests fail without any fault:\n{copy.output()}")
        for fault in faults:
            yield run_fault(copy, fault, limit_s)


# Reporting ---------------------------------------------------------------------------


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a Markdown table of the packages, and the survivors by name."""
    lines = ["| package | faults | noticed | survived |", "|---|---|---|---|"]
    packages = sorted({o.fault.package for o in outcomes})
    for package in (*packages, "all"):
        found = [o for o in outcomes if package in (o.fault.package, "all")]
        counts = Counter(o.status for o in found)
        noticed = counts["killed"] + counts["timeout"]
        lines.append(f"| {package} | {len(found)} | {noticed} | {counts['survived']} |")
    for outcome in outcomes:
        if outcome.status in ("survived", "error"):
            fault = outcome.fault
            lines.append(f"\n{outcome.status}: {fault.file}: {fault.breaks}")
    return "\n".join(lines)


def _record(outcome: Outcome) -> dict[str, Any]:
    record = dataclasses.asdict(outcome.fault)
    seconds = round(outcome.seconds, 1)
    return {**record, **{k: getattr(outcome, k) for k in _KEPT}, "seconds": seconds}


_KEPT = ("status", "noticed_by", "output")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[""], help="words of file or text")
    parser.add_argument("--check", action="store_true", help="inject none")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds per fault")
    parser.add_argument("--report", type=Path, help="a file for all outcomes, JSON")
    arguments = parser.parse_args()
    words = [word.lower() for word in arguments.only]
    chosen = [
        fault
        for fault in load_faults()
        if any(word in f"{fault.file} {fault.breaks}".lower() for word in words)
    ]
    stale = [(f, f.problem()) for f in chosen if f.problem()]
    for fault, problem in stale:
        _say(f"stale: {fault.file}: {fault.breaks}: {problem}")
    if stale or arguments.check:
        _say(f"{len(chosen)} faults, {len(stale)} stale")
        return int(bool(stale))
    started, outcomes = time.monotonic(), []
    for outcome in run_faults(chosen, arguments.limit):
        outcomes.append(outcome)
        where = f"{outcome.fault.file}: {outcome.fault.breaks}"
        _say(f"{outcome.status:9}{outcome.seconds:6.1f} s  {where}")
        if outcome.status == "error":
            _say(outcome.output)
        if arguments.report:
            records = json.dumps([_record(o) for o in outcomes], indent=1)
            arguments.report.write_text(records, encoding="utf-8")
    _say(f"\n{table(outcomes)}")
    _say(f"\n{(time.monotonic() - started) / 60:.1f} minutes")
    return int(any(o.status in ("survived", "error") for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
