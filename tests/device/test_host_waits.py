"""Waits of the host for an accelerator do not grow with the sizes."""

from __future__ import annotations

import pytest
from engines_on_device import decode_waits
from learners import CASES, PASSES, REST, STEPS, count_waits

pytestmark = pytest.mark.slow

# Waits of a micro-batch: one of transformers, which looks for packed rows, and two of
# RLlib's PPO loss. A critic with a trunk of its own is another pass.
LONGER = [n for n in CASES if n.startswith(("grpo", "ppo", "sft"))] + ["scoring"]
MOST = {"ppo_own_critic": 4}


@pytest.mark.parametrize("name", CASES)
def test_waits_of_an_update(on_device, name):
    for turns in (1, 4) if name in LONGER else (1,):
        found = on_device(count_waits, name, turns)
        waits = {p: sum(found["waits"].get(p, {}).values()) for p in (PASSES, STEPS)}
        most = MOST.get(name, 3)
        assert waits[PASSES] <= most * found["micro_batches"], found["waits"]
        assert waits[STEPS] <= 2 * found["steps"] < found["tensors"], found["waits"]


def test_waits_of_a_decoding_step(on_device):
    for forward in ("auto", "plain"):
        found = on_device(decode_waits, forward)
        assert sum(found["waits"].values()) == found["steps"], found["waits"]


def test_waits_outside_of_the_passes_do_not_grow_with_the_episodes(on_device):
    short, long = (on_device(count_waits, "sft", turns) for turns in (1, 4))
    assert short["micro_batches"] < long["micro_batches"]
    assert short["waits"][REST] == long["waits"][REST]
