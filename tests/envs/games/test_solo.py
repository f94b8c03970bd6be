"""One agent that acts for all agents of a game."""

import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import ConfigError


@pytest.mark.parametrize("game", ["secret_sum-v0", "path_checker-v0", "team-v0"])
def test_expert_acts_for_every_agent(game):
    solo = make_env("solo-v0", {"game": game})
    for seed in range(8):
        played = play(solo, seed, expert_policy)
        first_agent = solo.player.adapter.unwrapped.possible_agents[0]
        assert played.observations[0].startswith(f"You are {first_agent}.")
        assert played.success is True and sum(played.rewards) > 0


def test_return_and_observations_are_those_of_all_agents():
    solo = make_env("solo-v0", {"game": "secret_sum-v0"})
    first, _ = solo.reset(seed=3)
    secrets = solo.player.adapter.unwrapped.secrets
    assert f"You have {secrets[0]}." in first
    second, reward, *_ = solo.step(f"say {secrets[0]}")
    assert f"alice_0 says {secrets[0]}. You have {secrets[1]}." in second
    assert second.startswith("You are bob_0.") and reward == 0.0
    _, reward, terminated, _, info = solo.step(f"say {sum(secrets) % 4}")
    assert reward == 2.0 and terminated and info["success"] is True


def test_games_of_one_agent_are_refused():
    with pytest.raises(ConfigError, match="single-agent environment already"):
        make_env("solo-v0", {"game": "guess_number-v0"}).reset(seed=0)
