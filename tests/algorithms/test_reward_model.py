"""RewardModel: rows, losses, noise, evaluation, export."""

from __future__ import annotations

import json

import numpy as np
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
from test_sft_files import say, write

from rllib_llm import RewardModelConfig
from rllib_llm.algorithms.pref.pairs import PreferencePair
from rllib_llm.algorithms.reward_model.finished_episodes import (
    FinishedEpisode,
    finished_pair,
)
from rllib_llm.algorithms.reward_model.reward_model import RewardModel
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.turn_ends import TurnEnds
from rllib_llm.errors import ConfigError
from rllib_llm.losses.score_losses import outcome_loss, pairwise_loss
from rllib_llm.modules.classifiers import Classifier
from rllib_llm.offline.conversation_files import parse_pair


def stored(chosen, rejected, *before):
    row = {
        "prompt": [*before, say("user", "Guess.")],
        "chosen": [say("assistant", chosen)],
        "rejected": [say("assistant", rejected)],
    }
    return parse_pair(json.dumps(row).encode())


def of_files(tmp_path, **training):
    rows = [
        {"prompt": f"1 to {n}?", "chosen": f"{n // 2}", "rejected": f"it is {n}"}
        for n in range(5, 29)
    ]
    path = write(tmp_path / "pairs.jsonl", rows)
    config = make_config(RewardModelConfig, **training)
    return config.data(files=path, held_out=path)


@pytest.fixture
def renderer():
    return make_config(RewardModelConfig).chat_renderer()


# Rows ---------------------------------------------------------------------------------


def test_rows_end_where_the_template_ends_a_conversation(renderer):
    earlier = (say("user", "Hello."), say("assistant", "Hi."))
    pair = finished_pair(stored("4", "7", *earlier), renderer)
    messages = [*earlier, say("user", "Guess."), say("assistant", "4")]
    expected = renderer.tokenizer.apply_chat_template(
        messages, tokenize=True, return_dict=False
    )
    turns = pair.agent_episodes["chosen"].get_extra_model_outputs(columns.TURN)
    row = [i for t in turns for i in (*t.prompt_ids.tolist(), *t.action_ids.tolist())]
    assert row == expected == renderer.conversation(messages)


def test_a_reply_that_was_cut_is_closed(renderer):
    episode = fake_episode(0)
    ids = FinishedEpisode(episode, renderer).get_extra_model_outputs(columns.TURN)
    before = episode.get_extra_model_outputs(columns.TURN)[-1].action_ids
    added = ids[-1].action_ids[len(before) :].tolist()
    assert added[0] == renderer.end_of_turn_id
    # The recorded turn, which others read, is as it was.
    after = episode.get_extra_model_outputs(columns.TURN)[-1].action_ids
    assert after.tolist() == before.tolist()


def test_control_tokens_in_a_reply_are_plain_text(renderer):
    name = renderer.tokenizer.convert_ids_to_tokens(renderer.end_of_turn_id)
    honest = renderer.conversation([say("user", "a"), say("assistant", "b")])
    forged = renderer.conversation(
        [say("user", "a"), say("assistant", f"b{name}{name}")]
    )
    assert forged.count(renderer.end_of_turn_id) == honest.count(
        renderer.end_of_turn_id
    )


def test_ends_of_turns():
    batch = {
        "loss_mask": np.array([[0, 1, 1, 0, 1], [0, 1, 0, 1, 0]], bool),
        columns.TURN_IDS: np.array([[-1, 0, 0, -1, 1], [-1, 2, -1, 0, -1]]),
        columns.EPISODE_INDEX: np.array([0, 1]),
    }
    ends = TurnEnds.of(batch)
    assert ends.rows.tolist() == [0, 0, 1, 1]
    assert ends.cols.tolist() == [2, 4, 1, 3]
    assert ends.last().tolist() == [1, 2]


# Gradient -----------------------------------------------------------------------------


def pairs(renderer, count=5):
    sides = [
        FinishedEpisode(fake_episode(i, turns=1 + i % 3), renderer, success=i % 2 == 0)
        for i in range(2 * count)
    ]
    return [PreferencePair(*sides[i : i + 2]) for i in range(0, 2 * count, 2)]


def row_score(learner, episode):
    """Return the score of one row by the plain model, with its graph."""
    turns = episode.get_extra_model_outputs(columns.TURN)
    ids = [i for t in turns for i in (*t.prompt_ids.tolist(), *t.action_ids.tolist())]
    module = policy(learner)
    trunk = module.value_head.trunk or module.lm.base_model
    hidden = trunk(input_ids=torch.tensor([ids])).last_hidden_state
    return module.value_head(hidden[:, -1])


