"""``rllib-llm doctor``: checks of the machine and of a recipe."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path

import typer

from rllib_llm.cache import cache_dir
from rllib_llm.doctor.findings import FAIL, Finding
from rllib_llm.doctor.machine import examine_machine
from rllib_llm.errors import ConfigError
from rllib_llm.runs.folders import default_storage


def doctor(
    arguments: list[str],
    *,
    cluster: bool,
    storage: Path | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Print findings as they are made; return 1 if one of them is a failure.

    Args:
        arguments: A recipe and its overrides; if empty, only machines are checked.
        cluster: Check the nodes of a cluster instead of this machine.
        storage: Parent of run folders, which all nodes must read; only with
            ``cluster``.
        as_json: Print JSON at the end instead.
        verbose: Show the output of Ray and all processes.
    """
    findings = []
    if storage is not None and not cluster:
        raise ConfigError(
            f"--storage {storage} is a check of --cluster. Add it, or leave --storage "
            "out."
        )
    examined = (
        _examine_cluster(arguments, storage, verbose)
        if cluster
        else _examine(arguments, verbose)
    )
    for finding in examined:
        findings.append(finding)
        if not as_json:
            typer.echo(_line(finding))
    if as_json:
        listed = [dataclasses.asdict(finding) for finding in findings]
        typer.echo(json.dumps({"findings": listed}, indent=2))
    return int(any(finding.status == FAIL for finding in findings))


def _examine(arguments: list[str], verbose: bool) -> Iterator[Finding]:
    yield from examine_machine()
    if not arguments:
        return
    from rllib_llm.cli.failures import describe
    from rllib_llm.cli.session import ray_session
    from rllib_llm.doctor.recipe_trial import examine_recipe

    name, *overrides = arguments
    with ray_session(verbose=verbose):
        yield from examine_recipe(name, overrides, describe)


def _examine_cluster(
    arguments: list[str], storage: Path | None, verbose: bool
) -> Iterator[Finding]:
    if "RAY_ADDRESS" not in os.environ:
        raise ConfigError(
            "--cluster checks a running cluster, and RAY_ADDRESS is not set. Run the "
            "command on a node of the cluster, with RAY_ADDRESS=auto."
        )
    from rllib_llm.algorithms.driver.placement import node_resources
    from rllib_llm.cli.session import ray_session
    from rllib_llm.doctor.cluster import examine_cluster, examine_placement
    from rllib_llm.recipes import load_recipe

    written = {"results": storage or default_storage(), "cache": cache_dir()}
    stages = load_recipe(arguments[0], arguments[1:]).stages if arguments else []
    configs = [stage.build_config() for stage in stages]
    models = {Path(str(config.lm_model)) / "config.json" for config in configs}
    read = {f"model {m.parent.name}": m for m in sorted(models) if m.is_file()}
    with ray_session(verbose=verbose):
        yield from examine_cluster(written, read)
        for config in configs:
            config.validate()
            request = config.algo_class.default_resource_request(config)
            yield examine_placement(request.bundles, node_resources())


def _line(finding: Finding) -> str:
    line = f"{finding.status:<4}  {finding.name:<17}  {finding.observed}"
    return f"{line}\n{'':25}{finding.remedy}" if finding.remedy else line
