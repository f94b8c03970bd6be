"""Copies from host memory to a device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rllib_llm.upload import upload


def test_values_arrive_and_the_array_is_not_copied_on_a_cpu():
    array = np.arange(6).reshape(2, 3)
    on_cpu = upload(array, "cpu")
    assert on_cpu.tolist() == array.tolist()
    array[0, 0] = 7
    assert on_cpu[0, 0] == 7
    assert upload(torch.ones(2), None).tolist() == [1, 1]


def test_cuda_gets_its_values_from_pinned_memory(monkeypatch):
    """No CUDA device is needed: the calls are recorded in order."""
    calls = []

    def pin(tensor):
        calls.append("pin")
        return tensor.clone()

    def to(tensor, device, *, non_blocking):
        calls.append((torch.device(device).type, non_blocking))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", to)
    array = np.arange(3)
    there = upload(array, torch.device("cuda", 0))
    assert calls == ["pin", ("cuda", True)]
    array[0] = 7
    assert there.tolist() == [0, 1, 2]


@pytest.mark.gpu
def test_a_copy_to_cuda_is_asynchronous():
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA]
    ) as profile:
        upload(np.zeros(1 << 20), "cuda")
        torch.cuda.synchronize()
    names = [event.key for event in profile.key_averages()]
    assert any("Pinned" in name for name in names), names
    assert not any("Pageable" in name for name in names), names
