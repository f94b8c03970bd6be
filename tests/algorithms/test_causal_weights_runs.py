"""Scorer "causal" (CoSo): which tokens decide the action, and what the loss reads."""

from __future__ import annotations

import ast
import dataclasses

import numpy as np
import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from setting_scorer import acting_episodes
from team_helpers import Alone, PairTogether, Run, gradients, single_config, team_config

from rllib_llm import GRPOConfig, SFTConfig
from rllib_llm.algorithms.learner.causal_learner import counted_tokens
from rllib_llm.algorithms.scorer.whole_episode import WholeEpisode
from rllib_llm.data import columns
from rllib_llm.data.action_labels import Replies, action_label, labels_of_turns
from rllib_llm.data.types import TurnResult
from rllib_llm.errors import ConfigError, EnvContractError
from rllib_llm.modules.action_model import ActionModel
from rllib_llm.modules.scorer import SCORER_MODULE

TERM = {"name": "entropy", "weights": "causal", "weight": 0.5}


class FirstLetter(Alone):
    """Game whose action is decided by the first letter alone."""

    def parse(self, completion):
        if not completion:
            return None
        return "plain" if completion[0].isascii() else "other"

    def reply(self, action):
        return TurnResult("Go on.", reward=float(action == "plain"))


def make_config(algo=GRPOConfig, env=FirstLetter, term=TERM, scorer=None, **sections):
    scorer = {"loss": "causal", "lr": 3e-3, "span": 1, **(scorer or {})}
    training = {"loss_terms": [term], **sections.pop("training", {})}
    rollouts = {"episodes_per_iteration": 64, "group_size": 4}
    return single_config(
        algo,
        env,
        slots=32,
        generation={"max_new_tokens": 3},
        training=training,
        rollouts={**rollouts, **sections.pop("rollouts", {})},
        scorer=scorer,
        **sections,
    )


def batch_of(learner, episodes):
    """Return the columns of the policy's rows, with the weights of their tokens."""
    data = learner._data_of([WholeEpisode(e, SCORER_MODULE) for e in episodes])
    learner.add_causal_weights(data)
    return data


def train(learner, episodes, times):
    whole = [WholeEpisode(e, SCORER_MODULE) for e in episodes]
    return [learner.update_scorer(whole, i) for i in range(times)]


@pytest.fixture(scope="module")
def sampled():
    """Return a run, 64 episodes that it sampled, and metrics of training on them."""
    run = Run(make_config(scorer={"minibatch_size": 16}))
    episodes = run.sample(16)
    return run, episodes, train(run.learner, episodes, 6)


def lettered(tokenizer, count):
    """Return episodes whose replies are letters, of which the first is the action."""
    letters = np.array([tokenizer.encode(letter)[0] for letter in "abcdefgh"])
    rng, episodes = np.random.default_rng(0), acting_episodes(count)
    for episode in episodes:
        turns = episode.get_extra_model_outputs(columns.TURN)
        for turn, info in zip(turns, episode.get_infos()[1:], strict=True):
            drawn = rng.integers(len(letters), size=len(turn.action_ids))
            turn.action_ids = letters[drawn].astype(np.int32)
            info["parsed_action"] = f"to {drawn[0] % 2}"
    return episodes


def test_tokens_that_decide_the_action_weigh_most():
    run = Run(make_config(scorer={"minibatch_size": 16}))
    learner, episodes = run.learner, lettered(run.config.chat_renderer().tokenizer, 96)
    data = learner._data_of(episodes)
    learner.add_causal_weights(data)
    # Before its first update the model knows nothing, and no token has a weight.
    assert not data[columns.CAUSAL_WEIGHTS].any()
    metrics = [learner.update_scorer(episodes, i) for i in range(10)]
    assert metrics[-1]["action_accuracy"] > 0.95 > metrics[0]["action_accuracy"]
    assert metrics[-1]["score_loss"] < 0.2 < metrics[0]["score_loss"]
    data = learner._data_of(episodes)
    learner.add_causal_weights(data)
    weights = data[columns.CAUSAL_WEIGHTS].numpy()
    replies = Replies.of(data, pad_id=0)
    of_token = weights[replies.rows, replies.cols]
    first = of_token[replies.places == 0].mean()
    later = of_token[replies.places > 0].mean()
    assert first > 0.9 and later < 0.3
    assert not weights[data[columns.TURN_IDS].numpy() < 0].any()