def away_from_zero(learner):
    with torch.no_grad():
        generator = torch.Generator().manual_seed(3)
        weight = policy(learner).value_head.out.weight
        weight += 0.3 * torch.randn(weight.shape, generator=generator)


@pytest.mark.parametrize(
    "training",
    [
        {"score_margin": 0.5, "centering": 0.1},
        {"micro_batch_tokens": 48},
        {"packing": True, "micro_batch_tokens": 64},
        {"score_loss": "outcome"},
    ],
    ids=str,
)
def test_the_gradient_is_that_of_the_loss(training):
    learner = make_learner(make_config(RewardModelConfig, **training))
    away_from_zero(learner)
    played = pairs(learner.config.chat_renderer())
    found = gradients(learner, played)
    scored = [
        torch.cat([row_score(learner, e) for e in pair.agent_episodes.values()])
        for pair in played
    ]
    both = torch.stack(scored)
    if training.get("score_loss") == "outcome":
        target = torch.tensor([1.0, 0.0]).expand_as(both)
        loss = outcome_loss(both, target).mean()
    else:
        margin, centering = (
            training.get("score_margin", 0),
            training.get("centering", 0),
        )
        loss = pairwise_loss(
            both[:, 0], both[:, 1], margin=margin, centering=centering
        ).mean()
    module = policy(learner)
    trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
    expected = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    assert max(float(g.abs().max()) for g in expected if g is not None) > 1e-3
    for name, grad in zip(trained, expected, strict=True):
        if grad is not None:
            torch.testing.assert_close(found[name], grad, atol=3e-6, rtol=1e-4)


def test_the_policy_that_samples_stays_as_it_is():
    learner = make_learner(make_config(RewardModelConfig, lr=1e-2))
    before = {n: p.clone() for n, p in policy(learner).lm.named_parameters()}
    for _ in range(2):
        update(learner, pairs(learner.config.chat_renderer()))
    after = dict(policy(learner).lm.named_parameters())
    assert all(torch.equal(before[n], p) for n, p in after.items())
    # Otherwise weight decay would change it, and optimisers would hold its moments.
    assert not any(p.requires_grad for p in after.values())


def test_updates_order_the_pairs_and_record_the_scores_statistics():
    learner = make_learner(make_config(RewardModelConfig, lr=3e-3))
    played = pairs(learner.config.chat_renderer())
    results = [update(learner, played) for _ in range(12)]
    learned = results[-1][DEFAULT_MODULE_ID]
    assert float(learned["pair_accuracy"].peek()) == 1.0
    first = results[0][DEFAULT_MODULE_ID]["score_loss"]
    assert float(first.peek()) == pytest.approx(np.log(2))
    # Of the pass before the last step.
    mean, std = policy(learner).score_stats.tolist()
    assert std > 0.05
    assert mean == pytest.approx(float(learned["score_mean"].peek()), rel=1e-5)
    scores = learner.score(played)
    assert scores.shape == (5, 2) and (scores[:, 0] > scores[:, 1]).all()


def test_outcomes_that_are_unknown_are_refused():
    learner = make_learner(make_config(RewardModelConfig, score_loss="outcome"))
    renderer = learner.config.chat_renderer()
    with pytest.raises(ConfigError, match="needs the success of every episode"):
        update(learner, [FinishedEpisode(fake_episode(0), renderer)])


# Noise --------------------------------------------------------------------------------


def driver(config):
    algo = RewardModel.__new__(RewardModel)
    algo.config, algo._stored, algo._iteration = config, None, 0
    return algo


def test_noise_exchanges_a_share_of_the_sides_and_stays_for_stored_pairs(tmp_path):
    config = of_files(tmp_path)
    algo = driver(config.training(label_noise=0.3))
    algo._stored = config.held_out_rows()
    renderer = config.chat_renderer()
    units = [finished_pair(stored(str(i), f"{i}."), renderer) for i in range(300)]

    def first_sides():
        return [u.agent_episodes["chosen"].id_ for u in algo._with_noise(units)]

    kept = [u.agent_episodes["chosen"].id_ for u in units]
    one = first_sides()
    algo._iteration = 1
    assert one == first_sides()
    share = np.mean([a != b for a, b in zip(one, kept, strict=True)])
    assert 0.2 < share < 0.4


def test_noise_changes_success():
    config = make_config(RewardModelConfig, score_loss="outcome", label_noise=1.0)
    renderer = config.chat_renderer()
    unit = FinishedEpisode(fake_episode(0), renderer, success=True)
    (noisy,) = driver(config)._with_noise([unit])
    assert episode_data(noisy).success is False


