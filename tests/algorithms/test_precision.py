"""Matmul precision, autocast and gradient checkpointing in the learner."""

import copy

import pytest
import torch
from learner_helpers import (
    fake_episode,
    gradients,
    make_config,
    make_learner,
    policy,
    update,
)
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_llm import LLMPPOConfig
from rllib_llm.algorithms.learner import fast_layers
from rllib_llm.errors import ConfigError

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def restored_precision():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def episodes():
    return [fake_episode(i, turns=1 + i % 4) for i in range(6)]


def relative_gap(found, expected):
    return max(
        float((found[n] - g).norm() / g.norm())
        for n, g in expected.items()
        if g.norm() > 0
    )


# Matmul precision ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["highest", "high", "medium"])
def test_precision_is_in_force_in_the_update_only(name):
    learner = make_learner(make_config(matmul_precision=name))
    seen = []
    forward = policy(learner)._forward_train

    def watched(*args, **kwargs):
        seen.append(torch.get_float32_matmul_precision())
        return forward(*args, **kwargs)

    policy(learner)._forward_train = watched
    torch.set_float32_matmul_precision("highest")
    update(learner, episodes())
    assert seen == [name]
    assert torch.get_float32_matmul_precision() == "highest"


def test_precision_is_restored_after_an_error():
    learner = make_learner(make_config(matmul_precision="medium", nan_policy="error"))
    torch.nn.init.constant_(policy(learner).value_head.out.bias, torch.inf)
    torch.set_float32_matmul_precision("highest")
    with pytest.raises(Exception, match="finite"):
        update(learner, episodes())
    assert torch.get_float32_matmul_precision() == "highest"


def test_auto_is_exact(monkeypatch):
    calls = []
    apply = fast_layers._FastLinear.apply
    if not fast_layers._medium_is_exact():
        pytest.skip("This CPU computes products in bfloat16; auto leaves them alone.")
    monkeypatch.setattr(
        fast_layers._FastLinear, "apply", lambda *args: calls.append(1) or apply(*args)
    )
    exact, auto = (
        gradients(make_learner(make_config(matmul_precision=p)), episodes())
        for p in ("highest", "auto")
    )
    assert calls
    assert relative_gap(auto, exact) <= 1e-5


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_fast_linear_layers_have_the_gradient_of_linear(monkeypatch, bias, frozen):
    bound = 1e-4 if fast_layers._medium_is_exact() else 2e-2  # bfloat16 products
    monkeypatch.setattr(fast_layers, "_medium_is_exact", lambda: True)
    layer = torch.nn.Linear(24, 40, bias=bias).requires_grad_(not frozen)
    fast = copy.deepcopy(layer)
    fast_layers.speed_up_linear_layers(fast, CPU)
    found = []
    for module in (layer, fast):
        x = torch.randn(3, 5, 24, generator=torch.Generator().manual_seed(0))
        out = module(x.requires_grad_())
        out.square().sum().backward()
        found.append([out.detach(), x.grad, *(p.grad for p in module.parameters())])
    for expected, ours in zip(*found, strict=True):
        if expected is None:
            assert frozen
            assert ours is None
        else:
            assert float((ours - expected).norm() / expected.norm()) <= bound


def test_auto_follows_what_this_machine_computes(monkeypatch):
    for exact, device, fast in (
        (True, CPU, True),
        (False, CPU, False),
        (True, torch.device("cuda"), False),
    ):
        layer = torch.nn.Linear(4, 4)
        monkeypatch.setattr(fast_layers, "_medium_is_exact", lambda exact=exact: exact)
        fast_layers.speed_up_linear_layers(layer, device)
        out = layer(torch.ones(1, 4))
        assert ("FastLinear" in type(out.grad_fn).__name__) == fast


def test_bfloat16_products_are_not_taken_for_exact(monkeypatch):
    linear = torch.nn.functional.linear

    def rounded(left, right):
        return linear(left.bfloat16(), right.bfloat16()).float()

    monkeypatch.setattr(fast_layers, "linear", rounded)
    fast_layers._medium_is_exact.cache_clear()
    assert not fast_layers._medium_is_exact()
    fast_layers._medium_is_exact.cache_clear()


