"""Tree search over the messages of several agents (fork mcts)."""

from __future__ import annotations

import math

import pytest
from team_helpers import Pair, PairTogether, random_script
from test_team_forks import group, parts, runner_of, texts, turns

from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.places import Branch
from rllib_llm.env_runner.episode_tree import MAX_REVISITS
from rllib_llm.envs.multi_agent_env import Outcome

WIDTH, C, SIZE = 2, 0.7, 12
TREE = {"name": "mcts", "width": WIDTH, "exploration": C}


class Parities(Pair):
    """Each says one of two things, by the parity of the text; all hear all of them."""

    def prompt_for(self, agent):
        return f"{agent} {self.number}: {self.texts}"

    def parse(self, agent, text):
        return str(len(text) % 2)

    def apply(self, agent, action):
        self.texts.append(action)
        over = len(self.texts) == 4
        # Also to the agent that did not act.
        pay = {"ann_0": 0.25 * int(action), "ben_0": 0.5 * (action == self.texts[0])}
        return Outcome(pay, terminated=over, success=over or None)


class ParitiesTogether(PairTogether):
    """Both at once, twice."""

    prompt_for, parse = Parities.prompt_for, Parities.parse

    def end_round(self):
        over = len(self.texts) == 4
        first, second = self.texts[-2:]
        pay = {"ann_0": 0.25 * int(first), "ben_0": 0.5 * (first == second)}
        return Outcome(pay, terminated=over)


ENVS = (Parities, ParitiesTogether)


@pytest.fixture(scope="module", params=ENVS)
def leaves(request):
    return request.param, runner_of(request.param, TREE, SIZE).runner.sample(
        tasks=group(SIZE)
    )


def steps(env, episode):
    """Return the action of each step of the environment, by its rules, and its pay."""
    acted = sorted(
        (turn.env_t, agent, str(len(str(action)) % 2))
        for agent, part in zip(("ann_0", "ben_0"), parts(episode), strict=True)
        for turn, action in zip(turns(part), part.get_actions(), strict=True)
    )
    number = acted[-1][0] + 1
    actions = [tuple(each[1:] for each in acted if each[0] == t) for t in range(number)]
    pay = []
    for action in actions:
        flat = [text for _, text in action]
        to_ben = (acted[0][2] if env is Parities else flat[1]) == flat[0]
        pay.append(0.25 * int(flat[0]) + 0.5 * to_ben)
    return actions, pay


def slow_places(env, episodes):
    """Return where each episode should begin: counts over lists of simulations."""
    simulations, sampled, begun = [], [], []  # (actions, pay); histories with a sample

    def through(history):
        n = len(history)
        return [(a, pay[n - 1 :]) for a, pay in simulations if a[:n] == history]

    def selected():
        history = []
        while sampled.count(history) >= WIDTH:
            tried = []
            for actions, _ in simulations:
                if actions[: len(history)] == history and len(actions) > len(history):
                    child = actions[: len(history) + 1]
                    tried += [] if child in tried else [child]
            total = sum(len(through(child)) for child in tried)

            def score(child, total=total):
                each = through(child)
                value = sum(sum(pay) for _, pay in each) / len(each)
                return value + C * math.sqrt(math.log(total) / (1 + len(each)))

            history = max(tried, key=score)
            ended = [s for s in simulations if s[0] == history]
            if ended:
                return history, ended[0]
        return history, None

    for episode in episodes:
        history, ended = selected()
        revisits = 0
        while ended is not None and revisits < MAX_REVISITS:
            simulations.append(ended)
            revisits += 1
            history, ended = selected()
        if ended is not None:
            history = []
        begun.append(history)
        actions, pay = steps(env, episode)
        assert actions[: len(history)] == history
        sampled += [actions[:t] for t in range(len(history), len(actions))]
        simulations.append((actions, pay))
    return begun


def test_places_are_those_of_a_slow_search(leaves):
    env, episodes = leaves
    data = [episode_data(episode) for episode in episodes]
    expected = slow_places(env, episodes)
    assert [each.fork_turn for each in data] == [len(history) for history in expected]
    found = {each.fork_turn for each in data}
    assert {0, 1} <= found
    assert env is ParitiesTogether or max(found) > 1  # four steps, not two
    for episode, own in zip(episodes, data, strict=True):
        # The pay is also that of the record: no agent's reward is lost.
        total = sum(sum(part.get_rewards()) for part in parts(episode))
        assert total == pytest.approx(sum(steps(env, episode)[1]))
        if own.is_fork:
            parent = episodes[own.path[-2].rollout]
            for mine, theirs in zip(parts(episode), parts(parent), strict=True):
                for a, b in zip(turns(mine), turns(theirs), strict=True):
                    assert a is b or a.env_t >= own.fork_turn


def test_neither_slots_nor_other_groups_change_a_tree(leaves):
    env, episodes = leaves
    run = runner_of(env, TREE, SIZE, slots=1)
    again = run.runner.sample(tasks=[*group(SIZE, 1), *group(SIZE)])[SIZE:]
    assert [texts(e) for e in again] == [texts(e) for e in episodes]


def test_a_script_takes_part_in_the_tree():
    policies = {"a": None, "b": {"scripted_policy": random_script}}
    run = runner_of(Parities, TREE, policies=policies, train=["a"])
    episodes = run.runner.sample(tasks=group())
    assert any(episode_data(episode).is_fork for episode in episodes)


def test_greedy_episodes_are_not_searched():
    run = runner_of(Parities, TREE)
    for episode in run.runner.sample(tasks=group(), explore=False):
        data = episode_data(episode)
        assert data.path == (Branch(0, data.task.rollout),)
