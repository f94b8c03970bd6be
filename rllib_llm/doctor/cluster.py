"""Checks of every node of a Ray cluster: versions, and folders that all must read."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rllib_llm.algorithms.driver.placement import unplaceable
from rllib_llm.doctor.findings import FAIL, OK, WARN, Finding, size

# Pickled data and weights pass between the processes of these.
_SAME = ("ray", "torch", "transformers", "rllib-llm", "numpy")
_ANSWER_S = 60.0
_LEAST_DISK = 5 * 2**30


@dataclasses.dataclass(frozen=True)
class NodeReport:
    """Report of one node on itself.

    Attributes:
        versions: Installed versions, by package; None for one that is missing.
        texts: Contents of the files that it should read, by the folder's name; None if
            it cannot read one.
        free_disk: Free bytes where Ray's temporary files lie.
    """

    versions: Mapping[str, str | None]
    texts: Mapping[str, str | None]
    free_disk: int


def examine_cluster(
    written: Mapping[str, Path], read: Mapping[str, Path]
) -> Iterator[Finding]:
    """Ask every living node, each for at most a minute.

    Args:
        written: Folders in which the driver writes and that all nodes must read under
            the same path, by what they hold. They are created.
        read: Files that all nodes must read under the same path.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    yield Finding("cluster", OK, f"{len(nodes)} nodes: {_resources()}")
    with _marked(written) as marks:
        files = {**marks, **read}
        driver = report(files)
        asked = [(_name(node), _ask(node["NodeID"], files)) for node in nodes]
        for name, answer in asked:
            try:
                node = ray.get(answer, timeout=_ANSWER_S)
            except GetTimeoutError:
                yield _silent(name, f"it did not answer within {_ANSWER_S:g} s")
            except RayError as error:
                yield _silent(name, str(error).strip().splitlines()[-1])
            else:
                yield judge(name, node, driver)


def report(files: Mapping[str, Path]) -> NodeReport:
    """Return the report of the machine on which this is called.

    Args:
        files: Files to read, by the folder's name.
    """
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in _SAME:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    texts: dict[str, str | None] = {}
    for name, file in files.items():
        try:
            texts[name] = file.read_text(encoding="utf-8")
        except OSError:
            texts[name] = None
    return NodeReport(versions, texts, shutil.disk_usage(tempfile.gettempdir()).free)


def judge(name: str, node: NodeReport, driver: NodeReport) -> Finding:
    """Return the finding of one node.

    Args:
        name: The node's name.
        node: Its report.
        driver: The report of the driver's machine.
    """
    differing = [
        f"{package} {version or 'missing'} (here {driver.versions[package]})"
        for package, version in node.versions.items()
        if version != driver.versions[package]
    ]
    if differing:
        remedy = "Install the same versions on all nodes, e.g. by one container image."
        return Finding(name, FAIL, ", ".join(differing), remedy)
    unread = [
        folder for folder, text in node.texts.items() if text != driver.texts[folder]
    ]
    if unread:
        return Finding(
            name,
            FAIL,
            f"does not see the driver's files: {', '.join(unread)}",
            "Mount one file system under the same path on all nodes, and put the "
            "results (--storage), RLLIB_LLM_CACHE and the model's folder there.",
        )
    if node.free_disk < _LEAST_DISK:
        observed = f"{size(node.free_disk)} free for Ray's temporary files"
        remedy = "Free some space: Ray writes objects and logs there."
        return Finding(name, WARN, observed, remedy)
    return Finding(name, OK, f"versions agree; sees {', '.join(node.texts)}")


def examine_placement(
    bundles: Iterable[Mapping[str, float]], nodes: list[Mapping[str, float]]
) -> Finding:
    """Judge whether nodes can hold the processes of a run.

    Args:
        bundles: Resources of each process.
        nodes: Resources of each node.
    """
    bundles = list(bundles)
    missing = unplaceable(bundles, nodes)
    if missing is None:
        return Finding("placement", OK, f"{len(bundles)} processes fit on the nodes")
    remedy = "Add nodes, or lower what the run requests (docs/cluster.md)."
    return Finding("placement", FAIL, missing, remedy)


@contextlib.contextmanager
def _marked(folders: Mapping[str, Path]) -> Iterator[dict[str, Path]]:
    """Write a file into each folder, and remove it at the end."""
    marks, token = {}, uuid.uuid4().hex
    try:
        for name, folder in folders.items():
            folder.mkdir(parents=True, exist_ok=True)
            marks[name] = folder / f".rllib_llm_doctor_{token}"
            marks[name].write_text(token)
        yield marks
    finally:
        for mark in marks.values():
            mark.unlink(missing_ok=True)


def _ask(node_id: str, files: Mapping[str, Path]) -> ray.ObjectRef:
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    task = ray.remote(num_cpus=0, max_retries=0)(report)
    return task.options(scheduling_strategy=strategy).remote(dict(files))


def _name(node: Mapping[str, str]) -> str:
    return f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"


def _resources() -> str:
    total = ray.cluster_resources()
    shown = {k: v for k, v in total.items() if "node:" not in k and "memory" not in k}
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(shown.items()))


def _silent(name: str, observed: str) -> Finding:
    remedy = "Look at the logs of Ray on that node (/tmp/ray/session_latest/logs)."
    return Finding(name, FAIL, observed, remedy)
