"""Findings about the machine and installed packages."""

import json
import subprocess
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from rllib_llm.doctor import machine
from rllib_llm.doctor.activations import activation_bytes
from rllib_llm.doctor.findings import FAIL, OK, WARN


def one(findings, name):
    (finding,) = [f for f in findings if f.name == name]
    return finding


def test_every_finding_that_is_not_ok_has_a_remedy():
    findings = machine.examine_machine()
    assert {"python", "torch", "threads", "memory", "disk", "sandbox"} <= {
        f.name for f in findings
    }
    for finding in findings:
        assert finding.status in (OK, WARN, FAIL)
        assert (finding.remedy is None) == (finding.status == OK), finding


def test_versions_are_compared_with_their_ranges():
    have = metadata.version("torch")
    judge = machine.judge_requirement
    assert judge(Requirement("torch>=1.0")).status == OK
    wrong = judge(Requirement("torch<1.0"))
    assert wrong.status == FAIL and have in wrong.observed and "<1.0" in wrong.remedy
    missing = judge(Requirement("no-such-package>=2"))
    assert missing.status == FAIL and missing.remedy == (
        "pip install 'no-such-package>=2'"
    )
    assert judge(Requirement("no-such-package>=2; extra == 'x'")) is None


@pytest.mark.parametrize(
    "given, status", [("100000", WARN), ("many", FAIL), ("0", FAIL), ("1", OK)]
)
def test_threads(monkeypatch, given, status):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    finding = machine._threads()
    assert finding.status == status and given in finding.observed


def test_cpu_build_of_torch_on_a_machine_with_a_gpu(monkeypatch):
    monkeypatch.setattr(machine, "_nvidia_gpus", lambda: ["Some GPU, 80 GiB"])
    monkeypatch.setattr(machine.metadata, "version", lambda name: "2.6.0+cpu")
    assert machine._devices().status == WARN
    monkeypatch.setattr(machine.metadata, "version", lambda name: "2.6.0")
    assert machine._devices().observed == "Some GPU, 80 GiB"


def test_little_memory(monkeypatch):
    monkeypatch.setattr(machine, "memory", lambda: (2**40, 2**20))
    assert machine._memory().status == WARN
    (shared,) = machine._shared_memory() or [None]
    assert shared is None or "--shm-size=307g" in shared.remedy


def test_activation_bytes_follow_the_formula():
    class Config:
        hidden_size, num_hidden_layers, vocab_size = 64, 4, 1000

    def estimate(tokens=128, **how):
        usual = {
            "element_size": 2,
            "gradient_checkpointing": False,
            "head_chunk_tokens": None,
        }
        return activation_bytes(Config, tokens, **usual | how)

    logits = 2 * 4 * 1000 * 128
    assert estimate() == 34 * 64 * 4 * 128 + logits
    assert estimate(element_size=4) - logits == 2 * (estimate() - logits)
    assert estimate(tokens=256) == 2 * estimate()
    assert estimate(head_chunk_tokens=1) == estimate() - logits * 127 // 128
    assert estimate(gradient_checkpointing=True) < estimate()


def test_machine_checks_do_not_import_torch_or_ray():
    code = (
        "import json, sys\n"
        "from rllib_llm.cli.main import main\n"
        "try:\n    main(['doctor', '--json'])\n"
        "except SystemExit as end:\n    assert end.code in (0, 1), end.code\n"
        "heavy = {'torch', 'ray', 'transformers', 'gymnasium'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert one_of_json(done.stdout, "python")["status"] == OK


def one_of_json(text, name):
    (finding,) = [f for f in json.loads(text)["findings"] if f["name"] == name]
    return finding
