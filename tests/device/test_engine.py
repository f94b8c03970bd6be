"""The torch engine samples on an accelerator what it samples on the CPU."""

from __future__ import annotations

import pytest
from engines_on_device import compare_tokens

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("forward", ["auto", "plain"])
def test_tokens_equal_those_of_the_cpu(on_device, forward):
    found = on_device(compare_tokens, forward)
    assert found["equal"] == found["turns"] == 16
    assert found["fused"] == [forward == "auto"] * 2
