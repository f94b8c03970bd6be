"""The standing workload agrees with its page, and the floor with the model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import floor
import standing_game
import standing_workload

from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.envs.check import check_env
from rllib_llm.modules.loading import load_tokenizer


@pytest.fixture(scope="module")
def folder():
    return str(standing_workload._random_model("tiny"))


@pytest.mark.parametrize("text", ["", "guess 7", standing_game.CALL.format("seven")])
def test_invalid_calls(text):
    assert standing_game.parse_guess(text) is None


def test_the_last_call_counts():
    calls = [standing_game.CALL.format(n) for n in (7, 31)]
    assert standing_game.parse_guess("".join(calls)) == 31


def test_a_guess_of_two_words():
    words = standing_game.form_of("smollm")
    assert standing_game.parse_guess("guess 7 guess 12", words) == 12
    assert standing_game.parse_guess("12", words) is None
    assert standing_game.form_of("small") == standing_game.CALL


def test_fixed_continues_after_the_correct_guess():
    fixed = standing_game.NumberGame(5, 9, fixed=True)
    replies = [fixed.play(guess) for guess in (5, None, 1, 9, 5)]
    assert replies == [
        ("correct", 0.0, False),
        ("invalid", 0.0, False),
        ("higher", 0.0, False),
        ("lower", 0.0, False),
        ("correct", 1.0, True),
    ]
    assert standing_game.NumberGame(5, 9, fixed=False).play(5) == ("correct", 1.0, True)


@pytest.mark.parametrize("fixed", [True, False])
def test_environment_fulfils_the_contract(fixed):
    config = {"fixed": fixed, "upper": 31}
    check_env(standing_workload.StandingGame, config)


def test_token_counts_agree_with_the_floor(folder):
    shape, renderer = floor.Shape(), ChatRenderer(load_tokenizer(folder), "append", {})
    assert len(renderer.tokenizer) == 384
    prompt = standing_game.NumberGame(1, standing_game.UPPER["fixed"], True).prompt
    assert len(renderer.first([{"role": "user", "content": prompt}])) == shape.first
    for reply in ("higher", "lower", "correct", "invalid"):
        end = renderer.end_of_turn_id
        assert len(renderer.delta(reply, last_sampled_id=end)) == shape.later
    call = renderer.encode_reply(standing_game.CALL.format(517))
    assert len(call) == shape.sampled


def test_models_have_the_sizes_of_the_page(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert 0.43e6 < model.num_parameters() < 0.45e6
    config = json.loads((Path(folder) / "config.json").read_text())
    assert config["model_type"] == "qwen3"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_floors_logits_are_those_of_transformers(folder, dtype):
    floor.check(folder, dtype)  # asserts


def test_floors_gradient_is_that_of_transformers(folder):
    shape = floor.Shape(rows=4, turns=2)
    mask = shape.sampled_mask()
    ids = torch.randint(384, (shape.rows, shape.length))
    old = torch.full((shape.rows, shape.length), -6.0)
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5])
    ours = floor.Floor(folder, torch.float32, lr=0.0)
    ours.update(ids, old, advantages, mask, part=2)

    model = AutoModelForCausalLM.from_pretrained(folder)
    logps = model(input_ids=ids).logits[:, :-1].log_softmax(-1)
    logp = logps.gather(2, ids[:, 1:, None])[..., 0][:, mask[1:]]
    ratio = (logp + 6.0).exp()
    gain = advantages[:, None]
    loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    first, layer = model.model.layers[0].self_attn, model.model.layers[1]
    for name, wanted in {
        "embed": model.model.embed_tokens.weight.grad,
        "1.down": layer.mlp.down_proj.weight.grad,
        "0.in": model.model.layers[0].input_layernorm.weight.grad,
        "1.q_norm": layer.self_attn.q_norm.weight.grad,
        "0.qkv": torch.cat([getattr(first, f"{x}_proj").weight.grad for x in "qkv"]),
    }.items():
        torch.testing.assert_close(
            ours.masters[name].grad, wanted, rtol=1e-3, atol=1e-5
        )
