"""Findings about the machine and installed packages."""

import json
import subprocess
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from rllib_llm.doctor import machine
from rllib_llm.doctor.activations import _layer_bytes, activation_bytes
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


class Sizes:
    hidden_size, num_hidden_layers, vocab_size = 64, 4, 1000
    intermediate_size, num_attention_heads, num_key_value_heads = 192, 4, 2


def estimate(tokens=128, **how):
    usual = {
        "element_size": 2,
        "gradient_checkpointing": False,
        "head_chunk_tokens": None,
    }
    return activation_bytes(Sizes, tokens, **usual | how)


def test_activation_bytes_grow_with_what_a_pass_holds():
    assert estimate(tokens=256) > 1.9 * estimate()
    assert 1.3 * estimate() < estimate(element_size=4) < 2 * estimate()
    assert estimate(gradient_checkpointing=True) < estimate()
    assert estimate(head_chunk_tokens=1) < estimate(head_chunk_tokens=64) < estimate()
    # float32 weights under autocast, whose gradients are those of the weights.
    assert estimate(weight_size=4) - estimate() == 2 * 2 * 1000 * 64
    # Adapters store their inputs in float32, and the output layer has no gradient.
    without_head = {"head_chunk_tokens": 1, "tokens": 4096}
    assert estimate(adapters=True, **without_head) > estimate(**without_head)
    assert estimate(adapters=True, tokens=2) < estimate(tokens=2)


def test_log_probabilities_are_computed_in_the_estimated_parts():
    import inspect

    from rllib_llm.doctor.activations import _LOGP_POSITIONS
    from rllib_llm.losses.logprobs import token_logps_and_entropy

    chunk = inspect.signature(token_logps_and_entropy).parameters["chunk"]
    assert chunk.default == _LOGP_POSITIONS


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_layer_stores_the_estimated_bytes(dtype):
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    def stored(layers):
        config = Qwen3Config(
            hidden_size=128,
            intermediate_size=320,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            vocab_size=50,
        )
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        saved = []  # kept, so that no address is used twice
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: saved.append(t) or t, lambda t: t
        ):
            model.base_model(torch.arange(32)[None], use_cache=False)
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in saved}
        sizes = {a: s.nbytes() for a, s in storages.items() if a not in weights}
        return config, sum(sizes.values()) / 32

    (config, three), (_, one) = stored(3), stored(1)
    size = 4 if dtype == "float32" else 2
    planned = _layer_bytes(config, size, adapters=False)
    assert (three - one) / 2 == pytest.approx(planned, rel=0.03)


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
