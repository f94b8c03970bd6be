"""Matches between policies, scripts and people."""

import pytest
from team_helpers import Pair, PairTogether, Run, single_config, team_config

from rllib_llm import LLMPolicy
from rllib_llm.errors import EnvContractError
from rllib_llm.evaluation.outcomes import play_tasks
from rllib_llm.inference.match import Match, assign_agents


def never(game, agent):
    raise AssertionError("no person plays")


def finish(match):
    while not match.is_over:
        match.step()
    returns = dict(match.game.returns)
    match.close()
    return returns


@pytest.fixture(scope="module")
def team():
    return LLMPolicy(Run(team_config(Pair), learner=False).runner)


@pytest.fixture(scope="module")
def alone():
    return LLMPolicy(Run(single_config(), learner=False).runner)


@pytest.mark.parametrize("greedy", [True, False])
def test_policies_play_as_in_evaluation(team, alone, greedy):
    for policy in (team, alone):
        tasks = policy.held_out_tasks(4)
        expected = play_tasks(None, tasks, greedy=greedy, runner=policy.runner)
        agents = assign_agents(policy.agents or ["default_agent"], {}, policy)
        for task, outcome in zip(tasks, expected):
            match = Match(
                policy.make_env, task, agents, ask=never, policy=policy, greedy=greedy
            )
            returns = finish(match)
            assert sum(returns.values()) == pytest.approx(outcome.episode_return)
            assert match.game.turn == outcome.turns


@pytest.mark.parametrize("env, steps", [(Pair, 2), (PairTogether, 1)])
def test_an_undone_move_has_no_effect(env, steps):
    policy = LLMPolicy(Run(team_config(env), learner=False).runner)
    (task,) = policy.held_out_tasks(1)
    agents = assign_agents(policy.agents, {"ben": "person"}, policy)
    asked = []

    def play(answers, undo_after=None):
        rest = iter(answers)

        def ask(game, agent):
            asked.append((agent, game.observations[agent]))
            return next(rest)

        match = Match(policy.make_env, task, agents, ask=ask, policy=policy)
        count = 0
        while not match.is_over:
            match.step()
            count += 1
            if count == undo_after:
                assert match.undo()
        moves = [[(m.agent, m.player, m.action) for m in s] for s in match.moves]
        return moves, finish(match)

    straight = play(["yes", "no", "well"])
    assert play(["oops", "yes", "no", "well"], undo_after=steps) == straight
    assert {player for step in straight[0] for _, player, _ in step} == {"a", "person"}


def test_undo_without_a_persons_move_returns_false(team):
    (task,) = team.held_out_tasks(1)
    agents = assign_agents(team.agents, {}, team)
    match = Match(team.make_env, task, agents, ask=never, policy=team)
    match.step()
    assert not match.undo() and len(match.moves) == 1
    match.close()


def test_policies_by_name(team):
    (task,) = team.held_out_tasks(1)
    agents = assign_agents(team.agents, {"ann": "b", "ben": "policy"}, team)
    match = Match(team.make_env, task, agents, ask=never, policy=team)
    finish(match)
    assert {m.agent: m.player for s in match.moves for m in s} == {
        "ann_0": "b",
        "ben_0": "b",
    }


class Forgetful(Pair):
    """Returns another observation at every call."""

    count = 0

    def prompt_for(self, agent):
        Forgetful.count += 1
        return f"{Forgetful.count}"


def test_undo_in_an_environment_without_reproducibility_is_refused():
    (task,) = LLMPolicy(Run(team_config(Pair), learner=False).runner).held_out_tasks(1)
    agents = {"ann_0": "person", "ben_0": "person"}
    match = Match(Forgetful, task, agents, ask=lambda game, agent: "x")
    match.step()
    match.step()
    with pytest.raises(EnvContractError, match="different observations"):
        match.undo()
