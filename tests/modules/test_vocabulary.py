"""Output rows without a token are excluded from the policy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hf_folders import make_tokenizer, write_folder
from module_helpers import make_module, random_rows, scores_of
from ray.rllib.core.columns import Columns

from rllib_llm import LLMPPOConfig
from rllib_llm.data import columns
from rllib_llm.engines import SamplingParams, TorchEngine, generate

ROWS, NUM_TOKENS = 400, 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a model with more output rows than tokens, all about equally likely."""
    return write_folder(tmp_path_factory.mktemp("model"), "qwen3", vocab_size=ROWS)


def sampled(engine):
    params = [SamplingParams(max_new_tokens=40, seed=i) for i in range(4)]
    return generate(engine, [[1, 2, i] for i in range(4)], params)


def test_sampler_and_learner_use_the_tokenizers_ids_only(folder):
    module = make_module(folder, vocabulary=NUM_TOKENS)
    limits = {"max_slots": 4, "max_context_tokens": 64}
    free = [r.token_ids for r in sampled(TorchEngine(module.lm, **limits))]
    assert np.concatenate(free).max() >= NUM_TOKENS  # the test can fail
    results = sampled(TorchEngine(module.lm, **limits, vocabulary=NUM_TOKENS))
    assert max(r.token_ids.max() for r in results) < NUM_TOKENS
    rows = {
        columns.INPUT_IDS: torch.tensor(
            [[1, 2, i, *r.token_ids] for i, r in enumerate(results)]
        ),
        columns.ATTENTION_MASK: torch.ones(4, 43, dtype=torch.bool),
        Columns.LOSS_MASK: torch.arange(43).expand(4, 43) >= 3,
    }
    logp, entropy = scores_of(module, rows)
    ours = np.stack([r.logps for r in results])
    np.testing.assert_allclose(logp[:, 3:].detach().numpy(), ours, atol=1e-4)
    with torch.no_grad():
        logits = module.lm(input_ids=rows[columns.INPUT_IDS]).logits[
            :, 2:-1, :NUM_TOKENS
        ]
    expected = torch.distributions.Categorical(logits=logits.double()).entropy()
    torch.testing.assert_close(
        entropy[:, 3:].detach().double(), expected, atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("settings", [{}, {"head_chunk_tokens": 3}])
def test_output_rows_without_a_token_get_no_gradient(folder, settings):
    module = make_module(folder, vocabulary=NUM_TOKENS, **settings)
    module.lm.model.embed_tokens.requires_grad_(False)
    head = torch.nn.Linear(32, ROWS, bias=False)  # untied, to see its own gradient
    module.lm.set_output_embeddings(head)
    rows = random_rows(vocab=NUM_TOKENS)
    out = module.forward_train(rows)[Columns.ACTION_DIST_INPUTS]
    out.sum().backward()
    assert head.weight.grad[:NUM_TOKENS].abs().sum(-1).all()
    assert not head.weight.grad[NUM_TOKENS:].any()


def test_models_with_one_row_per_token_have_no_limit(folder):
    for vocabulary in (None, ROWS, ROWS + 1):
        assert make_module(folder, vocabulary=vocabulary).vocabulary is None


def test_the_vocabulary_reaches_modules_and_engines(folder):
    config = LLMPPOConfig().language_model(model=folder)
    known = len(make_tokenizer("qwen3"))
    assert known < ROWS
    settings = config.language_model_config()
    assert settings["vocabulary"] == known
    engine = config.build_generation_engine(make_module(**settings))
    results = sampled(engine)
    assert max(r.token_ids.max() for r in results) < known
