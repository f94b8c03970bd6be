"""Pref's choice of pairs by their influence on the return of validation tasks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learner_helpers import fake_episode, gradients, make_config, make_learner, weights
from setting_pairs import Probed, influence_driver
from side_by_side import call_side_by_side
from test_pref import shifted
from test_pref_steps import step

from rllib_llm import PrefConfig
from rllib_llm.algorithms.pref.influence_probe import ask_learners, validation_tasks
from rllib_llm.algorithms.pref.pairs import PreferencePair
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.types import Task
from rllib_llm.env_runner.task_queue import TaskQueue
from rllib_llm.errors import ConfigError, RLlibLLMError

STEP = 1e-3


def advised(seed, advantage, **kwargs):
    """Return an episode with an advantage, as validation has it."""
    episode = fake_episode(seed, **kwargs)
    episode_data(episode).advantage = advantage
    return episode


def learner_of(**settings):
    return shifted(make_learner(make_config(PrefConfig, **settings)))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"nll_weight": 0.5, "turn_discount": 0.5},
        {"reference": "current"},
        {"preference_loss": "simpo"},
        {"micro_batch_tokens": 40, "packing": True},
    ],
)
def test_influence_is_the_product_of_both_gradients(settings):
    learner = learner_of(**settings)
    sides = [fake_episode(i, turns=1 + i % 3) for i in range(8)]
    pairs = [PreferencePair(*sides[i : i + 2]) for i in range(0, 8, 2)]
    pairs.append(PreferencePair(fake_episode(20), fake_episode(21), turn=1))
    validation = [advised(i, a) for i, a in ((1, 0.7), (20, -0.5), (9, 1.0), (3, -1.2))]
    found = learner.pair_influences((pairs, validation), STEP)
    # The return's gradient by its definition, one episode at a time, with autograd.
    module = learner.module["default_policy"].unwrapped()
    of_return = {n: torch.zeros_like(p) for n, p in module.named_parameters()}
    for episode in validation:
        ids, is_action = [], []
        for turn in episode.get_extra_model_outputs(columns.TURN):
            ids += [*turn.prompt_ids.tolist(), *turn.action_ids.tolist()]
            is_action += [False] * len(turn.prompt_ids) + [True] * len(turn.action_ids)
        logps = module.lm(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        chosen = [logps[t - 1, ids[t]] for t in range(len(ids)) if is_action[t]]
        total = episode_data(episode).advantage * torch.stack(chosen).sum()
        parts = torch.autograd.grad(total, list(module.lm.parameters()))
        for (name, _), g in zip(module.lm.named_parameters(), parts, strict=True):
            of_return[f"lm.{name}"] += g
    norm = torch.sqrt(sum(g.double().square().sum() for g in of_return.values()))
    for pair, influence in zip(pairs, found, strict=True):
        of_loss = gradients(learner, [pair])
        expected = -sum(
            (of_return[n].double() * g.double()).sum() for n, g in of_loss.items()
        )
        # Float32 losses over a step of 0.001: three digits.
        assert influence == pytest.approx(float(expected / norm), rel=0.03, abs=2e-3)
    assert max(found) > 0.01 and min(found) < 0


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_weights_and_gradients_are_what_they_were(lora):
    config = make_config(PrefConfig)
    if lora is not None:
        config.language_model(lora=lora)
    learner = make_learner(config)
    before, moments = weights(learner), learner.get_state(components="optimizer")
    pair = PreferencePair(fake_episode(0), fake_episode(1))
    (found,) = learner.pair_influences(([pair], [advised(0, 1.0)]), 0.1)
    assert abs(found) > 1e-4
    after = weights(learner)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(p.grad is None for p in learner.module["default_policy"].parameters())
    assert str(moments) == str(learner.get_state(components="optimizer"))
    assert not learner._stats


def test_learners_add_their_validation_up(monkeypatch):
    """Also one without pairs, and one without validation episodes."""
    sides = [fake_episode(i, turns=1 + i % 3) for i in range(4)]
    pairs = [PreferencePair(*sides[i : i + 2]) for i in (0, 2)]
    validation = [advised(i, a) for i, a in ((1, 0.7), (9, -0.5), (3, -1.2))]
    expected = learner_of().pair_influences((pairs, validation), STEP)
    learners = [learner_of() for _ in range(3)]
    shards = [(pairs[:1], validation[:2]), ([], validation[2:]), (pairs[1:], [])]
    found = {}

    def ask(learner, shard):
        found[id(shard)] = learner.pair_influences(shard, STEP)

    call_side_by_side(learners, shards, ask, monkeypatch)
    together = [each for shard in shards for each in found[id(shard)]]
    assert together == pytest.approx(expected, abs=1e-3)


def test_without_validation_there_is_no_direction():
    learner = learner_of()
    pair = PreferencePair(fake_episode(0), fake_episode(1))
    assert learner.pair_influences(([pair], []), STEP) == [0.0]
    assert learner.pair_influences(([pair], [advised(3, 0.0)]), STEP) == [0.0]
    assert learner.pair_influences(([], [advised(3, 1.0)]), STEP) == []


def test_a_gradient_that_is_not_finite_ends_the_run():
    learner = learner_of()
    pair = PreferencePair(fake_episode(0), fake_episode(1))
    before = weights(learner)
    with pytest.raises(RLlibLLMError, match="Influence of pairs: .* norm"):
        learner.pair_influences(([pair], [advised(3, float("inf"))]), STEP)
    assert all(torch.equal(before[n], p) for n, p in weights(learner).items())


# The driver ---------------------------------------------------------------------------


class OneLearner:
    """A group of one Learner in this process."""

    def __init__(self, learner):
        self.learner = learner

    def __len__(self):
        return 0

    def foreach_shard(self, method, shards, **kwargs):
        return [getattr(self.learner, method)(shard, **kwargs) for shard in shards]


def forked_roots(rewards=(1.0, 0.0, 0.9, 0.0)):
    """Two tasks, with a better and a worse reply to each prompt."""
    episodes = [
        fake_episode(i, turns=1, reward=r, group=i // 2) for i, r in enumerate(rewards)
    ]
    for number, episode in enumerate(episodes):
        episode.set_actions(new_data=[f"reply {number}"])
    return episodes


def driver_of(learners, sampled, played=(), **influence):
    config = make_config(PrefConfig).training(match="step", influence=influence)
    config.rollouts(group_size=2, episodes_per_iteration=4)
    return influence_driver(config, SampledEpisodes(sampled), learners, played)


def test_a_pair_with_the_validation_gradient_is_kept_and_one_against_it_dropped():
    learner = learner_of()
    sampled = forked_roots()
    # On validation the reply that is better in task 0 is good, too; that of task 1 is
    # bad, though its sampled return is high.
    played = [
        fake_episode(0, turns=1, reward=1.0),
        fake_episode(1, turns=1, reward=0.0),
        fake_episode(2, turns=1, reward=0.0),
        fake_episode(3, turns=1, reward=1.0),
    ]
    driver = driver_of(
        OneLearner(learner), sampled, played, weight=2.0, validation_tasks=2
    )
    before = weights(learner)
    (pair,) = driver._sampled()
    assert pair.agent_episodes["chosen"].id_ == sampled[0].id_
    assert driver.metrics["influence", "negative_frac"] == 0.5
    assert driver.metrics["influence", "kept_frac"] == 0.5
    tokens = [
        len(t.action_ids) for e in played for t in e.get_extra_model_outputs("turn")
    ]
    assert driver.metrics["influence", "num_tokens"] == sum(tokens)
    assert all(torch.equal(before[n], p) for n, p in weights(learner).items())
    # With the signs of the validation returns exchanged, so are the pairs.
    for episode, reward in zip(played, (0.0, 1.0, 1.0, 0.0), strict=True):
        episode.set_rewards(new_data=[reward])
    (pair,) = driver._sampled()
    assert pair.agent_episodes["chosen"].id_ == sampled[2].id_


def test_validation_returns_are_centred_by_task():
    rewards = (1.0, 0.0, 5.0, 6.0)
    played = [fake_episode(i, turns=1, reward=r) for i, r in enumerate(rewards)]
    learners = Probed(1.0, 1.0)
    driver = driver_of(learners, forked_roots(), played, validation_tasks=2)
    driver._sampled()
    ((method, pairs, validation, given),) = learners.asked
    assert method == "pair_influences" and given == {"step_size": 0.01}
    advantages = [episode_data(e).advantage for e in validation]
    assert len(pairs) == 2 and advantages == [0.5, -0.5, -0.5, 0.5]
    tasks = driver.asked_tasks
    assert [t.group_id for t in tasks] == [0, 1, 2, 3]
    assert len({t.seed for t in tasks}) == 2 and tasks[0].seed == tasks[1].seed
    assert all(task.options["split"] == "train" for task in tasks)
    # The next iteration has other tasks.
    driver._sampled()
    assert {t.seed for t in driver.asked_tasks}.isdisjoint(t.seed for t in tasks)


def test_the_best_pairs_of_a_task_are_those_of_the_highest_score():
    episodes = forked_roots((1.0, 0.0, 0.8, 0.1))
    for number, episode in enumerate(episodes):
        episode_data(episode).task = Task(0, number, 0)
    # Of one place: the best with the worst, the second best with the second worst.
    for weight, expected in ((0.1, 0), (2.0, 2)):
        driver = driver_of(Probed(0.1, 1.0), episodes, weight=weight)
        driver.config.training(max_pairs_per_task=1)
        (pair,) = driver._sampled()
        assert pair.agent_episodes["chosen"].id_ == episodes[expected].id_


def test_without_pairs_nothing_is_played():
    driver = driver_of(None, forked_roots((1.0, 1.0, 0.0, 0.0)), None)
    driver.play_extra_tasks = None
    assert driver._sampled() == []


def test_each_learner_has_a_part_of_pairs_and_validation():
    class Three:
        def __len__(self):
            return 3

        def foreach_shard(self, method, shards, *, step_size):
            self.validation = [episodes for _, episodes in shards]
            return [[10.0 * pair for pair in pairs] for pairs, _ in shards]

    learners = Three()
    found = ask_learners(learners, list(range(7)), range(4), 0.1)
    np.testing.assert_array_equal(found, 10.0 * np.arange(7))
    assert learners.validation == [[0, 3], [1], [2]]


def test_validation_episodes_do_not_fork():
    tasks = [Task(group, rollout, group) for group in (7, 8) for rollout in range(3)]
    alone = validation_tasks(tasks)
    assert TaskQueue(alone, roots=1).num_waiting == 6
    assert TaskQueue(tasks, roots=1).num_waiting == 2
    assert [task.rollout for task in alone] == [0, 1, 2] * 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda c: c.training(match="all"), "influence=.* would have no effect: match"),
        (lambda c: c.learners(num_learners=2, sharding="fsdp2"), "moves whole"),
        (lambda c: c.language_model(dtype="bfloat16"), "dtype='bfloat16' would round"),
        (lambda c: c.language_model(autocast="bfloat16"), "autocast='bfloat16' would"),
        (lambda c: c.training(influence={"weight": 0.0}), "weight"),
        (lambda c: c.training(influence={"tasks": 3}), "tasks"),
        (
            lambda c: c.training(influence={"validation_tasks": 0}),
            "validation_tasks",
        ),
    ],
)
def test_what_is_refused(config, message):
    given = step(influence={})
    given.validate()
    with pytest.raises(ConfigError, match=message):
        config(given).validate()