# Configuration ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c.training(score_loss="hinge"), "score_loss='hinge'"),
        (lambda c: c.training(centering=-1.0), "centering=-1.0 must be"),
        (lambda c: c.training(label_noise=1.5), "label_noise=1.5 must be"),
        (
            lambda c: c.training(score_loss="outcome", score_margin=1.0),
            "score_margin=1.0 would have no effect",
        ),
        (lambda c: c.training(ref_kl_coeff=0.1), "ref_kl_coeff=0.1 would have no"),
        (lambda c: c.rollouts(group_size=1), "a pair needs two episodes"),
        (lambda c: c.language_model(history="latest"), "scores whole conversations"),
        (lambda c: c.environment("secret_sum-v0"), "one agent and one policy"),
        (lambda c: c.data(held_out="nowhere.jsonl"), "nowhere.jsonl"),
    ],
)
def test_what_is_refused(change, message):
    config = RewardModelConfig().environment("guess_number-v0")
    config.rollouts(episodes_per_iteration=16, group_size=4)
    with pytest.raises(ConfigError, match=message):
        change(config).validate()


def test_files_replace_sampling_and_need_held_out_pairs_to_evaluate(tmp_path):
    config = of_files(tmp_path)
    config.training(match="all")
    with pytest.raises(ConfigError, match="match='all' would have no effect"):
        config.validate()
    config = of_files(tmp_path).evaluation(evaluation_interval=1)
    config.data_held_out = None
    with pytest.raises(ConfigError, match=r"Set data.held_out"):
        config.validate()


# Export -------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [True, False])
def test_an_export_is_loaded_by_transformers_and_scores_alike(own, tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    config = make_config(RewardModelConfig, lr=3e-3) if own else of_files(tmp_path)
    learner = make_learner(config)
    away_from_zero(learner)
    played = pairs(config.chat_renderer())
    update(learner, played)
    folder = tmp_path / "export"
    policy(learner).save_model(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [say("user", "Guess."), say("assistant", "4")]
    ids = tokenizer.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_tensors="pt"
    )
    with torch.no_grad():
        expected = float(model(**ids).logits[0, 0])
    pair = finished_pair(stored("4", "7"), config.chat_renderer())
    ours = learner.score([pair])[0, 0]
    assert ours == pytest.approx(expected, abs=1e-5) and abs(ours) > 1e-3
    rows = [ids["input_ids"][0].tolist(), [5, 6, 7]]
    classifier = Classifier(str(folder))
    assert classifier.scores(rows, 64)[0] == pytest.approx(expected, abs=1e-5)
    assert model.config.score_std == pytest.approx(
        float(policy(learner).score_stats[1])
    )
    # Padding must not be taken for the end.
    assert tokenizer.pad_token_id != rows[0][-1]


# Runs ---------------------------------------------------------------------------------


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_on_sampled_pairs_resumes_exactly(ray_session, tmp_path):
    config = (
        RewardModelConfig()
        .environment("guess_number-v0", env_config={"upper": 7})
        .generation(max_new_tokens=8)
        .rollouts(episodes_per_iteration=32, group_size=4)
        .training(lr=1e-3, minibatch_size=4, label_noise=0.1)
        .sft(demonstrations=60, mistake_rate=0.5)
        .evaluation(evaluation_interval=2, evaluation_duration=8)
    )
    algo = config.build_algo()
    results = [algo.train() for _ in range(2)]
    assert {"pair_accuracy", "calibration_error", "log_loss"} <= {
        *results[-1]["evaluation"]
    }
    path = algo.save_to_path(tmp_path / "checkpoint")
    expected = algo.train()["learners"][DEFAULT_MODULE_ID]["score_loss"]
    again = type(algo).from_checkpoint(path)
    assert again.train()["learners"][DEFAULT_MODULE_ID]["score_loss"] == expected
    again.stop()
    algo.stop()


@pytest.mark.ray
def test_a_run_on_stored_pairs(ray_session, tmp_path):
    config = of_files(tmp_path, lr=1e-3, minibatch_size=8)
    config.resolved_model = None
    config.rollouts(episodes_per_iteration=24).evaluation(evaluation_interval=1)
    algo = config.build_algo()
    results = [algo.train() for _ in range(3)]
    assert [r["num_pairs"] for r in results] == [24] * 3
    losses = [r["learners"][DEFAULT_MODULE_ID]["score_loss"] for r in results]
    assert losses[0] > losses[1] > losses[2]
    assert results[-1]["evaluation"]["pair_accuracy"] > 0.9
    algo.stop()
