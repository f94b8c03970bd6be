"""Process reward model: labels of turns from forked episodes, and what it learns."""

from __future__ import annotations

import numpy as np
import pytest
from component_helpers import trajectory
from learner_helpers import make_learner
from scorer_helpers import driver_of, scorer_config, scorer_gradients
from setting_scorer import labels_learned
from test_fork_training import leaves
from test_pref_steps import table
from test_scorer import slow_loss, turns_of

from rllib_llm.algorithms.scorer.process_labels import process_labels
from rllib_llm.algorithms.scorer.whole_episode import WholeEpisode
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.places import Branch
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.errors import ConfigError
from rllib_llm.modules.scorer import SCORER_MODULE

FORK = {"name": "every_turn", "first": 1}


def forked_config(**scorer):
    config = scorer_config(loss="process", **scorer)
    return config.rollouts(fork=FORK, group_size=8, episodes_per_iteration=8)


def slow_labels(whole, kind):
    """The definition, by loops: episodes with the same replies up to a turn."""
    labels = []
    for one in whole.trajectories:
        for turn in range(len(one)):
            through = [
                other.is_solved
                for other in whole.trajectories
                if other.task.group_id == one.task.group_id
                and len(other) > turn
                and other.completions[: turn + 1] == one.completions[: turn + 1]
                and same_place(one, other, turn)
            ]
            labels.append(any(through) if kind == "hard" else np.mean(through))
    return labels


def same_place(one, other, turn):
    """True if two rollouts are one before a turn: at the prompt, or by a fork."""

    def began(rollout):
        # The rollout that sampled the turn before.
        return [b.rollout for b in rollout.path if b.turn <= turn - 1][-1:]

    return turn == 0 or began(one) == began(other)


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_labels_are_the_share_of_solved_episodes_through_a_turn(kind):
    whole = table()
    for t, solved in zip(whole.trajectories, [1, 0, 0, 1, 0], strict=True):
        t.success = bool(solved)
    found = process_labels(whole, kind)
    assert found.tolist() == slow_labels(whole, kind)
    # Turn 0 of the four that say "a": two of them are solved.
    assert found[0] == (1.0 if kind == "hard" else 0.5)


def test_tasks_do_not_share_turns():
    rows = [
        trajectory(
            task, 0, rewards=[0.0, value], path=(Branch(0, 0),), completions=["a", "b"]
        )
        for task, value in ((0, 1.0), (1, 0.0))
    ]
    assert process_labels(TurnTable(rows), "soft").tolist() == [1, 1, 0, 0]
    assert process_labels(TurnTable([]), "soft").shape == (0,)
    with pytest.raises(ValueError, match="kind is 'x'"):
        process_labels(TurnTable(rows), "x")


def test_the_driver_hands_the_labels_of_sampled_trees_to_the_learner():
    soft, hard = (
        labels_learned("GRPO", scorer={"labels": kind}) for kind in ("soft", "hard")
    )
    assert any(0 < label < 1 for label in np.concatenate(soft))
    assert [list(np.ceil(labels)) for labels in soft] == [list(h) for h in hard]


def test_the_gradient_is_that_of_the_labels():
    learner = make_learner(forked_config())
    labels = np.random.default_rng(0).random((5, 3))
    units = [
        WholeEpisode(episode, SCORER_MODULE, rewards=of_turns)
        for episode, of_turns in zip(leaves(), labels, strict=True)
    ]
    module = learner.module[SCORER_MODULE].unwrapped()
    module.zero_grad()
    slow_loss(learner, units).backward()
    expected = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    found = scorer_gradients(learner, units)
    largest = max(float(g.abs().max()) for g in expected.values())
    assert largest > 1e-3
    for name, gradient in expected.items():
        difference = float((gradient - found[name]).abs().max())
        assert difference < 1e-5 * max(1.0, largest), name


def test_it_learns_which_turns_lead_to_success():
    config = forked_config(lr=1e-2, num_epochs=20)
    learner = make_learner(config)
    episodes = leaves()
    for number, episode in enumerate(episodes):
        episode_data(episode).success = number == 4  # a tree of its own
    sampled = SampledEpisodes(episodes).table()
    labels = sampled.split(process_labels(sampled, "soft"))
    units = [
        WholeEpisode(episode, SCORER_MODULE, rewards=of_turns)
        for episode, of_turns in zip(episodes, labels, strict=True)
    ]
    results = [learner.update_scorer(units, i) for i in range(4)]
    assert results[-1]["outcome_accuracy"] > 0.8
    # The turns at the prompt share a reply, of which one in five leads to success.
    chances = np.concatenate(labels)
    certain = np.abs(chances - 0.5) == 0.5
    assert set(chances[~certain]) == {0.2}
    floor = np.sum(~certain) * (-0.2 * np.log(0.2) - 0.8 * np.log(0.8)) / len(chances)
    assert results[-1]["score_loss"] == pytest.approx(floor, abs=0.01)
    assert results[0]["score_loss"] > floor + 0.1
    # Read as rewards: by how much a turn raises the chance of success.
    driver = driver_of(config, learner)
    (found,) = driver.score_turns(units[:1])
    (raw,) = learner.score_turns(units[:1])
    assert len(found) == len(turns_of(episodes[0]))
    assert np.cumsum(found) == pytest.approx(raw)


def test_refusals():
    with pytest.raises(ConfigError, match=r"without rollouts\.fork each turn has one"):
        scorer_config(loss="process").validate()
    with pytest.raises(ConfigError, match="scores single turns"):
        forked_config(pool="sum").validate()
    with pytest.raises(ConfigError, match="it is for scorer.loss='process'"):
        scorer_config(loss="outcome", labels="hard").validate()
    forked_config(labels="hard").validate()


def test_success_of_leaves_is_that_of_the_environment():
    episodes = leaves()
    for episode in episodes:
        episode_data(episode).success = False
    assert not process_labels(SampledEpisodes(episodes).table(), "soft").any()
