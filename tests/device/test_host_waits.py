"""Waits of the host for an accelerator do not grow with the sizes."""

from __future__ import annotations

import pytest
from engines_on_device import decode_waits, decode_without_waits
from learners import (
    CASES,
    PASSES,
    REST,
    STEPS,
    count_waits,
    update_without_waits,
)

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


@pytest.mark.parametrize("name", ["grpo", "grpo_lora", "grpo_bfloat16", "sft"])
def test_losses_and_optimiser_blocks_never_wait(on_device, name):
    """With CUDA under ``torch.cuda.set_sync_debug_mode("error")``."""
    numbers = on_device(update_without_waits, name)
    assert numbers["losses"] > 1 and numbers["blocks"] >= 1


@pytest.mark.parametrize("forward", ["auto", "plain"])
def test_forward_passes_of_the_engine_never_wait(on_device, forward):
    assert on_device(decode_without_waits, forward) >= 3


@pytest.mark.parametrize("drafted", [0, 4])
def test_waits_of_a_decoding_step(on_device, drafted):
    for forward in ("auto", "plain"):
        found = on_device(decode_waits, forward, drafted)
        assert sum(found["waits"].values()) == found["steps"], found["waits"]
        assert (found["accepted"] > 0) == bool(drafted)


def test_waits_outside_of_the_passes_do_not_grow_with_the_episodes(on_device):
    short, long = (on_device(count_waits, "sft", turns) for turns in (1, 4))
    assert short["micro_batches"] < long["micro_batches"]
    assert short["waits"][REST] == long["waits"][REST]
