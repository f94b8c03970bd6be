"""Formulas of the model on paper, by hand, and its table in docs/performance.md."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import scale_model
from scale_inputs import GB, Constants, Model, learner_bytes, model_of

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"

# Numbers with which every result can be computed by hand: 1 TFLOP/s and 1 TB/s are
# used, a GPU has 18 GB, and 8 GB are left beside the weights of 5 billion parameters.
PLAIN = Constants(
    memory_gb=20,
    hbm_tb_s=2,
    hbm_share=0.5,
    bf16_tflops=2,
    compute_share=0.5,
    nvlink_gb_s=100,
    network_gb_s=10,
    turn_ms=0,
    longest=1,
    prompt_tokens=1000,
    sampled_tokens=1000,
    micro_batch_tokens=1000,
    pack_gb_s=1,
    load_gb_s=10,
)
MODEL = Model(5 * 10**9, 4 * 10**9, attention_width=1000, kv_bytes=10**6)


def changed(**values):
    return dataclasses.replace(PLAIN, **values)


def test_slots_are_what_weights_leave():
    assert scale_model.slots(MODEL, PLAIN) == 4  # 8 GB, 2,000 tokens of 1 MB each
    assert scale_model.slots(MODEL, changed(memory_gb=11)) == 0


def test_attention_is_the_sum_over_positions():
    # Scores and their sum of values: two products, each of 2 operations per element.
    tokens = 200
    total = sum(2 * 2 * MODEL.attention_width * (t + 0.5) for t in range(tokens))
    assert scale_model.attention_flops(MODEL, tokens) * tokens == pytest.approx(total)


def test_sampling_reads_weights_and_keys_in_every_step():
    c = changed(bf16_tflops=1e9)  # no time for products
    # 1,000 steps that read 10 GB, and 1,500 tokens of each of 2 episodes, at 1 TB/s.
    assert scale_model.sample_seconds(MODEL, 2, c) == pytest.approx(10 + 3)
    # 8 episodes in 4 slots are 2,000 such steps with 4 episodes.
    assert scale_model.sample_seconds(MODEL, 8, c) == pytest.approx(2 * (10 + 6))
    # The longest takes 3,000 steps: the batch is 2/3 of an episode, on average.
    found = scale_model.sample_seconds(MODEL, 2, changed(bf16_tflops=1e9, longest=3))
    assert found == pytest.approx(30 + 3)


def test_sampling_is_limited_by_products_where_reading_is_fast():
    c = changed(hbm_tb_s=1e9)
    decoded = 2 * 4e9 * 2 * 1000 / 1e12
    prompts = 2 * 1000 * (2 * 4e9 + 2 * 1000 * 1000) / 1e12
    assert scale_model.sample_seconds(MODEL, 2, c) == pytest.approx(decoded + prompts)
    slow = changed(hbm_tb_s=1e9, turn_ms=500, turns=3)
    more = scale_model.sample_seconds(MODEL, 2, slow) - decoded - prompts
    assert more == pytest.approx(2 * 3 * 0.5)


def test_an_update_waits_for_layers_that_its_products_do_not_hide():
    compute, exchange = scale_model.pass_seconds(MODEL, 2, PLAIN)
    attention = 4 * 2 * 1000 * 2000
    assert compute == pytest.approx(1000 * (8 * 4e9 + attention) / 1e12)
    assert exchange == pytest.approx(5e9 * 8 / 2 / 100e9)  # half of it is its own
    # 16 Learners use the network: 40 GB * 15/16 at 10 GB/s.
    assert scale_model.pass_seconds(MODEL, 16, PLAIN)[1] == pytest.approx(3.75)
    total, waits = scale_model.update_seconds(MODEL, 3, 2, PLAIN)
    assert (total, waits) == (pytest.approx(3 * compute), 0)
    # A GPU that computes without time waits for each of 3 micro-batches.
    fast = changed(bf16_tflops=1e9)
    total, waits = scale_model.update_seconds(MODEL, 3, 2, fast)
    assert total == pytest.approx(3 * 0.2, rel=1e-3) and waits == pytest.approx(
        total, rel=1e-3
    )
    assert scale_model.update_seconds(MODEL, 3, 1, fast)[1] == 0  # nothing to exchange


def test_weights_are_gathered_packed_sent_and_loaded():
    sent, received = scale_model.transfer_seconds(MODEL, 2, 6, PLAIN)  # one node
    assert sent == pytest.approx(10 / 2 / 100 + 10 / 1)
    assert received == pytest.approx(10 / 10)
    # 7 nodes with EnvRunners have it after 3 rounds: 1, 2 and 4 of them.
    sent, received = scale_model.transfer_seconds(MODEL, 8, 56, PLAIN)
    assert received == pytest.approx(3 * 10 / 10 + 10 / 10)


def test_host_memory_is_that_of_the_node_that_needs_most():
    assert scale_model.host_bytes(MODEL, 8, 8) == 5e9 * (8 * 4 + 2)
    # One Learner's checkpoint holds moments as well; seven EnvRunners copy weights.
    assert scale_model.host_bytes(MODEL, 1, 7) == 5e9 * (12 + 2 * 8)


def test_the_longer_side_is_the_iteration_and_names_its_limit():
    parts = scale_model.Iteration(1, 7, 9, 5, 4, 2, 1, 3)
    assert (parts.ahead, parts.in_turns) == (10, 20)
    assert parts.limit == "sampling"
    assert dataclasses.replace(parts, sampling=8).limit == "update: exchange of layers"
    assert dataclasses.replace(parts, driver=6).limit == "driver"


@pytest.mark.parametrize(
    "name, factor",
    [
        ("hbm_tb_s", 2),
        ("bf16_tflops", 2),
        ("network_gb_s", 2),
        ("pack_gb_s", 2),
        ("turn_ms", 0.5),
        ("driver_us", 0.5),
        ("longest", 0.5),
        ("padding", 0.5),
        ("sampled_tokens", 0.5),
        ("prompt_tokens", 0.5),
        ("episodes_per_gpu", 0.5),
    ],
)
def test_better_constants_never_take_longer(name, factor):
    slow = Constants(padding=0.1)
    fast = dataclasses.replace(slow, **{name: getattr(slow, name) * factor})
    for learners in (8, 32, 56):
        before, after = (
            scale_model.iteration(MODEL, 64, learners, c) for c in (slow, fast)
        )
        most = 1 + 1e-9  # a micro-batch that waits takes as long with fewer tokens
        assert after.ahead <= most * before.ahead
        assert after.in_turns <= most * before.in_turns


def test_parameters_and_bytes_are_those_of_the_package_and_of_the_architecture():
    model = model_of("8B")
    assert model.parameters == pytest.approx(8.19e9, rel=0.001)
    assert model.multiplied == model.parameters - 151_936 * 4096
    assert model.kv_bytes == 2 * 36 * 8 * 128 * 2
    assert model_of("0.6B").multiplied == model_of("0.6B").parameters
    # 16 bytes of a shard; embeddings, output layer and two layers in bfloat16;
    # activations: inputs of 36 layers; logits of 1,024 and their gradient in bfloat16,
    # four float32 copies of 256, and two gradients of the output layer.
    layer = (model.parameters - 2 * 151_936 * 4096) / 36
    expected = 2 * model.parameters + 2 * (2 * 151_936 * 4096 + 2 * layer)
    expected += 8192 * 4096 * 2 * 36
    expected += 151_936 * (2 * 2 * 1024 + 4 * 4 * 256 + 2 * 2 * 4096)
    assert learner_bytes("8B", 8, 8192) == pytest.approx(expected, rel=0.002)


def test_a_model_that_does_not_fit_is_reported_with_its_bytes():
    c = Constants()
    found, missing = scale_model.best("32B", 8, c)
    assert found is None and missing == ["Learner: 90 GB"]
    assert c.usable_bytes == 72 * GB
    row = scale_model.result_row("32B", 8, c)
    assert row.endswith("does not fit: Learner: 90 GB |")
    assert row.count("|") == len(scale_model.COLUMNS) + 1


def test_gpus_that_cannot_be_divided_are_refused(capsys):
    with pytest.raises(SystemExit):
        scale_model.arguments(["--gpus", "12"])
    assert "--gpus 12" in capsys.readouterr().err


@pytest.mark.parametrize("gpus, name", [(8, "8B"), (8, "72B"), (512, "0.6B")])
def test_the_page_has_the_rows_and_constants_of_the_script(gpus, name):
    page = PAGE.read_text(encoding="utf-8")
    assert scale_model.result_row(name, gpus, Constants()) in page.splitlines()
    assert scale_model.constants_table(Constants()) in page
