"""Checks of the machine and the installed packages; imports neither torch nor ray."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rllib_llm.doctor.findings import FAIL, OK, WARN, Finding, size
from rllib_llm.torch_threads import available_cores

PACKAGE = "rllib-llm"
_GIB = 2**30
_LEAST_MEMORY = 2 * _GIB
_LEAST_DISK = 5 * _GIB
_OBJECT_STORE_SHARE = 0.3  # share of the memory that Ray takes by default
# Packages that are always listed; of the others only those with a problem.
_SHOWN = ("ray", "torch", "transformers", "vllm")


def examine_machine() -> list[Finding]:
    """Check versions, devices, threads, memory, disk and the sandbox."""
    return [
        _python(),
        *_packages(),
        _devices(),
        _threads(),
        _memory(),
        *_shared_memory(),
        *_disk(),
        _sandbox(),
    ]


# Versions ----------------------------------------------------------------------------


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    wanted = _metadata_field("Requires-Python")
    if wanted and version not in SpecifierSet(wanted):
        remedy = f"Use a Python {wanted}."
        return Finding("python", FAIL, version, remedy)
    return Finding("python", OK, version)


def _packages() -> list[Finding]:
    try:
        requirements = [Requirement(r) for r in metadata.requires(PACKAGE) or ()]
    except metadata.PackageNotFoundError:
        return [
            Finding(
                "packages",
                WARN,
                f"{PACKAGE} is not installed, so its required versions are unknown",
                "Install it, e.g. pip install -c constraints.txt -e .",
            )
        ]
    findings = (judge_requirement(r) for r in requirements if _applies(r))
    judged = [finding for finding in findings if finding is not None]
    shown = [f for f in judged if f.name in _SHOWN or f.status != OK]
    rest = len(judged) - len(shown)
    return [*shown, Finding("other packages", OK, f"{rest} as required")]


def _applies(requirement: Requirement) -> bool:
    """Return True if the package or one of its extras requires it here."""
    marker = requirement.marker
    extras = metadata.metadata(PACKAGE).get_all("Provides-Extra") or []
    return marker is None or any(
        marker.evaluate({"extra": extra}) for extra in ("", *extras)
    )


def judge_requirement(requirement: Requirement) -> Finding | None:
    """Compare the installed version with a requirement.

    Args:
        requirement: A requirement of the package; those of extras are optional.

    Returns:
        None if the package belongs to an extra and is not installed.
    """
    is_extra = requirement.marker is not None and "extra" in str(requirement.marker)
    name, wanted = requirement.name, requirement.specifier
    install = f"pip install '{name}{wanted}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        if is_extra:
            return None
        return Finding(name, FAIL, "not installed", install)
    if not wanted.contains(version, prereleases=True):
        return Finding(name, FAIL, f"{version}, but {wanted} is required", install)
    return Finding(name, OK, f"{version}{f' ({wanted})' if str(wanted) else ''}")


def _metadata_field(name: str) -> str | None:
    try:
        return metadata.metadata(PACKAGE)[name]
    except metadata.PackageNotFoundError:
        return None


# Devices and threads -----------------------------------------------------------------


def _devices() -> Finding:
    gpus = _nvidia_gpus()
    if not gpus:
        return Finding("devices", OK, "no CUDA device; everything runs on the CPU")
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    if "+cpu" in torch:
        return Finding(
            "devices",
            WARN,
            f"{'; '.join(gpus)}, but torch {torch} is built for CPUs",
            "Install a torch build for CUDA (https://pytorch.org/get-started).",
        )
    return Finding("devices", OK, "; ".join(gpus))


def _nvidia_gpus() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    fields = ["--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            [program, *fields], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _threads() -> Finding:
    given, available = os.environ.get("OMP_NUM_THREADS"), available_cores()
    observed = f"{available} cores, OMP_NUM_THREADS {given or 'not set'}"
    if given is None:
        return Finding("threads", OK, f"{observed}: chosen by the model's size")
    if not given.isdigit() or not int(given):
        remedy = "Set it to a number of threads, or unset it."
        return Finding("threads", FAIL, observed, remedy)
    if int(given) > available:
        remedy = (
            f"Set OMP_NUM_THREADS={available} or less; more threads do not run faster."
        )
        return Finding("threads", WARN, observed, remedy)
    return Finding("threads", OK, observed)


# Memory and disk ---------------------------------------------------------------------


def memory() -> tuple[int, int]:
    """Return the machine's total and available memory in bytes."""
    file = Path("/proc/meminfo")
    if file.is_file():
        lines = (line.split(":") for line in file.read_text().splitlines())
        kib = {name: int(value.split()[0]) for name, value in lines}
        return kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total, total


def _memory() -> Finding:
    total, available = memory()
    observed = f"{size(available)} of {size(total)} available"
    if available < _LEAST_MEMORY:
        remedy = "Stop other programs: Ray, torch and a small model need about 2 GiB."
        return Finding("memory", WARN, observed, remedy)
    return Finding("memory", OK, observed)


def _shared_memory() -> list[Finding]:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return []
    total, wanted = shutil.disk_usage(folder).total, _OBJECT_STORE_SHARE * memory()[0]
    observed = f"{size(total)} in {folder}"
    if total >= wanted:
        return [Finding("shared memory", OK, observed)]
    return [
        Finding(
            "shared memory",
            WARN,
            f"{observed}; Ray's object store requires {size(wanted)}, so it uses /tmp "
            "instead, where sending weights is slower",
            f"Enlarge it, e.g. docker run --shm-size={wanted / _GIB:.0f}g.",
        )
    ]


def _disk() -> list[Finding]:
    home = Path.home()
    folders = {
        "results": os.environ.get("RLLIB_LLM_RESULTS", home),
        "cache": os.environ.get("RLLIB_LLM_CACHE", home),
        "temporary files": os.environ.get("TMPDIR", "/tmp"),
    }
    findings = []
    for name, given in folders.items():
        folder = Path(given).expanduser()
        while not folder.exists():
            folder = folder.parent
        free = shutil.disk_usage(folder).free
        observed = f"{size(free)} free for {name} ({folder})"
        if free < _LEAST_DISK:
            variable = {"results": "RLLIB_LLM_RESULTS", "cache": "RLLIB_LLM_CACHE"}
            remedy = f"Free some space, or set {variable.get(name, 'TMPDIR')}."
            findings.append(Finding("disk", WARN, observed, remedy))
    return findings or [Finding("disk", OK, observed)]


def _sandbox() -> Finding:
    from rllib_llm.sandbox.support import probe

    observed = probe()
    if observed["backends"]:
        return Finding("sandbox", OK, ", ".join(observed["backends"]))
    return Finding(
        "sandbox",
        WARN,
        f"none: fork_server requires {'; '.join(observed['missing'])}",
        "Programs written by models cannot run. See docs/sandbox.md, or install "
        "'rllib-llm[sandbox]'.",
    )
