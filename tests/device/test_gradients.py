"""Learners compute on an accelerator what they compute on the CPU."""

from __future__ import annotations

import pytest
from learners import CASES, compare_gradients, mix_devices

pytestmark = pytest.mark.slow


def test_the_stand_in_refuses_mixed_devices(on_device):
    assert "same device" in on_device(mix_devices)


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_those_of_the_cpu(on_device, name):
    found = on_device(compare_gradients, name)
    # bfloat16 has 8 bits: another kernel rounds another sum.
    bound = 0.02 * found["largest"] if "bfloat16" in name else 1e-6
    assert found["gap"] <= bound, found
    assert found["largest"] > 100 * bound or "bfloat16" in name, found
