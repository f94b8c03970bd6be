"""Snapshots: every shipped environment continues identically from one."""

import re

import gymnasium as gym
import numpy as np
import pytest

from rllib_llm.envs import TEXT_ENVS, GymTextEnv, MultiAgentTextEnv, TextEnv, make_env
from rllib_llm.errors import EnvContractError, MissingExtraError

# Their states are on a server, in another program, or in a library's game.
WITHOUT = {"agent-v0", "external-v0", "openenv-v0", "openenv_game-v0"}
LIBRARIES = ("open_spiel", "pettingzoo_classic", "text_arena")
# Now: other tests register environments of their own.
ALL_NAMES = TEXT_ENVS.names()
SINGLE = [
    n for n in ALL_NAMES if issubclass(TEXT_ENVS.get(n), TextEnv) and n not in WITHOUT
]
MULTI = [n for n in ALL_NAMES if issubclass(TEXT_ENVS.get(n), MultiAgentTextEnv)]
CONFIGS = {
    "frozen_lake-v0": {"slippery": True},
    "textworld-v0": {"games": 2, "level": 3},
}
ENGINES = ("miniwob-v0", "scienceworld-v0", "textworld-v0", "webshop_pages-v0")


def made(name, config=None):
    """Return an environment; skip if its library is not installed."""
    try:
        return make_env(name, config)
    except MissingExtraError as error:
        pytest.skip(str(error))


def act(env, rng):
    """Play a turn of the expert or a random one; return its whole result."""
    if isinstance(env, TextEnv):
        policy = env.expert_action if rng.random() < 0.5 else env.random_action
        text = policy(rng)
        observed = env.step(text)
        # Addresses of parsed actions and times differ from run to run.
        line = re.sub(r" at 0x\w+|_seconds': [\d.e-]+", "", repr((text, observed)))
        return line, observed[2] or observed[3]
    agent = env.agent_selection
    policy = env.expert_action if rng.random() < 0.5 else env.random_action
    has_ended = env.terminations[agent] or env.truncations[agent]
    text = None if has_ended else policy(agent, rng)
    env.step(text)
    observed = (env.grants, env.terminations, env.truncations, env.infos, env._texts)
    return repr((text, observed)), not env.live_agents


def go_on(env, rng):
    """Play to the end and return all results."""
    observed, is_over = [], False
    while not is_over:
        line, is_over = act(env, rng)
        observed.append(line)
    return observed


def test_the_environments_without_snapshots_are_listed():
    names = [n for n in ALL_NAMES if not n.startswith(LIBRARIES)]
    assert set(names) - {*SINGLE, *MULTI} == WITHOUT


# Engines take seconds to start.
ALL = [
    pytest.param(n, marks=pytest.mark.slow) if n in ENGINES else n
    for n in (*SINGLE, *MULTI)
]


@pytest.mark.parametrize("name", ALL)
def test_restored_episodes_continue_identically(name):
    env, other = made(name, CONFIGS.get(name)), made(name, CONFIGS.get(name))
    for seed in (1, 2) if name in ENGINES else range(6):
        options = {"split": ("train", "test")[seed % 2]}
        env.reset(seed=seed, options=options)
        rng = np.random.default_rng(seed)
        is_over = False
        for _ in range(seed % 3):
            is_over = is_over or act(env, rng)[1]
        if is_over:
            continue
        state = env.snapshot()
        first = go_on(env, np.random.default_rng(9))
        env.reset(seed=seed + 1)  # whatever happens in between
        env.restore(state)
        assert go_on(env, np.random.default_rng(9)) == first
        other.restore(state)  # in an instance that has not been reset
        assert go_on(other, np.random.default_rng(9)) == first
        env.restore(state)
        go_on(env, np.random.default_rng(10))
        env.restore(state)  # as often as needed
        assert go_on(env, np.random.default_rng(9)) == first


@pytest.mark.parametrize("name", ALL)
def test_taking_a_snapshot_leaves_the_episode_unchanged(name):
    observed = []
    for takes in (False, True):
        env, rng = made(name), np.random.default_rng(0)
        env.reset(seed=4)
        is_over, lines = False, []
        while not is_over:
            if takes:
                env.snapshot()
            line, is_over = act(env, rng)
            lines.append(line)
        observed.append(lines)
    assert observed[0] == observed[1]


def test_options_of_the_run_are_not_part_of_a_snapshot():
    env = make_env("guess_number-v0", {"max_turns": 5})
    env.reset(seed=0)
    state = env.snapshot()
    shorter = make_env("guess_number-v0", {"max_turns": 1})
    spaces = shorter.observation_space, shorter.action_space
    shorter.restore(state)
    assert shorter.max_turns == 1
    assert spaces == (shorter.observation_space, shorter.action_space)
    assert shorter.step(shorter.expert_action(np.random.default_rng(0)))[3]


def test_snapshots_are_small_and_know_their_class():
    env = make_env("search_facts-v0")
    env.reset(seed=0)
    assert len(env.snapshot()) < 4_000  # the world is named, not copied
    with pytest.raises(EnvContractError, match="belongs to SearchFacts, not to"):
        make_env("countdown-v0").restore(env.snapshot())


def test_gym_environments_are_copied_or_refused():
    def wrap(env):
        return GymTextEnv(
            env, render=lambda cell: f"cell {cell}", action_names=["w", "s", "e", "n"]
        )

    env = wrap(gym.make("FrozenLake-v1"))
    env.reset(seed=0)
    state = env.snapshot()
    first = [env.step("e")[0] for _ in range(5)]
    env.restore(state)
    assert [env.step("e")[0] for _ in range(5)] == first

    class Forgetful(gym.Env, gym.utils.EzPickle):
        observation_space = gym.spaces.Discrete(9)
        action_space = gym.spaces.Discrete(4)

        def __init__(self):
            gym.utils.EzPickle.__init__(self)

        def reset(self, *, seed=None, options=None):
            return 0, {}

    env = wrap(Forgetful())
    env.reset(seed=0)
    with pytest.raises(EnvContractError, match="Forgetful pickles by EzPickle"):
        env.snapshot()


def test_state_that_does_not_pickle_is_named():
    class Odd(TextEnv):
        def start(self, rng):
            self.rule = lambda text: text
            return "Say it"

    env = Odd()
    env.reset(seed=0)
    with pytest.raises(EnvContractError, match="Odd cannot be copied"):
        env.snapshot()
