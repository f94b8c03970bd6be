"""Findings about the nodes of a cluster."""

from __future__ import annotations

import dataclasses

import pytest

from rllib_llm.doctor.cluster import examine_placement, judge, report
from rllib_llm.doctor.findings import FAIL, OK, WARN


@pytest.fixture
def own(tmp_path):
    mark = tmp_path / "mark"
    mark.write_text("token")
    return report({"results": mark})


def test_equal_nodes_are_ok(own):
    finding = judge("10.0.0.2:5", own, own)
    assert (finding.name, finding.status) == ("10.0.0.2:5", OK)
    assert "results" in finding.observed


def test_other_versions_fail(own):
    versions = {**own.versions, "torch": "2.0.0", "numpy": None}
    finding = judge("n", dataclasses.replace(own, versions=versions), own)
    assert finding.status == FAIL
    assert f"torch 2.0.0 (here {own.versions['torch']})" in finding.observed
    assert "numpy missing" in finding.observed


@pytest.mark.parametrize("text", [None, "another file"])
def test_folders_that_differ_fail(own, text):
    finding = judge("n", dataclasses.replace(own, texts={"results": text}), own)
    assert finding.status == FAIL and "files: results" in finding.observed
    assert "RLLIB_LLM_CACHE" in finding.remedy


def test_little_disk_is_a_warning(own):
    finding = judge("n", dataclasses.replace(own, free_disk=2**20), own)
    assert finding.status == WARN and "1 MiB" in finding.observed


def test_files_that_cannot_be_read_are_none(tmp_path):
    assert report({"cache": tmp_path / "no"}).texts == {"cache": None}


def test_placement_is_judged_before_a_run():
    nodes = [{"CPU": 2.0}]
    assert examine_placement([{"CPU": 1.0}], nodes).status == OK
    missing = examine_placement([{"GPU": 1.0}], nodes)
    assert missing.status == FAIL and "1 GPU" in missing.observed
