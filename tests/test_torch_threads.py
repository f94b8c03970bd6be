"""Number of torch's threads: by size, cores and processes; in force while computing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from rllib_llm import GRPOConfig, torch_threads
from rllib_llm.errors import ConfigError
from rllib_llm.torch_threads import (
    PARAMETERS_PER_THREAD,
    choose_threads,
    torch_settings,
)


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    """Take away the environment's number, and give eight cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch_threads, "available_cores", lambda: 8)


def model(parameters):
    return nn.Embedding(parameters, 1, device="meta")


@pytest.mark.parametrize(
    ("parameters", "processes", "expected"),
    [
        (1_000_000, 1, 1),
        (2 * PARAMETERS_PER_THREAD - 1, 1, 1),
        (2 * PARAMETERS_PER_THREAD, 1, 2),
        (134_515_008, 1, 8),
        (134_515_008, 2, 4),
        (134_515_008, 3, 2),
        (134_515_008, 100, 1),
    ],
)
def test_threads_follow_parameters_cores_and_processes(parameters, processes, expected):
    models = [model(10), model(parameters)]
    assert choose_threads("auto", models, processes=processes) == expected


def test_a_number_and_none_are_taken_as_they_are():
    big = [model(134_515_008)]
    assert choose_threads(3, big, processes=4) == 3
    assert choose_threads(None, big, processes=1) is None


def test_on_an_accelerator_nothing_is_chosen():
    big, gpu = [model(134_515_008)], torch.device("cuda")
    assert choose_threads("auto", big, processes=1, device=gpu) is None
    assert choose_threads(3, big, processes=1, device=gpu) == 3


def test_the_environment_decides_before_auto(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert choose_threads("auto", [model(134_515_008)], processes=1) is None
    assert choose_threads(2, [model(134_515_008)], processes=1) == 2


def test_threads_are_in_force_in_the_block_only():
    before = torch.get_num_threads()
    with pytest.raises(ValueError), torch_settings(before + 1):
        assert torch.get_num_threads() == before + 1
        raise ValueError
    assert torch.get_num_threads() == before
    with torch_settings(None):
        assert torch.get_num_threads() == before


def test_new_memory_is_not_filled_in_the_block(monkeypatch):
    deterministic = torch.utils.deterministic
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)  # as RLlib does with a seed
    try:
        assert torch.empty(4).isnan().all()
        with pytest.raises(ValueError), torch_settings(None):
            assert not deterministic.fill_uninitialized_memory
            raise ValueError
        assert torch.empty(4).isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("value", [0, -1, 1.5, "many"])
def test_other_values_are_refused(value):
    with pytest.raises(ConfigError, match="torch_num_threads"):
        GRPOConfig().resources(torch_num_threads=value)


_IN_ACTORS = """
import ray, torch
from torch import nn
from rllib_llm.torch_threads import choose_threads

@ray.remote(num_cpus=1)
class Trial:
    def threads(self):
        big = nn.Embedding(134_515_008, 1, device="meta")
        return torch.get_num_threads(), choose_threads("auto", [big], processes=1)

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
print(*ray.get(Trial.remote().threads.remote()))
"""


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("given", [None, "1"])
def test_in_an_actor_rays_own_number_is_no_choice_of_the_user(given):
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    if given is not None:
        environment["OMP_NUM_THREADS"] = given
    done = subprocess.run(
        [sys.executable, "-c", _IN_ACTORS],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    of_torch, chosen = done.stdout.split()
    assert of_torch == "1"  # as Ray sets it for an actor with one CPU
    cores = len(os.sched_getaffinity(0))
    assert chosen == (str(cores) if given is None else "None")
