"""LLMPPO with pictures: critics on the shared trunk and of their own."""

from __future__ import annotations

import pytest
import torch
from picture_helpers import (
    make_renderer,
    make_vlm_engine,
    picture,
    row_batch,
    sample_conversation,
)
from picture_runs import MISMATCH, config_of, learned, weights_of
from ray.rllib.core import DEFAULT_MODULE_ID
from side_by_side import update_side_by_side

from rllib_llm import LLMPPO, LLMPPOConfig
from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.data import columns
from rllib_llm.envs.spaces import UnicodeText

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
TWO = [("<image> What colour?", [picture(1)]), ("Look <image> again.", [picture(2)])]
CRITICS = ("shared", "own")


def ppo(value_model="shared", freeze=None, **training):
    config = config_of(LLMPPOConfig, whiten_advantages=False, **training)
    if value_model == "shared":
        config.language_model(value_head_detach=False)
    return config.language_model(value_model=value_model, freeze=freeze)


@pytest.fixture(scope="module")
def sampled():
    """Return a resolved config and episodes with 1, 0 and 2 pictures in their turns."""
    algo = ppo().build_algo()
    tasks = algo.config.build_task_source().next_groups(6)
    episodes = algo.env_runner.sample(tasks=tasks)
    algo.stop()
    return algo.config.resolved_model, episodes


def make_learner(model, **settings):
    config = ppo(**settings)
    config.validate()
    config.resolved_model = model
    spaces = {DEFAULT_MODULE_ID: (UnicodeText(), UnicodeText())}
    learner = config.build_learner(spaces=spaces)
    learner.build()
    module = learner.module[DEFAULT_MODULE_ID].unwrapped()
    with torch.no_grad():  # the last layer starts at zero, and passes no gradient on
        module.value_head.out.weight.fill_(0.1)
    return learner, module


def gradients(sampled, **settings):
    """Return the gradient of one step over all episodes, without taking it."""
    model, episodes = sampled
    learner, taken = keeping_gradients(model, **settings)
    learner.update(training_data=LLMTrainingData(episodes=episodes), timesteps={})
    return taken


def keeping_gradients(model, **settings):
    """Return a Learner, and a dictionary that gets the gradient of its steps."""
    learner, module = make_learner(model, **settings)
    names = {p: n for n, p in module.named_parameters()}
    taken = {}
    learner.apply_gradients = lambda grads: taken.update(
        {names[p]: g.clone() for p, g in grads.items() if g is not None}
    )
    learner.config.grad_clip = None
    return learner, taken


@pytest.mark.parametrize("value_model", CRITICS)
def test_two_learners_have_the_gradient_of_one(sampled, value_model, monkeypatch):
    model, episodes = sampled
    settings = {"value_model": value_model, "num_epochs": 1, "minibatch_size": None}
    expected = gradients(sampled, **settings)
    pair = [keeping_gradients(model, **settings) for _ in range(2)]
    update_side_by_side([learner for learner, _ in pair], episodes, monkeypatch)
    for _, taken in pair:
        assert taken.keys() == expected.keys()
        for name, gradient in expected.items():
            assert torch.allclose(taken[name], gradient, atol=1e-6), name
    tower = [g for name, g in expected.items() if "vision" in name]
    assert tower and any(g.abs().max() > 1e-6 for g in tower)


