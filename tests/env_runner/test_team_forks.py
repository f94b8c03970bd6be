"""Episodes of several agents that begin at places of others (rollouts(fork=...))."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from team_helpers import Pair, PairTogether, Quiet, Run, random_script, team_config

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.advantages.fork_trees import nodes_of
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.types import Task
from rllib_llm.envs import MultiAgentAdapter
from rllib_llm.envs.go_to import snapshot_of
from rllib_llm.errors import ConfigError, EnvContractError

TREE = {"name": "every_turn", "first": 1}


class Diaries(Pair):
    """Ann and Ben write in turn; each reads a random number and all that was said."""

    def prompt_for(self, agent):
        return f"{agent}, {int(self.np_random.integers(1000))}: {len(self.texts)}."

    def apply(self, agent, action):
        outcome = super().apply(agent, action)
        outcome.rewards = {**outcome.rewards, "ann_0": 0.1 * len("".join(self.texts))}
        return outcome


class DiariesTogether(PairTogether):
    """Both write at once, four times."""

    prompt_for = Diaries.prompt_for

    def start(self, rng, rounds: int = 4):
        super().start(rng, rounds)


class Restless(Quiet):
    """Says something else each time that it is reset."""

    resets = 0

    def reset(self, seed=None, options=None):
        Restless.resets += 1
        return super().reset(seed, options)

    def _tell(self):
        observed = super()._tell()
        return {**observed, "ann_0": f"{observed['ann_0']} {Restless.resets}"}


def runner_of(env, fork=TREE, size=8, config_class=GRPOConfig, **sections):
    rollouts = {"group_size": size, "episodes_per_iteration": size, "fork": fork}
    config = team_config(env, config_class, rollouts=rollouts, **sections)
    return Run(config, learner=False)


def group(size=8, number=0):
    return [Task(number, rollout, 5 + number) for rollout in range(size)]


@pytest.fixture(scope="module", params=[Diaries, DiariesTogether, Quiet])
def leaves(request):
    run = runner_of(request.param)
    return request.param, run.runner.sample(tasks=group())


def parts(episode):
    return [episode.agent_episodes[agent] for agent in ("ann_0", "ben_0")]


def turns(part):
    return list(part.get_extra_model_outputs(columns.TURN)) if len(part) else []


def texts(episode):
    """Return all that was said, received and sampled in an episode."""
    return [
        (
            list(part.get_observations()),
            list(part.get_actions()) if len(part) else [],
            [round(float(r), 9) for r in part.get_rewards()] if len(part) else [],
            [turn.env_t for turn in turns(part)],
        )
        for part in parts(episode)
    ]


def test_a_group_becomes_a_tree_of_joint_steps(leaves):
    _, episodes = leaves
    data = [episode_data(episode) for episode in episodes]
    assert [each.is_fork for each in data] == [False] + 7 * [True]
    assert len({repr(texts(episode)) for episode in episodes}) == 8
    for one, other in itertools.combinations(episodes, 2):
        paths = [episode_data(each).path for each in (one, other)]
        common = next(
            (max(a.turn, b.turn) for a, b in zip(*paths, strict=False) if a != b),
            max(path[-1].turn for path in paths),
        )
        for left, right in zip(parts(one), parts(other), strict=True):
            for ours, theirs in zip(turns(left), turns(right), strict=False):
                assert (ours is theirs) <= (ours.env_t < common)


def test_all_agents_turns_before_a_fork_are_those_of_its_parent(leaves):
    _, episodes = leaves
    shared = 0
    for episode in episodes:
        data = episode_data(episode)
        for branch, following in itertools.pairwise(data.path):
            parent = episodes[branch.rollout]
            for mine, theirs in zip(parts(episode), parts(parent), strict=True):
                before = [t for t in turns(mine) if t.env_t < following.turn]
                assert all(a is b for a, b in zip(before, turns(theirs), strict=False))
                shared += len(before)
        inherited = [
            sum(len(t.action_ids) for t in turns(p) if t.env_t < data.fork_turn)
            for p in parts(episode)
        ]
        assert data.inherited_tokens == sum(inherited)
        assert [episode_data(p).inherited_tokens for p in parts(episode)] == inherited
        assert all(episode_data(p).path == data.path for p in parts(episode))
    assert shared > 10


def test_the_environment_goes_on_from_the_place(leaves):
    env, episodes = leaves
    for episode in episodes:
        adapter = MultiAgentAdapter(env({}))
        reply, observed, number = adapter.reset(seed=5, options={}), [], [0, 0]
        while not reply.is_over:
            actions = {}
            for agent, text in reply.observations.items():
                index = ("ann_0", "ben_0").index(agent)
                part = episode.agent_episodes[agent]
                observed.append(part.get_observations(number[index]) == text)
                actions[agent] = str(part.get_actions(number[index]))
                number[index] += 1
            reply = adapter.step(actions)
        assert all(observed) and number == [len(part) for part in parts(episode)]


def test_conversations_go_on_from_the_place(leaves):
    for episode in leaves[1]:
        for part in parts(episode):
            data, ids = episode_data(part), []
            for turn in turns(part):
                ids += [*turn.prompt_ids, *turn.action_ids]
            assert data.ids == ids
            roles = [message["role"] for message in data.messages]
            assert roles[: 2 * len(part)] == ["user", "assistant"] * len(part)


def test_a_tree_does_not_depend_on_slots_or_other_groups(leaves):
    env, episodes = leaves
    single = runner_of(env, slots=1)
    both = single.runner.sample(tasks=[*group(number=1), *group()])
    assert [texts(e) for e in both[8:]] == [texts(e) for e in episodes]
    assert texts(both[0]) != texts(both[8])


def test_snapshots_and_replays_come_to_the_same_place(monkeypatch, leaves):
    env, episodes = leaves
    copied = []

    def none_of(env):
        copied.append(snapshot_of(env))

    monkeypatch.setattr("rllib_llm.envs.go_to.snapshot_of", none_of)
    again = runner_of(env).runner.sample(tasks=group())
    assert [texts(e) for e in again] == [texts(e) for e in episodes]
    # A plain ParallelEnv cannot be copied, so its texts were played again before, too.
    assert copied and all((state is None) == (env is Quiet) for state in copied)


def test_environments_that_do_not_repeat_themselves_are_refused():
    with pytest.raises(EnvContractError, match=r"Restless, seed 5: after turn 0"):
        runner_of(Restless).runner.sample(tasks=group())


def test_turns_at_one_place_follow_the_same_turns_of_all_agents(leaves):
    _, episodes = leaves
    table = SampledEpisodes(episodes).table()
    nodes = nodes_of(table)
    past = {}
    for number, place in enumerate(nodes.places[nodes.of_turn]):
        one = table.trajectories[table.owner[number]]
        step = one.steps[table.turn[number]]
        before = [
            (turn.env_t, part.agent_id, id(turn))
            for part in parts(episodes[one.episode])
            for turn in turns(part)
            if turn.env_t < step
        ]
        past.setdefault(int(place), set()).add((one.agent_id, step, repr(before)))
    assert all(len(each) == 1 for each in past.values())
    # Different pasts are different places.
    assert len({min(each) for each in past.values()}) == len(past)
    assert (np.bincount(nodes.places) > 1).sum() >= 3


class BenAlone:
    """Forks where Ben acts."""

    roots = 2

    def __call__(self, point):
        assert point.agents in (("ann_0",), ("ben_0",))
        return 1 if point.agents == ("ben_0",) else 0


def test_a_rule_knows_who_acts():
    episodes = runner_of(Diaries, fork=BenAlone).runner.sample(tasks=group())
    data = [episode_data(episode) for episode in episodes]
    assert {each.fork_turn % 2 for each in data if each.is_fork} == {1}


def test_scripts_take_part():
    policies = {"a": None, "b": {"scripted_policy": random_script}}
    run = runner_of(Diaries, policies=policies, train=["a"])
    episodes = run.runner.sample(tasks=group())
    assert sum(episode_data(episode).is_fork for episode in episodes) == 7
    replies = {tuple(e.agent_episodes["ben_0"].get_actions()) for e in episodes}
    assert len(replies) > 1


def by_rollout(agent_id, episode, **kwargs):
    task = episode_data(episode).task
    return "ab"[(agent_id == "ben_0") ^ (task.rollout % 2)]


def test_agents_keep_their_policies():
    run = runner_of(Diaries, mapping=by_rollout)
    with pytest.raises(ConfigError, match="maps 'ann_0' to 'b' in a fork, and to 'a'"):
        run.runner.sample(tasks=group())


def test_forks_at_the_turns_of_one_agent():
    fork = {"name": "every_turn", "agents": ["ben_0"]}
    episodes = runner_of(Diaries, fork=fork).runner.sample(tasks=group())
    data = [episode_data(episode) for episode in episodes]
    assert {each.fork_turn for each in data if each.is_fork} == {1, 3}


class Unkept(Diaries):
    """Holds what cannot be copied."""

    def start(self, rng, rounds: int = 2):
        super().start(rng, rounds)
        self.lock = lambda: None


def test_a_state_that_cannot_be_copied_is_played_again():
    adapter = MultiAgentAdapter(Unkept({}))
    adapter.reset(seed=5, options={})
    assert snapshot_of(adapter) is None
    with pytest.raises(EnvContractError, match="Unkept.* cannot be copied"):
        adapter.snapshot()
    episodes = runner_of(Unkept).runner.sample(tasks=group())
    assert sum(episode_data(episode).is_fork for episode in episodes) == 7


def test_a_snapshot_is_a_state_to_return_to():
    adapter = MultiAgentAdapter(Diaries({}))
    first = adapter.reset(seed=5, options={})
    (agent,) = first.observations
    state = adapter.snapshot()
    one = adapter.step({agent: "a word"})
    other = MultiAgentAdapter(Diaries({}))
    for each in (adapter, other):
        each.restore(state)
        assert each.step({agent: "a word"}) == one
        assert each.step(dict.fromkeys(one.observations, "x")).observations


@pytest.mark.parametrize("config_class", [GRPOConfig, LLMPPOConfig])
def test_leaves_are_trained(config_class):
    rollouts = {"group_size": 8, "episodes_per_iteration": 8, "fork": TREE}
    run = Run(team_config(Diaries, config_class, rollouts=rollouts))
    episodes = run.runner.sample(tasks=group())
    before = run.weights("a")
    result = run.update(episodes)
    for module in ("a", "b"):
        assert np.isfinite(result[module]["policy_loss"].peek())
    assert any((before[n] != w).any() for n, w in run.weights("a").items())
