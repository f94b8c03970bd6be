"""The adapter for Gymnasium environments, and make_env."""

import gymnasium as gym
import pytest

from rllib_llm.envs import GymTextEnv, TextEnv, check_env, make_env
from rllib_llm.envs.guess_number import GuessNumber
from rllib_llm.errors import ConfigError, EnvContractError


class Doors(gym.Env):
    """Choose one of three doors until the right one opens; observations are texts."""

    def __init__(self, env_config=None, prize: int = 5):
        config = {"prize": prize, **(env_config or {})}
        self.prize = config.pop("prize")
        if config:
            raise TypeError(f"unknown: {config}")
        self.observation_space = gym.spaces.Text(100)
        self.action_space = gym.spaces.Discrete(3, start=1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.right = int(self.np_random.integers(1, 4))
        return "Three doors.", {"right": self.right, "options": options}

    def step(self, action):
        won = action == self.right
        info = {"door": action, "is_success": won}
        return f"Door {action}.", self.prize * won, won, False, info


class Parrot(gym.Env):
    """Accepts words of the letters a to c, and repeats them."""

    observation_space = gym.spaces.Text(100)
    action_space = gym.spaces.Text(5, charset="abc")

    def __init__(self, env_config=None):
        self.config = env_config

    def reset(self, *, seed=None, options=None):
        return "Speak.", {}

    def step(self, action):
        return action, 1.0, False, action == "abc", {}


def make_doors(env_config):
    return GymTextEnv(Doors(), action_names=["a", "b", "c"], env_config=env_config)


NAMES = ["left", "left door", "right"]


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("left", 1),
        ("the LEFT DOOR, please", 2),
        ("left? no: right", 3),
        ("leftmost", None),
        ("", None),
        ("le\u017ft", None),
    ],
)
def test_action_names(text, action):
    env = GymTextEnv(Doors(), action_names=NAMES)
    assert env.parse(text) == action


def test_names_match_whatever_unicode_folds_to_them():
    env = GymTextEnv(Doors(), action_names=["stay", "go", "k"])
    assert env.parse("\u017ftay") == 1
    assert env.parse("\u212a") == 3


def test_the_wrapped_environment_decides_rewards_ends_and_infos():
    env = GymTextEnv(Doors(), action_names=NAMES)
    inner = Doors()
    prompt, info = env.reset(seed=4, options={"level": 2, "split": "test"})
    assert prompt == "Three doors.\nAnswer with one of: left, left door, right."
    assert info == {"right": inner.reset(seed=4)[1]["right"], "options": {"level": 2}}
    assert env.split == "test"
    right = NAMES[info["right"] - 1]
    wrong = next(name for name in NAMES if name != right)
    text, reward, terminated, truncated, info = env.step(wrong)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["door"] == info["parsed_action"]
    text, reward, terminated, truncated, info = env.step(right)
    assert (reward, terminated, truncated) == (5.0, True, False)
    assert text == f"Door {info['door']}."
    assert info["success"] is True
    assert info["stop_reason"] == "terminated"


def test_text_actions_outside_of_the_space_are_invalid():
    env = GymTextEnv(Parrot())
    env.reset(seed=0)
    assert env.step(" abba ")[0] == "abba"
    assert env.step("xyz")[4]["invalid_action"]
    assert env.step("abcabc")[4]["invalid_action"]
    *_, truncated, info = env.step("abc")
    assert truncated
    assert info["success"] is None


def test_render_and_parse_make_a_text_env_of_cart_pole():
    env = GymTextEnv(
        gym.make("CartPole-v1"),
        render=lambda x: f"angle {x[2]:.2f}",
        parse=lambda text: {"l": 0, "r": 1}.get(text.strip()),
    )
    assert env.max_turns == 500
    assert env.reset(seed=0)[0].startswith("angle")
    assert env.step("l")[1] == 1.0
    assert env.step("x")[4]["invalid_action"]


def test_discrete_observations_with_a_renderer_pass_check_env():
    def build(env_config):
        return GymTextEnv(
            gym.make("CliffWalking-v1"),
            render=lambda cell: f"You are in cell {cell} of 48.",
            action_names=["up", "right", "down", "left"],
            env_config={"max_turns": 20, **env_config},
        )

    report = check_env(build, seeds=range(4))
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: GymTextEnv(gym.make("CartPole-v1")), EnvContractError, "render="),
        (lambda: GymTextEnv(Doors()), EnvContractError, "action_names="),
        (lambda: GymTextEnv(Doors(), action_names=["a"]), ConfigError, "3 different"),
        (lambda: GymTextEnv(Parrot(), action_names=["a"]), ConfigError, "parse="),
        (
            lambda: GymTextEnv(Parrot(), env_config={"max_turn": 1}),
            ConfigError,
            "max_turns",
        ),
        (
            lambda: GymTextEnv(
                gym.make("CartPole-v1"), render=list, action_names=["l", "r"]
            ).reset(),
            EnvContractError,
            "returned list",
        ),
    ],
)
def test_untranslatable_environments_are_refused(build, error, words):
    with pytest.raises(error, match=words):
        build()


# make_env


def test_make_registered_name_and_class_and_function():
    for spec in ("guess_number-v0", GuessNumber, lambda config: GuessNumber(config)):
        env = make_env(spec, {"upper": 3})
        assert isinstance(env, GuessNumber)
        assert env.options()["upper"] == 3


def test_make_from_module_path():
    env = make_env("rllib_llm.envs.guess_number:GuessNumber", {"max_turns": 2})
    assert isinstance(env, GuessNumber)
    assert env.max_turns == 2


def test_make_plain_class_and_gymnasium_id_in_the_adapter():
    gym.register("Doors-v0", entry_point=Doors, max_episode_steps=7)
    config = {"prize": 9, "action_names": NAMES}
    try:
        for spec, turns in ((Doors, 100), ("Doors-v0", 7)):
            env = make_env(spec, config)
            assert isinstance(env, GymTextEnv)
            assert env.env.unwrapped.prize == 9
            assert env.max_turns == turns
            assert make_env(spec, {**config, "max_turns": 4}).max_turns == 4
            report = check_env(spec, config, seeds=range(4))
            assert report.ok, str(report)
    finally:
        del gym.registry["Doors-v0"]


def test_make_keeps_wrappers_around_a_text_env():
    def build(config):
        return gym.wrappers.TimeLimit(GuessNumber(config), 3)

    env = make_env(build)
    assert isinstance(env, gym.wrappers.TimeLimit)
    assert isinstance(env.unwrapped, TextEnv)
    assert check_env(lambda config: GuessNumber(config)).ok


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("gues_number-v0", "Did you mean 'guess_number-v0'"),
        ("CartPol-v1", "Did you mean 'CartPole-v1'"),
        ("zzzzzz", "Known: .*countdown-v0"),
        ("no_such_package_x:Env", "PYTHONPATH"),
        ("rllib_llm.envs.guess_number:GuesNumber", "Did you mean 'GuessNumber'"),
        (GuessNumber(), "class or a function"),
        (None, "class or a function"),
    ],
)
def test_unknown_environments_are_refused(spec, words):
    with pytest.raises(ConfigError, match=words):
        make_env(spec)


@pytest.mark.parametrize("spec", ["CartPole-v1", Doors, lambda config: Doors()])
def test_environments_without_text_are_sent_to_the_adapter(spec):
    with pytest.raises(EnvContractError, match="GymTextEnv"):
        make_env(spec)


def test_functions_must_return_an_environment():
    with pytest.raises(EnvContractError, match=r"must return a gymnasium\.Env"):
        make_env(lambda config: 3)
