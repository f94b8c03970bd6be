"""Action head: probabilities, gradients and masks against one pass per action."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hf_folders import write_folder
from module_helpers import make_module
from ray.rllib.core.columns import Columns

from rllib_llm.connectors.learner.token_rows import RowBuilder, build_rows, pad_rows
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import micro_batches
from rllib_llm.data.types import Choice, FinishReason, Turn
from rllib_llm.errors import ModelError
from rllib_llm.modules.action_head import NORMS, attention_inputs, score_weight

WORDS = ("left", "go up", "take the red key", "wait a bit")


def make_turn(rng, prompt: int, lengths, norm: str = "sum", extends: bool = True):
    """Return a turn of random tokens; the first action of ``lengths`` is chosen."""
    action, *others = (rng.integers(20, 300, n).astype(np.int32) for n in lengths)
    texts = [WORDS[i % len(WORDS)] for i in range(len(lengths))]
    pairs = zip(lengths, texts, strict=True)
    return Turn(
        prompt_ids=rng.integers(20, 300, prompt).astype(np.int32),
        extends=extends,
        action_ids=action,
        action_logps=np.zeros(len(action), np.float32),
        finish=FinishReason.STOP,
        choice=Choice(
            others, np.array([score_weight(norm, n, t) for n, t in pairs], np.float32)
        ),
    )


def conversations(norm: str = "sum"):
    """Return two episodes with ragged turns, one of them with an edited context."""
    rng = np.random.default_rng(0)
    first = [
        make_turn(rng, 7, (2, 3, 1, 4), norm),
        make_turn(rng, 3, (4, 2), norm),
        make_turn(rng, 5, (1, 3, 3), norm),
    ]
    second = [
        make_turn(rng, 4, (3, 1, 2), norm),
        make_turn(rng, 6, (2,), norm, extends=False),
        make_turn(rng, 2, (2, 2, 2, 2, 5), norm),
    ]
    return [first, second]


def batch_of(episodes, **kwargs):
    rows = [
        r for turns in episodes for r in build_rows(turns, [0.0] * len(turns), **kwargs)
    ]
    out = pad_rows(rows, pad_id=0, trained=[True] * len(rows))
    return {k: torch.as_tensor(v) for k, v in out.items()}


def contexts(turns):
    """Yield the tokens before each turn, and the turn."""
    history: list[int] = []
    for turn in turns:
        history = [*(history if turn.extends else []), *turn.prompt_ids.tolist()]
        yield list(history), turn
        history += turn.action_ids.tolist()


def slow_logps(lm, turns, temperature: float = 1.0):
    """Run the model on every context with every action alone."""
    found = []
    for context, turn in contexts(turns):
        scores = []
        actions = (turn.action_ids, *turn.choice.others)
        for ids, weight in zip(actions, turn.choice.weights, strict=True):
            tokens = torch.tensor([[*context, *ids.tolist()]])
            logps = lm(input_ids=tokens, use_cache=False).logits[0].log_softmax(-1)
            of_action = range(len(context), tokens.shape[1])
            logp = sum(logps[t - 1, tokens[0, t]] for t in of_action)
            scores.append(float(weight) * logp)
        found.append(torch.log_softmax(torch.stack(scores) / temperature, 0))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("lm"), "qwen2")


@pytest.fixture
def module(folder):
    return make_module(folder, temperature=0.7).eval()


def test_weights_of_the_three_norms():
    text = "take the red key"
    assert [score_weight(n, 6, text) for n in NORMS] == [1.0, 1 / 6, 1 / 4]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("row_per_turn", [False, True])
def test_equals_one_pass_per_action_in_float64(module, norm, row_per_turn):
    module.lm.double()
    episodes = conversations(norm)
    batch = batch_of(episodes, row_per_turn=row_per_turn)
    found = module.action_logps(batch)
    expected = [x for turns in episodes for x in slow_logps(module.lm, turns, 0.7)]
    assert len(found) == len(expected) == 6
    for row, logps in zip(found, expected, strict=True):
        torch.testing.assert_close(row[: len(logps)], logps, atol=1e-9, rtol=1e-9)
        assert (row[len(logps) :] == -torch.inf).all()
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(6).double())


@pytest.mark.parametrize("family", ["qwen3", "llama_tied", "gemma2", "gemma3"])
def test_other_families_agree_in_float32(tmp_path, family):
    module = make_module(write_folder(tmp_path, family)).eval()
    config = module.lm.config.get_text_config()
    if getattr(config, "sliding_window", None):
        config.sliding_window = 5  # shorter than the contexts
        for name, part in module.lm.named_modules():
            if name.endswith("self_attn") and part.sliding_window:
                part.sliding_window = 5
    episodes = conversations()
    found = module.action_logps(batch_of(episodes))
    expected = [x for turns in episodes for x in slow_logps(module.lm, turns)]
    for row, logps in zip(found, expected, strict=True):
        torch.testing.assert_close(row[: len(logps)], logps, atol=1e-5, rtol=1e-5)


def test_models_without_a_plain_head_run_as_a_whole(module):
    batch = batch_of(conversations())
    expected = module.action_logps(batch)
    module._trunk_and_head_suffice = False
    torch.testing.assert_close(module.action_logps(batch), expected)


def test_head_chunks_give_the_same_scores(folder):
    batch = batch_of(conversations())
    expected = make_module(folder).eval().action_logps(batch)
    module = make_module(folder, head_chunk_tokens=3).eval()
    torch.testing.assert_close(module.action_logps(batch), expected)


def test_scores_are_at_the_first_token_of_the_chosen_action(module):
    episodes = conversations()
    batch = batch_of(episodes)
    scores = module.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
    assert int(batch[Columns.LOSS_MASK].sum()) == 6
    assert not scores[~batch[Columns.LOSS_MASK]].any()
    expected = [x for turns in episodes for x in slow_logps(module.lm, turns, 0.7)]
    for pair, logps in zip(scores[batch[Columns.LOSS_MASK]], expected, strict=True):
        entropy = -(logps.exp() * logps).sum()
        expected_pair = torch.stack([logps[0], entropy])
        torch.testing.assert_close(pair, expected_pair, atol=1e-5, rtol=1e-5)


def gradients(module, loss):
    module.zero_grad()
    loss.backward()
    named = module.lm.named_parameters()
    return {n: p.grad.clone() for n, p in named if p.grad is not None}


def test_gradient_equals_that_of_the_slow_loop(module, monkeypatch):
    module.lm.double()
    # The models' norms compute in float32 for parameters of any type.
    norm = type(module.lm.model.norm)
    monkeypatch.setattr(
        norm,
        "forward",
        lambda self, x: torch.rms_norm(
            x, x.shape[-1:], self.weight, self.variance_epsilon
        ),
    )
    episodes = conversations("word")
    weights = torch.arange(1.0, 7.0).double()
    fast = module.action_logps(batch_of(episodes))
    chosen = gradients(module, (fast[:, 0] * weights).sum())
    slow = [x[0] for turns in episodes for x in slow_logps(module.lm, turns, 0.7)]
    expected = gradients(module, (torch.stack(slow) * weights).sum())
    assert chosen.keys() == expected.keys()
    for name in chosen:
        torch.testing.assert_close(chosen[name], expected[name], atol=1e-9, rtol=1e-7)


def test_a_single_action_has_probability_one_and_no_gradient(module):
    turn = make_turn(np.random.default_rng(1), 6, (4,))
    scores = module.forward_train(batch_of([[turn]]))[Columns.ACTION_DIST_INPUTS]
    assert not scores.any()
    found = gradients(module, scores.sum())
    assert found and all(not g.any() for g in found.values())


def test_actions_do_not_see_each_other(module):
    """The score of an action has no gradient at the tokens of another action."""
    turn = make_turn(np.random.default_rng(2), 6, (3, 2, 4))
    batch = batch_of([[turn]])
    embedded = module.lm.get_input_embeddings()(batch[columns.INPUT_IDS]).detach()
    embedded.requires_grad_()
    masks = attention_inputs(module.lm.config, batch, torch.float32)
    hidden = module.lm.base_model(inputs_embeds=embedded, **masks).last_hidden_state
    for action in range(3):
        own = batch[columns.CANDIDATES][0] == action
        (grad,) = torch.autograd.grad(
            hidden[0, own].square().sum(), embedded, retain_graph=True
        )
        touched = grad[0].abs().sum(-1) > 0
        context = torch.arange(len(own)) < 6
        assert (touched == (own | context)).all()


def test_values_and_later_turns_ignore_rejected_actions(module):
    """Rejected actions do not affect later turns."""
    turns = conversations()[0]
    rows = batch_of([turns])
    plain = [
        Turn(t.prompt_ids, t.extends, t.action_ids, t.action_logps, t.finish)
        for t in turns
    ]
    expected = module.compute_values(batch_of([plain]))
    values = module.compute_values(rows)
    width = expected.shape[1]
    torch.testing.assert_close(values[:, :width], expected, atol=1e-5, rtol=1e-5)


def test_a_masked_batch_is_all_zero(module):
    batch = batch_of(conversations())
    batch[Columns.LOSS_MASK] = torch.zeros_like(batch[Columns.LOSS_MASK])
    assert not module._forward(batch)[Columns.ACTION_DIST_INPUTS].any()


def test_micro_batches_give_the_same_scores(module):
    batch = batch_of(conversations(), row_per_turn=True)
    expected = module._forward(batch)[Columns.ACTION_DIST_INPUTS]
    for index, part in micro_batches(batch, 40):
        found = module._forward(part)[Columns.ACTION_DIST_INPUTS]
        width = found.shape[1]
        torch.testing.assert_close(expected[index][:, :width], found)
        assert not expected[index][:, width:].any()


def test_a_row_is_the_conversation_followed_by_rejected_actions():
    turns = conversations()[1][1:]
    (row,) = build_rows(turns, [1.0, 2.0], bootstrap=True)
    assert row.end == 12 and len(row) == 12 + 2 + 2 + 2 + 5
    np.testing.assert_array_equal(np.flatnonzero(row.turn_ids >= 0), [6, 10])
    np.testing.assert_array_equal(row.rewards[[6, 10]], [1.0, 2.0])
    assert row.rewards.sum() == 3.0
    starts = [-1] * 6 + [6] * 2 + [-1] * 2 + [10] * 2 + [10] * 11
    np.testing.assert_array_equal(row.choices.starts, starts)
    numbers = [-1] * 6 + [0] * 2 + [-1] * 2 + [0] * 2 + [1, 1, 2, 2, 3, 3] + [4] * 5
    np.testing.assert_array_equal(row.choices.candidates, numbers)
    out = pad_rows([row], pad_id=0, trained=[True])
    assert out[columns.BOOTSTRAP_COLUMN].tolist() == [12]
    assert out[columns.ATTENTION_MASK].all()


def test_rows_without_choices_have_no_columns_for_them():
    builder = RowBuilder()
    builder.prompt([1, 2, 3])
    assert columns.CANDIDATES not in pad_rows(
        [builder.build()], pad_id=0, trained=[True]
    )


def test_models_without_custom_masks_are_refused(module):
    batch = batch_of(conversations())
    module.lm.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ModelError, match="attn_implementation: sdpa"):
        module.action_logps(batch)
    module.lm.config._attn_implementation = "sdpa"
    module.lm.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ModelError, match="layers of linear_attention"):
        module.action_logps(batch)
