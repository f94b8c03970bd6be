"""Pref with match="step": replies at one place of forked episodes."""

from __future__ import annotations

import pytest
from component_helpers import trajectory
from learner_helpers import fake_episode, gradients, make_config, make_learner
from test_fork_training import leaves
from test_pref import log_sums, shifted

from rllib_llm import PrefConfig
from rllib_llm.algorithms.pref.pairs import (
    PreferencePair,
    step_pairs,
    step_pairs_of_episodes,
)
from rllib_llm.algorithms.pref.pref import Pref
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.places import Branch
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.errors import ConfigError

# Of each leaf: where it begins, its replies, its return.
LEAVES = [
    ([(0, 0)], ["a", "b", "c"], 1.0),
    ([(0, 0), (1, 1)], ["a", "d", "e"], 0.0),
    ([(0, 0), (1, 2)], ["a", "b", "f"], 0.5),  # says what leaf 0 says, anew
    ([(0, 0), (1, 1), (2, 3)], ["a", "d", "g"], 0.4),
    ([(0, 4)], ["h", "b", "c"], 0.1),
]


def table(rows=LEAVES, **trained):
    return TurnTable(
        trajectory(
            rollout=number,
            rewards=[0, 0, value],
            completions=replies,
            path=tuple(Branch(*b) for b in path),
            is_trained=trained.get(f"leaf_{number}", True),
        )
        for number, (path, replies, value) in enumerate(rows)
    )


def test_replies_at_a_place_are_compared_by_the_mean_return_after_them():
    # Prompt: a (mean of 1, 0, .5, .4) with h (.1). After a: b (mean of 1, .5) with d
    # (mean of 0, .4). After d: g (.4) with e (0). c and f were said at two places.
    assert step_pairs(table()) == [(0, 1, 1), (3, 1, 2), (0, 4, 0)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"margin": 0.375}, [(0, 1, 1), (3, 1, 2)]),
        ({"margin": 0.4}, [(0, 1, 1)]),
        ({"margin": 0.55}, []),
        ({"max_pairs_per_task": 2}, [(0, 1, 1), (3, 1, 2)]),
    ],
)
def test_margins_and_limits(settings, expected):
    assert step_pairs(table(), **settings) == expected


def test_an_episode_that_is_not_trained_lends_its_return_only():
    assert step_pairs(table(leaf_0=False), margin=0.5) == [(2, 1, 1)]


def test_without_forks_only_first_replies_are_compared():
    rows = [([(0, 0)], ["a", "b", "c"], 1.0), ([(0, 1)], ["h", "b", "d"], 0.0)]
    assert step_pairs(table(rows)) == [(0, 1, 0)]
    assert step_pairs(TurnTable([])) == []


def test_equal_replies_are_no_pair():
    rows = [([(0, 0)], ["a", "b", "c"], 1.0), ([(0, 1)], ["a", "b", "d"], 0.0)]
    assert step_pairs(table(rows)) == []


def test_only_the_turn_after_the_place_is_trained():
    learner = shifted(make_learner(make_config(PrefConfig)))
    chosen, rejected = fake_episode(1), fake_episode(2, turns=4)
    pair = PreferencePair(chosen, rejected, turn=1)
    sides = pair.agent_episodes.values()
    assert [set(episode_data(s).masked_turns) for s in sides] == [{0, 2}, {0, 2, 3}]
    (_, _, kept), (_, _, other) = log_sums(learner, pair, 1.0)
    sizes = [
        len(e.get_extra_model_outputs("turn", 1).action_ids) for e in (chosen, rejected)
    ]
    assert [kept, other] == sizes
    whole = gradients(learner, [PreferencePair(chosen, rejected)])
    step = gradients(learner, [pair])
    assert max(float((whole[n] - g).abs().max()) for n, g in step.items()) > 1e-3
    assert max(float(g.abs().max()) for g in step.values()) > 1e-3


