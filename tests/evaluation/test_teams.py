"""Team evaluation: exchanged, ablated and unknown policies."""

import pytest

from rllib_llm import MARFTConfig
from rllib_llm.data.episode_data import episode_data
from rllib_llm.errors import ConfigError
from rllib_llm.evaluation import teams
from rllib_llm.evaluation.teams import NO_ONE, ablations, play_assignment, swap_matrix

pytestmark = pytest.mark.ray
TINY = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}
AGENTS = ["alice_0", "bob_0"]


@pytest.fixture(scope="module")
def algo(ray_session):
    algo = (
        MARFTConfig()
        .environment("secret_sum-v0")
        .language_model(tiny=TINY)
        .multi_agent(
            policies=["alice", "bob"],
            policy_mapping_fn={"alice": "alice", "bob": "bob"},
        )
        .rollouts(episodes_per_iteration=4)
        .generation(max_new_tokens=4)
        .build_algo()
    )
    yield algo
    algo.stop()


def test_play_assignment_assigns_the_given_policies(algo):
    assignment = {"alice_0": "bob", "bob_0": "alice"}
    for episode in play_assignment(algo, assignment, 4):
        policies = {a: p.module_id for a, p in episode.agent_episodes.items()}
        assert policies.items() <= assignment.items() and "alice_0" in policies
    # Afterwards the config's mapping applies again.
    (episode,) = algo.env_runner.sample(num_episodes=1)
    assert episode.agent_episodes["alice_0"].module_id == "alice"


def test_swap_matrix_plays_every_assignment_on_the_same_tasks(algo):
    matrix = swap_matrix(algo, 3)
    assert matrix.policies() == ["alice", "bob"]
    for agent in AGENTS:
        for policy in ("alice", "bob"):
            assert matrix.cell(agent, policy).games == 2 * 3
    default = dict(zip(AGENTS, ("alice", "bob"), strict=True))
    one, two = play_assignment(algo, default, 3), play_assignment(algo, default, 3)
    seeds = [[episode_data(e).task.seed for e in played] for played in (one, two)]
    assert seeds[0] == seeds[1]


def test_an_ablated_agent_replies_silent(algo):
    assignment = {"alice_0": NO_ONE, "bob_0": "bob"}
    for episode in play_assignment(algo, assignment, 4, silent="say 1"):
        alice = episode.agent_episodes["alice_0"]
        assert list(alice.get_actions()) == ["say 1"]
        assert episode_data(alice).num_sampled == 0


def test_ablations_silence_one_agent_at_a_time(algo, monkeypatch):
    played = []

    def noted(*args, **settings):
        played.append(play_assignment(*args, **settings))
        return played[-1]

    monkeypatch.setattr(teams, "play_assignment", noted)
    assert list(ablations(algo, 2)) == ["none", *AGENTS]
    spoke = [
        {
            agent
            for episode in episodes
            for agent, part in episode.agent_episodes.items()
            if episode_data(part).num_sampled
        }
        for episodes in played
    ]
    assert "alice_0" in spoke[0]
    assert not any(
        agent in agents for agent, agents in zip(AGENTS, spoke[1:], strict=True)
    )
    for episode in played[1]:
        assert list(episode.agent_episodes["alice_0"].get_actions()) == ["pass"]


def test_unknown_agents_and_policies_are_refused(algo):
    with pytest.raises(ConfigError, match="no agent 'carol_0'"):
        play_assignment(algo, {"carol_0": "bob"}, 1)
    with pytest.raises(ConfigError, match="no policy 'carol'"):
        play_assignment(algo, {"alice_0": "carol"}, 1)
