"""``rllib-llm doctor``: checks of the machine and of a recipe."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import typer

from rllib_llm.doctor.findings import FAIL, Finding
from rllib_llm.doctor.machine import examine_machine


def doctor(arguments: list[str], *, as_json: bool, verbose: bool) -> int:
    """Print findings as they are made; return 1 if one of them is a failure.

    Args:
        arguments: A recipe and its overrides; if empty, only the machine is checked.
        as_json: Print JSON at the end instead.
        verbose: Show the output of Ray and all processes.
    """
    findings = []
    for finding in _examine(arguments, verbose):
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


def _line(finding: Finding) -> str:
    line = f"{finding.status:<4}  {finding.name:<17}  {finding.observed}"
    return f"{line}\n{'':25}{finding.remedy}" if finding.remedy else line
