"""Pref on one agent of a team: plans (MPO), and messages of a tree (Optima, DITS)."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch

from rllib_llm import PrefConfig
from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes, episode_data, task_of
from rllib_llm.errors import ConfigError
from rllib_llm.recipes import load_recipe, search_spaces

PLANNER = "planner_0"


def mpo(**training):
    """Return the config of the preset's last stage, made small."""
    config = load_recipe("mpo").stages[-1].build_config(search_spaces.first_of)
    config.language_model(tiny={"hidden_size": 32, "intermediate_size": 64})
    config.sft(demonstrations=150, mistake_rate=1.0, lr=1e-2)
    config.rollouts(episodes_per_iteration=16, group_size=4)
    config.evaluation(evaluation_interval=None)
    config.initial_checkpoint = None
    return config.training(minibatch_size=2, lr=1e-3, **training)


def weights_of(algo, names=("planner", "executor")):
    modules = algo.learner_group._learner.module
    return {
        (m, name): p.detach().clone()
        for m in names
        for name, p in modules[m].unwrapped().lm.named_parameters()
    }


@pytest.mark.slow
@pytest.mark.ray
def test_plans_are_compared_by_the_mean_return_of_those_who_follow(ray_session):
    algo = mpo().build_algo()
    sampled = []
    sample = algo.sample_groups
    algo.sample_groups = lambda count: sampled.append(sample(count)) or sampled[-1]
    pairs = algo.collect()
    values = collections.defaultdict(dict)
    for episode in sampled[0]:
        parts = {p.agent_id: p for p in agent_episodes(episode)}
        plan = parts.pop(PLANNER)
        assert len(parts) == 4 and len(plan) == 1
        # Monte Carlo: every executor has read this plan, and plays on its own.
        texts = {str(p.get_observations(0)) for p in parts.values()}
        (line,) = str(plan.get_actions(0)).splitlines() or [""]
        assert len(texts) == 1 and (not line.strip() or line in texts.pop())
        mean = np.mean([p.get_return() for p in parts.values()])
        assert plan.get_return() == pytest.approx(mean)
        values[task_of(plan).group_id][plan.id_] = mean
    differing = [of for of in values.values() if len(set(of.values())) > 1]
    assert len(values) == 4 and len(pairs) == len(differing) > 0
    for pair in pairs:
        sides = pair.agent_episodes
        of = values[episode_data(sides["chosen"]).task.group_id]
        assert {side.module_id for side in sides.values()} == {"planner"}
        assert of[sides["chosen"].id_] == max(of.values())
        assert of[sides["rejected"].id_] == min(of.values())
        turns = [s.get_extra_model_outputs(columns.TURN) for s in sides.values()]
        assert all(len(of_side) == 1 for of_side in turns)
    algo.stop()


@pytest.mark.slow
@pytest.mark.ray
def test_the_planner_alone_learns(ray_session):
    algo = mpo().build_algo()
    before = weights_of(algo)
    result = algo.train()
    after = weights_of(algo)
    changed = {m for (m, n), p in after.items() if not torch.equal(p, before[m, n])}
    assert changed == {"planner"}
    assert result["learners"]["planner"]["num_trained_tokens"] > 0
    algo.stop()


def optima(stage, name="optima"):
    """Return the config of a stage of a preset, made small."""
    config = load_recipe(name).stages[stage].build_config(search_spaces.first_of)
    config.language_model(tiny={"hidden_size": 32, "intermediate_size": 64})
    config.sft(demonstrations=200, mistake_rate=0.6, lr=1e-2)
    config.rollouts(episodes_per_iteration=64)
    config.evaluation(evaluation_interval=None)
    config.initial_checkpoint = None
    return config.training(minibatch_size=4, lr=1e-3)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize(("stage", "agent"), [(0, "bob_0"), (1, "alice_0")])
def test_messages_at_one_place_are_compared_by_what_followed(ray_session, stage, agent):
    algo = optima(stage).build_algo()
    sampled = []
    sample = algo.sample_groups
    algo.sample_groups = lambda count: sampled.append(sample(count)) or sampled[-1]
    pairs = algo.collect()
    algo.stop()
    values, mine = collections.defaultdict(list), {}
    for episode in sampled[0]:
        parts = {p.agent_id: p for p in agent_episodes(episode)}
        if agent not in parts:
            continue  # bob did not get to answer
        part = parts[agent]
        # What all agents have said before is the same object in each fork.
        before = [p.get_extra_model_outputs(columns.TURN, 0) for p in parts.values()]
        own = part.get_extra_model_outputs(columns.TURN, 0)
        past = tuple(id(turn) for turn in before if turn.env_t < own.env_t)
        place = (task_of(part).group_id, *past)
        mine[part.id_] = (place, str(part.get_actions(0)))
        values[mine[part.id_]].append(part.get_return())
    assert any(len(returns) > 1 for returns in values.values())
    assert pairs
    for pair in pairs:
        (place, better), (other, worse) = (
            mine[pair.agent_episodes[side].id_] for side in ("chosen", "rejected")
        )
        assert place == other and better != worse
        gain = np.mean(values[place, better]) - np.mean(values[place, worse])
        assert gain > algo.config.margin
        modules = {side.module_id for side in pair.agent_episodes.values()}
        assert modules == {agent.removesuffix("_0")}


@pytest.mark.slow
@pytest.mark.ray
def test_pairs_of_a_searched_team_are_chosen_by_influence(ray_session):
    config = optima(1, "dits").training(influence={"weight": 0.5})
    algo = config.build_algo()
    before, tasks = weights_of(algo, ("alice", "bob")), []
    play, ask = algo.play_extra_tasks, algo.learner_group.foreach_shard
    probes = []

    def keep_tasks(given, explore):
        tasks.append(given)
        return play(given, explore=explore)

    def keep_probe(method, shards, **kwargs):
        probes.append((shards[0], ask(method, shards, **kwargs)[0]))
        return [probes[-1][1]]

    algo.play_extra_tasks = keep_tasks
    algo.learner_group.foreach_shard = keep_probe
    pairs = algo.collect()
    # Measured on the compared agent's turns, with episodes that do not fork.
    (((asked, validation), found),) = probes
    assert len(asked) == len(found) >= len(pairs) > 0 and np.any(np.array(found) != 0)
    assert {part.agent_id for part in validation} == {"alice_0"}
    assert len(validation) == len(tasks[0]) == 8 * config.group_size
    assert not any(episode_data(part).is_fork for part in validation)
    kept = {pair.id_ for pair in pairs}
    best = asked[int(np.argmax(found))]
    assert best.id_ in kept
    assert all(
        torch.equal(before[key], p)
        for key, p in weights_of(algo, ("alice", "bob")).items()
    )
    result = algo.train()
    assert result["influence"]["num_tokens"] > 0
    assert 0 <= result["influence"]["kept_frac"] <= 1
    after = weights_of(algo, ("alice", "bob"))
    changed = {m for (m, n), p in after.items() if not torch.equal(p, before[m, n])}
    assert changed == {"alice"}
    algo.stop()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.training(compared_agent=None), "Set compared_agent"),
        (lambda c: c.training(compared_agent="planner"), "Did you mean 'planner_0'"),
        (lambda c: c.training(compared_agent="executor_0"), r"to \[executor\]"),
        (lambda c: c.training(expert_episodes=True), "plays one agent"),
        (lambda c: c.training(match="step"), "fork=None"),
        (
            lambda c: (
                PrefConfig()
                .environment("frozen_lake-v0")
                .training(compared_agent="a_0")
            ),
            "has one agent",
        ),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        change(mpo()).validate()
