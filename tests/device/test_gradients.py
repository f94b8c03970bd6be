"""Learners compute on an accelerator what they compute on the CPU."""

from __future__ import annotations

import pytest
from learners import CASES, compare_gradients, mix_devices

pytestmark = pytest.mark.slow


# As shares of the largest gradient: bfloat16 has 8 bits, and another kernel rounds
# another sum. On CUDA the bounds are chosen, not measured.
BFLOAT16 = {"standin": 0.02, "cuda": 0.05}


def test_mixed_devices_are_refused(on_device):
    assert "same device" in on_device(mix_devices)


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_those_of_the_cpu(on_device, device_name, name):
    found = on_device(compare_gradients, name)
    bound = 1e-6 if device_name == "standin" else 1e-4 * found["largest"]
    if "bfloat16" in name:
        bound = BFLOAT16[device_name] * found["largest"]
    assert found["gap"] <= bound, found
    assert found["largest"] > 100 * bound or "bfloat16" in name, found