def test_tokens_that_do_not_count_have_no_weight(sampled):
    run, episodes, _ = sampled
    data = batch_of(run.learner, episodes)
    weights = data[columns.CAUSAL_WEIGHTS].numpy()
    counted = run.learner._counted[data[columns.INPUT_IDS].numpy()]
    assert weights[counted].any()
    assert not weights[~counted].any() and (~counted).any()


def test_weights_are_those_of_a_loop_over_spans(sampled):
    run, episodes, *_ = sampled
    learner, span = run.learner, 3
    # Differences of nearly equal probabilities: in float32 they are rounded.
    model = learner._action_model.double()
    learner._settings.scorer_span, usual = span, learner._settings.scorer_span
    data = batch_of(learner, episodes[:3])
    learner._settings.scorer_span = usual
    replies = Replies.of(data, model.null_id)
    number = 1
    ids = replies.ids[number][replies.ids[number] != model.null_id]

    def probability(tokens):
        given = torch.from_numpy(tokens)[None]
        logits = model(given, torch.ones_like(given, dtype=torch.bool))
        return float(logits.softmax(dim=1)[0, replies.labels[number]].detach())

    effects = []
    for place, token in enumerate(ids):
        masked = ids.copy()
        masked[place : place + span] = model.null_id
        effect = abs(probability(ids) - probability(masked))
        effects.append(effect if learner._counted[token] else 0.0)
    effects = np.array(effects)
    expected = ((effects - effects.min()) / (effects.max() - effects.min())) ** 0.5
    where = replies.replies == number
    found = data[columns.CAUSAL_WEIGHTS][replies.rows[where], replies.cols[where]]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    model.float()


def test_the_gradient_is_linear_in_the_weights(sampled):
    run, episodes, *_ = sampled
    learner, usual = run.learner, run.learner.add_causal_weights
    found = {}

    def given(name, change):
        def add(batch):
            usual(batch)
            batch[columns.CAUSAL_WEIGHTS] = change(batch[columns.CAUSAL_WEIGHTS])

        learner.add_causal_weights = add
        found[name] = gradients(learner, episodes[:8])[DEFAULT_MODULE_ID]

    given("own", lambda weights: weights)
    given("rest", lambda weights: 1 - weights)
    given("ones", torch.ones_like)
    given("zeros", torch.zeros_like)
    del learner.add_causal_weights
    scale = max(gradient.abs().max() for gradient in found["ones"].values())
    moved = {"zeros": 0.0, "ones": 0.0}
    for name, own in found["own"].items():
        both = own + found["rest"][name] - found["ones"][name]
        assert (both - found["zeros"][name]).abs().max() < 1e-4 * scale
        for other in moved:
            change = float((own - found[other][name]).abs().max())
            moved[other] = max(moved[other], change)
    assert min(moved.values()) > 0.05 * scale


def test_equal_weights_are_the_bonus_without_a_scorer(sampled):
    run, episodes, *_ = sampled
    learner = run.learner
    usual = learner.add_causal_weights

    def ones(batch):
        usual(batch)
        batch[columns.CAUSAL_WEIGHTS] = torch.ones_like(batch[columns.CAUSAL_WEIGHTS])

    learner.add_causal_weights = ones
    found = gradients(learner, episodes[:8])[DEFAULT_MODULE_ID]
    del learner.add_causal_weights
    plain = make_config(term={"name": "entropy", "weight": 0.5}, scorer={"loss": None})
    plain.scorer_lr, plain.scorer_span = GRPOConfig().scorer_lr, 4
    other = Run(plain)
    expected = gradients(other.learner, episodes[:8])[DEFAULT_MODULE_ID]
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=0)


def test_a_saved_scorer_gives_the_same_weights(sampled, tmp_path):
    run, episodes, *_ = sampled
    module = run.learner.module[SCORER_MODULE].unwrapped()
    expected = batch_of(run.learner, episodes[:4])[columns.CAUSAL_WEIGHTS]
    module.save_to_path(tmp_path / "module")
    assert not list((tmp_path / "module").glob("*state*.pkl"))
    other = Run(make_config()).learner
    restored = other.module[SCORER_MODULE].unwrapped()
    assert not batch_of(other, episodes[:4])[columns.CAUSAL_WEIGHTS].any()
    restored.restore_from_path(tmp_path / "module")
    found = batch_of(other, episodes[:4])[columns.CAUSAL_WEIGHTS]
    assert torch.equal(found, expected) and expected.any()


