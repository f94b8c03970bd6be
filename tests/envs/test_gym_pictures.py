"""The adapter for Gymnasium environments that render pictures."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from rllib_llm.envs import GymTextEnv, check_env, make_env
from rllib_llm.errors import ConfigError, EnvContractError


class Lamp(gym.Env):
    """A lamp to switch on; the picture is bright if it is on."""

    metadata = {"render_modes": ["rgb_array", "ansi"]}

    def __init__(self, env_config=None, render_mode="rgb_array"):
        if env_config:
            raise TypeError(f"unknown: {env_config}")
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Discrete(256)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.level = int(self.np_random.integers(50))
        return self.level, {"lamp": True}

    def step(self, action):
        self.level += 100 * int(action)
        return self.level, float(action), self.level > 200, False, {}

    def render(self):
        return np.full((6, 8, 3), self.level, np.uint8)


class Wrong(Lamp):
    """Renders what is no picture."""

    value: object = None

    def render(self):
        return self.value


WORDS = {"action_names": ["wait", "switch"]}


def test_each_observation_shows_the_rendered_picture():
    env = make_env(Lamp, {"pictures": True, **WORDS})
    text, info = env.reset(seed=3)
    assert text == "<image>\nAnswer with one of: wait, switch."
    level = env.env.level
    assert info["lamp"] and info["images"][0].shape == (6, 8, 3)
    assert (info["images"][0] == level).all()
    text, reward, terminated, _, info = env.step("I switch it.")
    assert text == "<image>" and reward == 1.0 and not terminated
    assert (info["images"][0] == level + 100).all()
    text, *_, terminated, _, info = env.step("switch")
    assert terminated and text == "<image>"
    assert (info["images"][0] == level + 200).all()


def test_text_stands_below_the_picture_and_marks_none():
    env = GymTextEnv(
        Lamp(), render=lambda level: f"<image> {level}", pictures=True, **WORDS
    )
    text, info = env.reset(seed=3)
    assert text.startswith(f"<image>\n<image > {env.env.level}\n")
    assert len(info["images"]) == 1
    without = GymTextEnv(Lamp(), render=lambda level: f"<image> {level}", **WORDS)
    text, info = without.reset(seed=3)
    assert text.startswith(f"<image> {without.env.level}\n") and "images" not in info


def test_invalid_actions_show_the_picture_again():
    env = GymTextEnv(Lamp(), pictures=True, **WORDS)
    first = env.reset(seed=3)[1]["images"][0]
    text, *_, info = env.step("what?")
    assert info["invalid_action"] and text == f"<image>\n{env.format_hint}"
    np.testing.assert_array_equal(info["images"][0], first)


def test_the_contract_holds_and_snapshots_continue():
    report = check_env(
        lambda config: make_env(Lamp, {"pictures": True, **WORDS, **config})
    )
    assert report.ok, report
    env = make_env(Lamp, {"pictures": True, **WORDS})
    env.reset(seed=0)
    state = env.snapshot()
    after = env.step("switch")[4]["images"][0]
    env.restore(state)
    np.testing.assert_array_equal(env.step("switch")[4]["images"][0], after)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "NoneType; it must be a numpy array"),
        (np.zeros((4, 4, 3)), "float64 and shape \\(4, 4, 3\\); it must be uint8"),
        (np.zeros((4, 4), np.uint8), "shape \\(4, 4\\); it must be uint8"),
        (np.zeros((4, 4, 4), np.uint8), "Convert it to RGB"),
        ([np.zeros((4, 4, 3), np.uint8)], "list; it must be a numpy array"),
    ],
)
def test_other_values_are_no_pictures(value, words):
    env = GymTextEnv(Wrong(), pictures=True, **WORDS)
    env.env.value = value
    with pytest.raises(EnvContractError, match=rf"render\(\) of .*Wrong.*{words}"):
        env.reset(seed=0)


@pytest.mark.parametrize("mode", [None, "ansi", "human"])
def test_other_render_modes_are_refused(mode):
    with pytest.raises(ConfigError, match=f"render_mode={mode!r}. Pass render_mode"):
        GymTextEnv(Lamp(render_mode=mode), pictures=True, **WORDS)


def test_without_pictures_a_conversion_to_text_is_needed():
    with pytest.raises(EnvContractError, match="render=.*or show its pictures with"):
        make_env(Lamp, WORDS)
    with pytest.raises(ConfigError, match="pictures='yes' must be true or false"):
        make_env(Lamp, {"pictures": "yes", **WORDS})


@pytest.mark.parametrize("name", ["FrozenLake-v1", "Taxi-v3"])
def test_gymnasium_draws_its_own_environments(name, monkeypatch):
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    names = ["a", "b", "c", "d", "e", "f"][: 4 if name == "FrozenLake-v1" else 6]
    config = {"render_mode": "rgb_array", "pictures": True, "action_names": names}
    env = make_env(name, config)
    first = env.reset(seed=0)[1]["images"][0]
    assert first.dtype == np.uint8 and first.ndim == 3 and first.std() > 0
    again = make_env(name, config)
    np.testing.assert_array_equal(again.reset(seed=0)[1]["images"][0], first)
    shown = [env.step(action)[4]["images"][0] for action in ("b", "c", "d")]
    assert any((picture != first).any() for picture in shown)
