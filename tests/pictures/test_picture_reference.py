"""References and teachers that read the policy's pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers as tf
from family_folders import write_llava
from picture_helpers import (
    make_renderer,
    make_vlm_engine,
    make_vlm_module,
    picture,
    row_batch,
    row_scores,
    sample_conversation,
)
from picture_runs import TINY, config_of, learned, weights_of
from ray.rllib.core.columns import Columns

from rllib_llm.algorithms.driver.prepared_models import with_models
from rllib_llm.data import columns
from rllib_llm.errors import ModelError
from rllib_llm.losses.kl import kl_k3
from rllib_llm.pictures.spec import image_spec

SHOWN = [
    ("<image> What?", [picture(1, 24, 24)]),
    ("And <image>?", [picture(2, 60, 20)]),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Write a policy, and a teacher with other weights and other colours."""
    policy, teacher = (tmp_path_factory.mktemp(n) for n in ("policy", "teacher"))
    write_llava(policy)
    write_llava(teacher)
    model = tf.LlavaForConditionalGeneration.from_pretrained(teacher)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(teacher)
    file = Path(teacher) / "preprocessor_config.json"
    changed = json.loads(file.read_text()) | {"image_mean": [0.3, 0.4, 0.6]}
    file.write_text(json.dumps(changed))
    return str(policy), str(teacher)


@pytest.fixture(scope="module")
def rows(folders):
    """Return the rows of a conversation that the policy has sampled."""
    module = make_vlm_module(folders[0])
    engine = make_vlm_engine(module, folders[0])
    conversation = sample_conversation(engine, make_renderer(folders[0]), SHOWN)
    return row_batch([conversation], folders[0])


@torch.no_grad()
def plain_logps(folder, rows):
    """Return log-probabilities of transformers' own forward, from pixels. [B, T]"""
    model = tf.LlavaForConditionalGeneration.from_pretrained(folder).eval()
    spec = image_spec(folder)
    pixels = torch.as_tensor(rows[columns.PICTURES].pixels).float() / 255
    values = (pixels - torch.tensor(spec.mean)) / torch.tensor(spec.std)
    ids = rows[columns.INPUT_IDS]
    logits = model(input_ids=ids, pixel_values=values.permute(0, 3, 1, 2)).logits
    logps = torch.log_softmax(logits[:, :-1].double(), -1)
    taken = logps.gather(-1, ids[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(taken, (1, 0)) * rows[Columns.LOSS_MASK]


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_a_teacher_scores_pictures_with_its_own_tower_and_colours(folders, rows, lora):
    policy, teacher = folders
    module = make_vlm_module(policy, reference=True, ref_model=teacher, lora=lora)
    expected = plain_logps(teacher, rows)
    torch.testing.assert_close(
        module.reference_logps(rows).double(), expected, atol=1e-5, rtol=0
    )
    own = row_scores(module, rows).detach()
    torch.testing.assert_close(
        own.double(), plain_logps(policy, rows), atol=1e-5, rtol=0
    )
    assert (own - expected).abs().max() > 0.01


def test_the_penalty_has_a_gradient_for_the_policys_tower_alone(folders, rows):
    policy, teacher = folders
    module = make_vlm_module(policy, reference=True, ref_model=teacher)
    kl = kl_k3(row_scores(module, rows), module.reference_logps(rows))
    kl[rows[Columns.LOSS_MASK].bool()].mean().backward()
    grads = {n: p.grad for n, p in module.named_parameters() if "vision_tower" in n}
    assert any(g is not None and g.abs().max() > 0 for g in grads.values())
    assert all(p.grad is None for p in module._reference[0].parameters())


def teacher_of(**sizes):
    return {"model": "tiny-vlm", "tiny": {**TINY, **sizes}}


@pytest.mark.ray
def test_a_teacher_alone_trains_a_policy(ray_session):
    config = config_of(
        advantage_estimator="return",  # of no reward: the penalty alone has a gradient
        drop_zero_variance_groups=False,
        ref_kl_coeff=1.0,
        ref_kl_estimator="k2",
        ref_model=teacher_of(initializer_range=0.2),
    ).rollouts(rewards=[{"name": "environment", "weight": 0}])
    algo = config.build_algo()
    before = weights_of(algo)
    result = learned(algo.train())
    after = weights_of(algo)
    algo.stop()
    assert result["policy_loss"] == 0.0
    assert result["ref_kl"] > 0.01
    tower = [n for n in before if "vision_model" in n]
    assert any(not torch.equal(before[n], after[n]) for n in tower)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [({"image_size": 64}, r"count=16, .* with count=4"), ({"image_size": 48}, "count")],
)
def test_another_number_of_tokens_per_picture_is_refused(sizes, words):
    config = config_of(ref_kl_coeff=0.1, ref_model=teacher_of(**sizes))
    config.validate()
    with pytest.raises(ModelError, match=words):
        with_models(config)


def test_another_size_is_refused():
    teacher = teacher_of(image_size=64, patch_size=16)
    with pytest.raises(ModelError, match="size=64, .* with size=32"):
        with_models(config_of(ref_kl_coeff=0.1, ref_model=teacher))


def test_a_reference_of_text_is_refused(folders, tmp_path):
    policy = folders[0]
    text = tf.LlavaForConditionalGeneration.from_pretrained(policy).model.language_model
    tf.LlamaForCausalLM(text.config).save_pretrained(tmp_path)
    tf.AutoTokenizer.from_pretrained(policy).save_pretrained(tmp_path)
    config = config_of(
        model={"model": policy}, ref_kl_coeff=0.1, ref_model=str(tmp_path)
    )
    with pytest.raises(ModelError, match="reads text alone, but the policy's"):
        with_models(config)