# Labels ------------------------------------------------------------------------------


@dataclasses.dataclass
class Click:
    place: int


class Unnamed:
    pass


def test_equal_actions_have_equal_labels():
    trees = [ast.parse("1 + 2", mode="eval").body for _ in range(2)]
    pairs = [("go", "go"), (Click(3), Click(3)), (None, None), trees]
    for one, other in pairs:
        assert action_label(one, 1000) == action_label(other, 1000)
    texts = {action_label(f"go {i}", 10**6) for i in range(50)}
    assert len(texts) == 50
    assert {action_label(f"go {i}", 2) for i in range(50)} == {0, 1}


def test_actions_without_a_text_form_are_refused():
    with pytest.raises(EnvContractError, match="no text form"):
        action_label(Unnamed(), 8)


def test_labels_are_those_of_the_infos(sampled):
    _, episodes, *_ = sampled
    for episode in episodes[:4]:
        parsed = [info["parsed_action"] for info in episode.get_infos()[1:]]
        expected = [action_label(action, 256) for action in parsed]
        assert labels_of_turns(episode, 256).tolist() == expected
    (plain, *_) = acting_episodes(1)
    plain._episode.get_infos()[1].pop("parsed_action")
    with pytest.raises(EnvContractError, match="has no 'parsed_action'"):
        labels_of_turns(plain, 256)


def test_punctuation_and_special_tokens_do_not_count(sampled):
    run, *_ = sampled
    tokenizer = run.config.chat_renderer().tokenizer
    counted = counted_tokens(tokenizer, run.learner._action_model.null_id)
    for text in "a7+.(":
        (number,) = tokenizer.encode(text)
        assert counted[number] == (text in "a7+")
    assert not counted[tokenizer.all_special_ids].any() and not counted[-1]


def test_padding_changes_no_logit():
    torch.manual_seed(0)
    model = ActionModel(30, 5).double()
    torch.nn.init.normal_(model.out.weight)
    short = torch.randint(30, (2, 4))
    padded = torch.cat([short, torch.full((2, 3), model.null_id)], dim=1)
    alone = model(short, torch.ones_like(short, dtype=torch.bool))
    torch.testing.assert_close(model(padded, padded != model.null_id), alone)
    # Bidirectional: the first token alone does not decide.
    other = short.clone()
    other[:, -1] = (other[:, -1] + 1) % 30
    assert not torch.allclose(model(other, torch.ones_like(other).bool()), alone)


# Settings ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"scorer": {"loss": None, "lr": 1e-4, "span": 4}}, "weights='causal'"),
        ({"scorer": {"loss": "return", "span": 4}}, "weights='causal'"),
        ({"term": {"name": "entropy"}}, "that nothing reads"),
        ({"scorer": {"scores": "log_ratio"}}, "losses that score turns"),
        ({"scorer": {"pool": "mean"}}, "scores no turns"),
        ({"scorer": {"gamma": 0.5}}, "scores no turns"),
        ({"scorer": {"num_actions": 1}}, "num_actions"),
        ({"scorer": {"span": 0}}, "span"),
        ({"rollouts": {"rewards": ["scorer"]}}, "weighs tokens and scores nothing"),
        ({"learners": {"sharding": "fsdp2"}}, "sharding"),
    ],
)
def test_bad_settings_are_refused(changes, named):
    with pytest.raises(ConfigError, match=named):
        make_config(**changes).validate()


def test_other_losses_refuse_its_settings():
    plain = {"name": "entropy"}
    rewards = {"rewards": ["scorer"]}
    for setting in ({"span": 2}, {"num_actions": 8}):
        scorer = {"loss": "return", "span": 4, **setting}
        config = make_config(term=plain, scorer=scorer, rollouts=rewards)
        with pytest.raises(ConfigError, match="it is for scorer.loss='causal'"):
            config.validate()


def test_sft_and_teams_are_refused():
    with pytest.raises(ConfigError, match="loss_terms"):
        single_config(SFTConfig, training={"loss_terms": [TERM]}).validate()
    team = team_config(
        PairTogether,
        GRPOConfig,
        policies=None,
        rollouts={"group_size": 4},
        training={"loss_terms": [TERM]},
        scorer={"loss": "causal"},
    )
    with pytest.raises(ConfigError, match="one agent and one policy"):
        team.validate()