@pytest.mark.parametrize("value_model", CRITICS)
def test_values_are_those_of_transformers_own_forward(sampled, value_model):
    model, _ = sampled
    _, module = make_learner(model, value_model=value_model)
    trunk = module.value_head.trunk or module.lm.model
    assert (trunk is module.lm.model) == (value_model == "shared")
    with torch.no_grad():
        for parameter in trunk.vision_model.parameters():
            parameter.mul_(1.2)
    conversation = sample_conversation(
        make_vlm_engine(module, model), make_renderer(model), TWO
    )
    batch = row_batch([conversation], model)
    pixels = torch.as_tensor(batch[columns.PICTURES].pixels)
    values = ((pixels.float() / 255 - 0.5) / 0.5).permute(0, 3, 1, 2)[None]
    with torch.no_grad():
        out = trunk(input_ids=batch[columns.INPUT_IDS], pixel_values=values)
        expected = module.value_head(out.last_hidden_state)[:, :-1]
        computed = module.compute_values(batch)
    assert (computed[:, 0] == 0).all()
    torch.testing.assert_close(computed[:, 1:], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("value_model", CRITICS)
def test_micro_batches_give_the_gradient_of_the_whole(sampled, value_model):
    settings = {"value_model": value_model, "vf_loss_coeff": 1.5}
    whole = gradients(sampled, micro_batch_tokens=None, **settings)
    parts = gradients(sampled, micro_batch_tokens=1, **settings)
    assert whole.keys() == parts.keys()
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, atol=2e-6, rtol=1e-4)
    for part in ("vision_model", "connector", "text_model"):
        owners = ["lm.", "value_head.trunk."] if value_model == "own" else ["lm."]
        for owner in owners:
            moved = [n for n in whole if n.startswith(owner) and part in n]
            assert any(whole[n].abs().max() > 0 for n in moved), (owner, part)


def test_a_critic_of_its_own_leaves_the_policys_gradient_alone(sampled):
    found = [
        gradients(sampled, value_model="own", vf_loss_coeff=c) for c in (0.0, 50.0)
    ]
    assert all(
        torch.equal(found[0][n], found[1][n]) for n in found[0] if n.startswith("lm.")
    )
    assert all(
        found[0][n].abs().max() == 0 for n in found[0] if n.startswith("value_head.")
    )


@pytest.mark.parametrize("value_model", CRITICS)
def test_frozen_parts_are_frozen_in_the_critic_as_well(sampled, value_model):
    taken = gradients(sampled, value_model=value_model, freeze=["vision"])
    assert not any("vision_model" in name for name in taken)
    assert any("connector" in name for name in taken)


@pytest.mark.parametrize("value_model", CRITICS)
def test_embeddings_of_placeholders_get_no_gradient(sampled, value_model):
    model, _ = sampled
    _, module = make_learner(model, value_model=value_model)
    renderer = make_renderer(model)
    batch = row_batch(
        [sample_conversation(make_vlm_engine(module, model), renderer, TWO)], model
    )
    trunk = module.value_head.trunk or module.lm.model
    seen = {}

    def keep(_, __, output):
        output.retain_grad()
        seen["embeddings"] = output

    handle = trunk.get_input_embeddings().register_forward_hook(keep)
    module.compute_values(batch).square().sum().backward()
    handle.remove()
    is_placeholder = batch[columns.INPUT_IDS] == renderer.pictures.token_id
    gradient = seen["embeddings"].grad.abs().sum(-1)
    assert (gradient[is_placeholder] == 0).all()
    assert (gradient[~is_placeholder] > 0).any()


@pytest.mark.parametrize("value_model", CRITICS)
def test_a_run_learns_and_resumes_to_the_bit(tmp_path, value_model):
    config = ppo(value_model, minibatch_size=4, num_epochs=2)
    algo = config.build_algo()
    first = learned(algo.train())
    assert first[MISMATCH] < 1e-5
    assert first["vf_loss"] > 0
    algo.save_to_path(tmp_path / "one")
    second = learned(algo.train())
    assert second[MISMATCH] < 1e-5
    expected = weights_of(algo)
    algo.stop()
    again = LLMPPO.from_checkpoint(tmp_path / "one")
    before = weights_of(again)
    again.train()
    resumed = weights_of(again)
    again.stop()
    assert all(torch.equal(expected[n], resumed[n]) for n in expected)
    changed = [n for n in before if not torch.equal(before[n], resumed[n])]
    assert any("vision_model" in n and n.startswith("lm.") for n in changed)
    if value_model == "own":
        trunk = "value_head.trunk.vision_model"
        assert any(n.startswith(trunk) for n in changed)
