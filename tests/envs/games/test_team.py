"""Teams on single-agent tasks: communication, decisions, rewards."""

import numpy as np
import pytest

from rllib_llm.envs import MultiAgentAdapter, make_env
from rllib_llm.envs.one_player import OnePlayer
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import ConfigError

TRIO = ["a_0", "b_0", "c_0"]
PROBE = {"task": "copy_probe-v0"}


def received(topology, rounds=2):
    """Return each agent's observations by round, if every agent says its name."""
    env = MultiAgentAdapter(make_env("team-v0", {"agents": TRIO, "topology": topology}))
    step, found = env.reset(seed=0), []
    for _ in range(rounds * len(TRIO)):
        ((agent, text),) = step.observations.items()
        texts = [w.split(" says")[0][0] for w in text.splitlines() if " says: " in w]
        found.append((agent[0], "".join(sorted(texts))))
        step = env.step({agent: f"I am {agent}"})
    return found


@pytest.mark.parametrize(
    ("topology", "first", "second"),
    [
        ("chain", ["", "a", "ab"], ["", "a", "ab"]),
        ("star", ["", "", "ab"], ["", "", "ab"]),
        ("debate", ["", "", ""], ["bc", "ac", "ab"]),
        ({"b_0": ["a_0"], "c_0": ["b_0"]}, ["", "a", "b"], ["", "a", "b"]),
    ],
)
def test_agents_read_their_neighbours_in_the_graph(topology, first, second):
    assert received(topology) == list(zip("abc" * 2, first + second, strict=True))


def test_the_graph_decides_who_speaks_last_and_answers():
    config = {**PROBE, "agents": TRIO, "topology": {"a_0": ["b_0", "c_0"]}}
    env = MultiAgentAdapter(make_env("team-v0", config))
    word = env.reset(seed=1).observations["b_0"].removeprefix("Say ")
    env.step({"b_0": "blue"})
    env.step({"c_0": "nonsense"})
    step = env.step({"a_0": word})
    assert sorted(step.rewards) == [(agent, 0.5) for agent in TRIO]


def test_a_team_plays_what_the_answerer_alone_would():
    alone = make_env("guess_number-v0")
    team = OnePlayer(MultiAgentAdapter(make_env("team-v0")))
    for seed in range(20):
        played = play(team, seed, expert_policy)
        assert played.success is True
        guesses = played.actions[1::2]
        alone.reset(seed=0)
        alone.secret = team.adapter.unwrapped.task.secret
        rewards = [alone.step(guess)[1] for guess in guesses]
        assert sum(rewards) == 1.0 and sum(played.rewards) == 2.0


def test_most_votes_decide_and_invalid_ones_do_not_count():
    config = {**PROBE, "agents": TRIO, "topology": {}, "decide": "vote"}
    env = MultiAgentAdapter(make_env("team-v0", config))
    for texts, is_rewarded in (
        (["{w}", "other", "{w}!"], True),
        (["{w}", "nonsense", "nonsense"], True),
        (["{x}", "{w}", "{x}"], False),
        (["{w}", "{x}", "nonsense"], True),  # the first of equally many
    ):
        word = env.reset(seed=1).observations["a_0"].removeprefix("Say ")
        wrong = "red" if word != "red" else "blue"
        for agent, text in zip(TRIO, texts, strict=True):
            step = env.step({agent: text.format(w=word, x=wrong)})
        assert (sum(r for _, r in step.rewards) > 0) is is_rewarded


def test_equal_expressions_are_equal_votes():
    config = {"task": "countdown-v0", "agents": TRIO, "topology": {}, "decide": "vote"}
    env = MultiAgentAdapter(make_env("team-v0", config))
    env.reset(seed=0)
    right = env.unwrapped.task.expert_action(np.random.default_rng(0))
    for agent, text in zip(TRIO, ("answer: 1 + 1", right, f" {right}"), strict=True):
        step = env.step({agent: text})
    assert sum(r for _, r in step.rewards) > 0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"decide": "vot"}, "Did you mean 'vote'"),
        ({"task": "secret_sum-v0"}, "multi-agent game already"),
        ({"task": "gess_number-v0"}, "Did you mean 'guess_number-v0'"),
        ({"topology": {"adviser_0": ["solver_0"], "solver_0": ["adviser_0"]}}, "cycle"),
        ({"topology": {"adviser_0": ["solver_1"]}}, "Did you mean 'solver_0'"),
        ({"topology": "ring"}, "chain"),
        ({"task_config": {"uper": 3}}, "Did you mean 'upper'"),
    ],
)
def test_bad_teams_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        make_env("team-v0", config).reset(seed=0)