# Autocast -----------------------------------------------------------------------------


def test_autocast_computes_in_bfloat16_with_float32_parameters():
    plain = make_learner(make_config(old_logps="learner", tis=None))
    config = make_config(old_logps="learner", tis=None)
    cast = make_learner(config.language_model(autocast="bfloat16"))
    inner = policy(cast).lm.base_model.layers[0].mlp.down_proj
    seen = []
    inner.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    expected, found = gradients(plain, episodes()), gradients(cast, episodes())
    assert set(seen) == {torch.bfloat16}
    assert {p.dtype for p in policy(cast).parameters()} == {torch.float32}
    assert {g.dtype for g in found.values()} == {torch.float32}
    assert 1e-5 < relative_gap(found, expected) < 0.2


def test_autocast_moves_weights_less_than_bfloat16_could():
    config = make_config(lr=1e-6).language_model(autocast="bfloat16")
    learner = make_learner(config)
    weight = policy(learner).lm.base_model.layers[0].mlp.down_proj.weight
    before = weight.detach().clone()
    update(learner, episodes())
    assert 0 < float((weight.detach() - before).abs().max()) < 2e-6


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"autocast": "float16"}, "must be 'bfloat16' or None"),
        ({"autocast": "bfloat16", "dtype": "bfloat16"}, "Use dtype='float32'"),
    ],
)
def test_what_autocast_refuses(model, message):
    config = LLMPPOConfig().environment("guess_number-v0")
    with pytest.raises(ConfigError, match=message):
        config.language_model(**model).validate()


# Gradient checkpointing ---------------------------------------------------------------


@pytest.mark.parametrize(
    "model", [{}, {"value_model": "own"}, {"lora": {"rank": 4}}], ids=str
)
def test_gradient_checkpointing_changes_no_gradient(model):
    found, calls = [], []
    for checkpointing in (False, True):
        config = make_config(vf_loss_coeff=1.0).language_model(
            gradient_checkpointing=checkpointing, **model
        )
        learner = make_learner(config)
        torch.nn.init.constant_(policy(learner).value_head.out.weight, 0.1)
        count = []
        attention = policy(learner).lm.base_model.layers[0].self_attn
        attention.register_forward_hook(lambda *args, count=count: count.append(1))
        found.append(gradients(learner, episodes()))
        calls.append(len(count))
    assert calls[1] == calls[0] + 1  # the backward pass computed the layer anew
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        assert torch.equal(gradient, found[1][name]), name


# Padding ------------------------------------------------------------------------------


def test_the_share_of_padding_is_logged():
    made = episodes()
    alone = make_learner(make_config(micro_batch_tokens=1))
    assert update(alone, made)[DEFAULT_MODULE_ID]["padding_frac"].peek() == 0.0
    together = make_learner(make_config(micro_batch_tokens=None))
    lengths = [len(e.custom_data["llm"].ids) for e in made]
    expected = 1 - sum(lengths) / (len(lengths) * max(lengths))
    found = update(together, made)[DEFAULT_MODULE_ID]["padding_frac"].peek()
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_update_leaves_the_model_in_training_mode():
    learner = make_learner(make_config())
    assert policy(learner).lm.training
    update(learner, episodes())
    assert policy(learner).lm.training


# torch.compile ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_compiled_trunk_changes_no_gradient():
    plain = make_learner(make_config(vf_loss_coeff=1.0, matmul_precision="highest"))
    # The backend that only traces: what it traces is run as it is, in seconds.
    config = make_config(vf_loss_coeff=1.0, matmul_precision="highest")
    compiled = make_learner(config.language_model(compile="eager"))
    before = compiler_calls()
    found = gradients(compiled, episodes())
    assert compiler_calls() > before
    for name, gradient in gradients(plain, episodes()).items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-5)


def compiler_calls():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_an_unknown_compiler_is_refused():
    config = LLMPPOConfig().environment("guess_number-v0")
    with pytest.raises(ConfigError, match="Did you mean 'inductor'"):
        config.language_model(compile="inductr").validate()
    with pytest.raises(ConfigError, match="language_model\\(compile='inductor'\\)"):
        config.language_model(compile=None).framework(
            torch_compile_learner=True
        ).validate()
