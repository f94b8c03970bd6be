"""Chunked log-probabilities and entropies against plain log_softmax."""

import doctest
import math

import pytest
import torch

from rllib_llm.advantages import gae
from rllib_llm.losses.logprobs import token_logps_and_entropy

TOLERANCE = {"atol": 1e-9, "rtol": 0.0}


def make_logits(rows=3, columns=7, vocabulary=13, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(
        rows, columns, vocabulary, generator=generator, dtype=torch.float64
    )
    return logits.to(dtype), torch.randint(
        vocabulary, (rows, columns), generator=generator
    )


def plain(logits, ids, temperature):
    logps = torch.log_softmax(logits / temperature, dim=-1)
    entropy = -(logps.exp() * logps).sum(-1)
    return logps.gather(-1, ids[..., None])[..., 0], entropy


@pytest.mark.parametrize("chunk", [1, 4, 6, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equals_log_softmax_with_gradients(chunk, temperature):
    logits, ids = make_logits()
    logits.requires_grad_()
    got = token_logps_and_entropy(logits, ids, temperature=temperature, chunk=chunk)
    expected = plain(logits, ids, temperature)
    scale = torch.linspace(-1, 1, ids.numel(), dtype=torch.float64).view(ids.shape)
    gradients = []
    for logp, entropy in (got, expected):
        total = (scale * logp + 0.3 * scale.flip(0) * entropy).sum()
        gradients.append(torch.autograd.grad(total, logits)[0])
    torch.testing.assert_close(got[0], expected[0], **TOLERANCE)
    torch.testing.assert_close(got[1], expected[1], **TOLERANCE)
    torch.testing.assert_close(*gradients, **TOLERANCE)
    with torch.no_grad():
        without = token_logps_and_entropy(logits, ids, temperature=temperature)
    torch.testing.assert_close(without, tuple(x.detach() for x in got), **TOLERANCE)


def test_gradient_equals_finite_differences():
    logits, ids = make_logits(rows=2, columns=3, vocabulary=4)
    mask = torch.tensor([[True, False, True], [True, True, False]])

    def function(logits):
        return token_logps_and_entropy(
            logits, ids, temperature=0.8, loss_mask=mask, chunk=2
        )

    assert torch.autograd.gradcheck(function, logits.requires_grad_())


def test_shifted_and_flat_logits():
    logits, ids = make_logits()
    shifted = token_logps_and_entropy(logits[:, :-1], ids[:, 1:], chunk=4)
    expected = plain(logits[:, :-1], ids[:, 1:], 1.0)
    torch.testing.assert_close(shifted, expected, **TOLERANCE)
    flat = token_logps_and_entropy(logits[0], ids[0], chunk=2)
    torch.testing.assert_close(flat, plain(logits[0], ids[0], 1.0), **TOLERANCE)
    empty = token_logps_and_entropy(logits[:, :0], ids[:, :0])
    assert empty[0].shape == empty[1].shape == (3, 0)


def test_half_precision_is_computed_in_float32():
    logits, ids = make_logits(dtype=torch.bfloat16)
    logp, entropy = token_logps_and_entropy(logits, ids)
    assert logp.dtype == entropy.dtype == torch.float32
    expected = plain(logits.double(), ids, 1.0)
    torch.testing.assert_close(logp.double(), expected[0], atol=1e-5, rtol=0.0)
    torch.testing.assert_close(entropy.double(), expected[1], atol=1e-5, rtol=0.0)


def test_forbidden_tokens_have_no_probability_and_finite_gradients():
    logits, ids = make_logits()
    ids[ids < 2] = 5
    allowed = token_logps_and_entropy(logits[..., 2:], ids - 2)
    logits[..., :2] = -math.inf
    logits.requires_grad_()
    logp, entropy = token_logps_and_entropy(logits, ids, chunk=4)
    torch.testing.assert_close((logp, entropy), allowed, **TOLERANCE)
    (logp + entropy).sum().backward()
    assert torch.isfinite(logits.grad).all() and (logits.grad[..., :2] == 0).all()


def test_entropy_of_even_odds_is_log_v():
    ids = torch.zeros(1, 2, dtype=torch.int32)
    logp, entropy = token_logps_and_entropy(torch.zeros(1, 2, 8), ids)
    torch.testing.assert_close(entropy, torch.full((1, 2), math.log(8)))
    torch.testing.assert_close(logp, -entropy)


class SavedBytes:
    """Counts the bytes that autograd keeps for the backward pass."""

    def __enter__(self):
        self.storages = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            self.storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        self.hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error):
        self.hooks.__exit__(*error)


def test_nothing_of_the_size_of_the_logits_is_kept_for_backward():
    logits, ids = make_logits(rows=4, columns=64, vocabulary=100)
    logits.requires_grad_()
    size = logits.untyped_storage().nbytes()
    with SavedBytes() as saved:
        result = token_logps_and_entropy(logits, ids, chunk=8)
    saved.storages.pop(logits.data_ptr(), None)
    assert sum(saved.storages.values()) < size / 10
    with SavedBytes() as saved:
        reference = plain(logits, ids, 1.0)
    assert sum(saved.storages.values()) > size
    torch.testing.assert_close(result, reference, **TOLERANCE)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"chunk": 0}, "chunk is 0"),
        ({"token_ids": torch.full((3, 7), 13)}, r"token_ids spans \[13, 13\]"),
        ({"token_ids": torch.full((3, 7), -100)}, r"token_ids spans \[-100, -100\]"),
        ({"token_ids": torch.zeros(3, 6).long()}, r"token_ids is \[3, 6\]"),
        ({"loss_mask": torch.ones(3, 6).bool()}, r"loss_mask \[3, 6\]"),
    ],
)
def test_errors_name_the_value(changed, message):
    logits, ids = make_logits()
    arguments = {"logits": logits, "token_ids": ids} | changed
    with pytest.raises(ValueError, match=message):
        token_logps_and_entropy(**arguments)


def test_docstring_examples_run():
    failed, attempted = doctest.testmod(gae)
    assert attempted > 0 and failed == 0
