"""Lists of admissible actions: validation, and their place in infos."""

from __future__ import annotations

import pytest
from multi_toys import Scripted, Together

from rllib_llm.env_runner.agents import as_playable
from rllib_llm.envs import make_env
from rllib_llm.envs.admissible import ADMISSIBLE, admissible_actions, expert_probs
from rllib_llm.errors import EnvContractError


def test_valid_list_is_returned():
    assert admissible_actions({ADMISSIBLE: ("a", "b")}, "env") == ["a", "b"]


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (None, "env returned info.'admissible_actions'. = None.*docs/extending.md"),
        ([], "at least one after every reset and step"),
        (["a", 1], "env lists 1 .*non-blank string"),
        (["a", "\n"], "non-blank"),
        (["a", "b", "a"], "lists 'a' twice"),
    ],
)
def test_invalid_lists_are_refused(listed, message):
    with pytest.raises(EnvContractError, match=message):
        admissible_actions({} if listed is None else {ADMISSIBLE: listed}, "env")


def test_the_experts_distribution_is_checked():
    assert expert_probs({}, ["a", "b"], "env") is None
    given = expert_probs({"expert_probs": [0.25, 0.75]}, ["a", "b"], "env")
    assert given.tolist() == [0.25, 0.75]
    for wrong in ([1.0], [0.5, 0.4], [1.5, -0.5], [float("nan"), 1.0]):
        with pytest.raises(EnvContractError, match="env returned.*2 admissible"):
            expert_probs({"expert_probs": wrong}, ["a", "b"], "env")


@pytest.mark.parametrize("game", [Scripted, Together])
def test_games_list_actions_of_the_agents_to_act(game):
    class Listing(game):
        plan = ()

        def admissible_actions(self, agent):
            return None if agent == "cid_0" else [f"{agent} {self.turn}", "pass"]

    env = as_playable(Listing())
    observed = env.reset(seed=0)
    for _ in range(3):
        for agent in observed.observations:
            listed = observed.infos[agent].get(ADMISSIBLE)
            if agent == "cid_0":
                assert listed is None
            else:
                assert listed[1] == "pass" and listed[0].startswith(agent)
        observed = env.step(dict.fromkeys(observed.observations, "pass"))


def test_open_spiel_lists_what_is_legal():
    pytest.importorskip("pyspiel")
    env = as_playable(make_env("open_spiel/tic_tac_toe-v0"))
    observed, left = env.reset(seed=0), 9
    while observed.observations:
        (agent,) = observed.observations
        listed = observed.infos[agent][ADMISSIBLE]
        assert len(listed) == left
        observed, left = env.step({agent: listed[-1]}), left - 1
    assert observed.is_over