def forked(margin=0.0, **settings):
    """Return what Pref compares of five leaves whose replies all differ."""
    episodes = leaves()
    for number, episode in enumerate(episodes):
        own = episode_data(episode).path[-1].turn
        for turn in range(own, 3):
            episode.actions.data[turn] = f"{number}, turn {turn}"
    for child, parent in ((1, 0), (2, 1), (3, 0)):
        first = episode_data(episodes[child]).path[-1].turn
        for turn in range(first):
            episodes[child].actions.data[turn] = episodes[parent].actions.data[turn]
    driver = Pref.__new__(Pref)
    driver.config = step(margin=margin, **settings)
    driver.sample_groups, driver.process_episodes = lambda count: episodes, list
    return driver._sampled(), episodes


def test_the_driver_compares_steps_of_sampled_trees():
    pairs, episodes = forked()
    ids = [episode.id_ for episode in episodes]
    found = [
        (
            *(ids.index(side.id_) for side in pair.agent_episodes.values()),
            *(
                {0, 1, 2}
                - set(episode_data(pair.agent_episodes["chosen"]).masked_turns)
            ),
        )
        for pair in pairs
    ]
    # Returns 1, 0, 3, .5, -1; leaf 1 forks 0 at turn 1, 2 forks 1 and 3 forks 0 at 2.
    assert found == [(2, 1, 2), (0, 4, 0), (1, 0, 1), (0, 3, 2)]
    assert len(forked(margin=0.6)[0]) == 3
    assert [p.id_ for p in step_pairs_of_episodes(episodes)] == [p.id_ for p in pairs]


def step(**training):
    config = make_config(PrefConfig).rollouts(
        fork="every_turn", group_size=8, episodes_per_iteration=8
    )
    return config.training(**{"match": "step", **training})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: step().rollouts(fork=None), "match='step'.*fork=None. Set rollouts"),
        (lambda: step(after_fork=True), "after_fork=True would have no effect"),
        (lambda: step(expert_episodes=True), "expert_episodes=True.*begins at the pro"),
        (lambda: step(match="steps"), "match='steps'"),
    ],
)
def test_what_steps_refuse(config, message):
    with pytest.raises(ConfigError, match=message):
        config().validate()
    step().validate()


# A judge of turns ---------------------------------------------------------------------


def judged(answers, **settings):
    judged_table = table()
    for trajectory_, values in zip(judged_table.trajectories, answers, strict=True):
        trajectory_.answers["judge"] = values
    return step_pairs(judged_table, judge="judge", **settings)


def test_a_judge_adds_its_share_to_the_values_of_replies():
    # After a: b has 0.75 by returns and d 0.2; the judge says 0 and 1.
    answers = [[0.5, 0.0, 0.5], [0.5, 1.0, 0.5], [0.5, 0.0, 0.5], [0.5, 1.0, 0.5]]
    answers.append([0.5, 0.5, 0.5])
    assert (0, 1, 1) in judged(answers, judge_weight=0.0)
    assert (0, 1, 1) in judged(answers, judge_weight=0.35)  # 0.4875, 0.48
    assert (1, 0, 1) in judged(answers, judge_weight=0.36)  # 0.48, 0.488
    assert (1, 0, 1) in judged(answers, judge_weight=1.0)
    # Answers about one reply in several leaves are averaged.
    answers[0][1], answers[2][1] = 1.0, 0.5
    assert (0, 1, 1) not in judged(answers, judge_weight=1.0)
    assert (1, 0, 1) in judged(answers, judge_weight=1.0)


JUDGE = {
    "script": {"name": "outcome"},
    "privileged": True,
    "per": "turn",
    "parse": {"words": {"yes": 1.0, "no": 0.0}},
}


@pytest.mark.parametrize(
    ("training", "judge", "expected"),
    [
        ({"step_judge": "judge"}, {"per": "trajectory"}, "compares turns"),
        ({"step_judge": "other"}, {}, "other"),
        ({"judge_weight": 0.1}, {}, "never asked|there is no judge"),
        ({"step_judge": "judge", "match": "all"}, {}, "reads no values of turns"),
    ],
)
def test_judges_that_do_not_fit(training, judge, expected):
    config = PrefConfig().environment("guess_number-v0")
    config.rollouts(fork="every_turn", group_size=4)
    config.rollouts(assistants={"judge": {**JUDGE, **judge}})
    with pytest.raises(ConfigError, match=expected):
        config.training(**{"match": "step", **training}).validate()
