"""MiniWoB++ without a browser: recorded pages, played again by a stand-in.

``miniwob_recorded.json`` holds what the script of the package read from real pages in
one episode of the expert per task, and the expert's actions.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.adapters import miniwob_pages
from rllib_llm.envs.adapters.miniwob_experts import EXPERTS
from rllib_llm.envs.adapters.miniwob_pages import PageState
from rllib_llm.envs.browser import client
from rllib_llm.envs.browser.actions import read_action
from rllib_llm.envs.child_process import EnvProcessError
from rllib_llm.errors import ConfigError, MissingExtraError
from rllib_llm.pictures.png import png

RECORDED = json.loads(Path(__file__).with_name("miniwob_recorded.json").read_text())
RNG = np.random.default_rng(0)


class StandIn(client.Browser):
    """A browser that shows the states of one recorded task, one after the other."""

    def __init__(self):
        self.calls, self.fail_at, self.starts = [], None, 0
        self.states, self.timeout_s = [], 60.0
        self.shown, self.tabs = None, {"": ""}

    def call(self, method, *arguments):
        if method == self.fail_at:
            self.fail_at, self.tabs = None, {"": ""}
            raise EnvProcessError("The browser failed.")
        self.calls.append((method, *arguments))
        if method == "show":
            tab, limit = arguments
            self.tabs[tab] = self.tabs.pop(tab, "")
            self.tabs = dict(list(self.tabs.items())[-limit:])
        if method == "screenshot":
            return picture_of(self.shown, *arguments)
        tab = next(reversed(self.tabs))
        if method == "open":
            self.tabs[tab] = arguments[0].rpartition("/")[2]
        script = arguments[0] if method == "run" else ""
        if "WOB_TASK_READY" in script:
            return True
        if "location.search" in script:
            return self.tabs[tab].endswith(arguments[1])
        if "startEpisodeReal" in script:
            task = self.tabs[tab].partition(".html")[0]
            self.states = list(RECORDED[task]["states"])
        if "getUtterance" not in script:
            return None
        self.shown = self.states.pop(0)
        return self.shown

    def close(self):
        self.calls.append(("close",))

    kill = close


def picture_of(state, width, height):
    """Return a PNG file of a white page with black boxes in place of elements."""
    page = np.full((height, width, 3), 255, np.uint8)
    for element in state["elements"]:
        left, top, right, bottom = element["box"]
        page[top:bottom, left:right] = 0
    return png(page)


@pytest.fixture
def env(monkeypatch, tmp_path):
    for task in RECORDED:
        (tmp_path / f"{task}.html").touch()
    monkeypatch.setattr(miniwob_pages, "pages_folder", lambda: tmp_path)
    monkeypatch.setattr(miniwob_pages, "require_selenium", lambda: None)
    monkeypatch.setattr(miniwob_pages, "Browser", StandIn)
    return make_env("miniwob-v0", {"task": sorted(RECORDED)})


def browser_of(env):
    return env._pages.browser


def test_every_expert_has_a_recorded_episode():
    assert set(RECORDED) == set(EXPERTS) and len(EXPERTS) >= 10


@pytest.mark.parametrize("task", EXPERTS)
def test_experts_repeat_the_recorded_actions(task):
    *states, last = map(PageState.read, RECORDED[task]["states"])
    for state, action in zip(states, RECORDED[task]["actions"], strict=True):
        assert str(EXPERTS[task](state.task, state.elements)) == action
        read_action(action, state.elements)  # which the page allows
    assert last.is_done and last.reward == 1.0


@pytest.mark.parametrize("task", EXPERTS)
def test_recorded_episodes_are_played_to_their_success(env, task):
    prompt, _ = env.reset(seed=0, options={"task": task})
    assert prompt.startswith(RECORDED[task]["states"][0]["task"])
    assert prompt.endswith(env.format_hint)
    assert env._game[0] == task and 0 <= env._game[1] < 2**31
    for action in RECORDED[task]["actions"]:
        assert env.expert_action(RNG) == action
        _, reward, terminated, _, info = env.step(f"I will {action}.")
    assert terminated and reward == 1.0 and info["success"] is True
    assert info["metrics"] == {f"solved_{task.replace('-', '_')}": 1.0}


def test_the_page_is_read_as_numbered_lines(env):
    prompt, _ = env.reset(seed=0, options={"task": "click-test-2"})
    assert prompt == (
        'Click button ONE.\n1 button "ONE"\n2 button "TWO"\n' + env.format_hint
    )


def screen_env(env, task, **more):
    """Return the first observation and picture of a task in mode screen."""
    text, info = env.reset(seed=0, options={"task": task, "mode": "screen", **more})
    return text, info["images"][0]


def test_the_screen_is_a_picture_below_the_instruction(env):
    text, picture = screen_env(env, "click-test-2")
    assert text == (
        "Click button ONE.\n<image>\nUse 'click X Y' with X from 0 to 159 and Y from 0 "
        "to 209, 'type \"some text\"' or 'press enter'."
    )
    assert picture.dtype == np.uint8 and picture.shape == (210, 160, 3)
    left, top, right, bottom = env.state.elements[0].box
    assert (picture[top:bottom, left:right] == 0).all() and picture.max() == 255
    _, small = screen_env(env, "click-test-2", pixels=80)
    means = picture.reshape(105, 2, 80, 2, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(small, means, atol=1.0)  # averaged, then rounded


@pytest.mark.parametrize("grid", [[160, 210], [16, 21]])
def test_clicks_are_sent_to_places(env, grid):
    screen_env(env, "click-test-2", grid=grid)
    action = env.expert_action(RNG)
    column, row = (int(n) for n in action.split()[1:])
    _, reward, terminated, _, info = env.step(action)
    calls = [c for c in browser_of(env).calls if c[0] == "point"]
    x, y = (column + 0.5) * 160 / grid[0], (row + 0.5) * 210 / grid[1]
    # Before the episode the mouse leaves the page, without a click.
    assert calls == [("point", 490, 5, False), ("point", x, y, True)]
    assert terminated and reward == 1.0 and "images" not in info
    one = next(e for e in RECORDED["click-test-2"]["states"][0]["elements"])
    assert one["box"][0] < x < one["box"][2] and one["box"][1] < y < one["box"][3]


def test_typing_on_the_screen_clicks_first_and_corrects_what_is_there(env):
    screen_env(env, "enter-text")
    state, typed = env.state, RECORDED["enter-text"]["actions"][0].split('"')[1]
    assert env.expert_action(RNG).startswith("click ")
    field = next(e for e in state.elements if e.kind == "field")
    for value, action in (
        ("", f'type "{typed}"'),
        (typed[:1], f'type "{typed[1:]}"'),
        ("?", "press backspace"),
    ):
        changed = dataclasses.replace(field, value=value, is_focused=True)
        elements = [changed if e is field else e for e in state.elements]
        env.state = dataclasses.replace(state, elements=tuple(elements))
        assert env.expert_action(RNG) == action
        assert env.parse(action) is not None
    assert env.parse('type "a\\"b"').text == 'a"b'


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("click 160 5", "160 5 is not on the screen. Use 'click X Y' with X from 0"),
        ("click 5", "Use 'click X Y'"),
        ('type "a"', "No field is focused. Click on one first."),
    ],
)
def test_invalid_actions_on_the_screen_show_it_again(env, action, words):
    screen_env(env, "click-test-2")
    text, _, terminated, _, info = env.step(action)
    assert text.startswith(words) and text.endswith("\n<image>") and not terminated
    assert info["invalid_action"] and info["images"][0].shape == (210, 160, 3)


def test_quoted_texts_of_pages_mark_no_picture(env):
    screen_env(env, "click-test-2")
    env.state = dataclasses.replace(env.state, task="Say <image>.")
    text, images = env.view.shown(env.state, env.state.task)
    assert text == "Say <image >.\n<image>" and len(images) == 1


def test_grids_without_a_place_in_an_element_say_so(env):
    screen_env(env, "click-checkboxes", grid=[2, 2])
    with pytest.raises(ValueError, match="2 columns and 2 rows.*Use a finer grid"):
        env.expert_action(RNG)


def test_lists_have_no_expert_on_the_screen(env):
    screen_env(env, "choose-list")
    with pytest.raises(NotImplementedError, match="Lists cannot be used"):
        env.expert_action(RNG)


def test_modes_of_one_browser_change_between_episodes(env):
    _, picture = screen_env(env, "click-test-2", pixels=16)
    assert picture.shape == (21, 16, 3)
    text, info = env.reset(seed=0, options={"task": "click-test-2"})
    assert '1 button "ONE"' in text and "images" not in info
    assert [c[0] for c in browser_of(env).calls].count("screenshot") == 1


def test_random_actions_on_the_screen_are_valid(env):
    screen_env(env, "enter-text", grid=[8, 10])
    rng = np.random.default_rng(0)
    columns = set()
    for _ in range(300):
        action = env.parse(env.random_action(rng))
        columns.add(int(action.place[0] // 20))
    assert columns == set(range(8))


def test_scripts_get_numbers_and_never_texts_of_the_model(env):
    env.reset(seed=0, options={"task": "choose-list"})
    browser = browser_of(env)
    shown, opened, loaded, started = browser.calls[:4]
    assert shown == ("show", "choose-list", 8)
    assert opened[0] == "open" and opened[1].endswith("/choose-list.html?load=1")
    assert loaded[2] == "?load=1"
    assert started[2:] == env._game[1:]
    # Neither the clock of the page nor its animations change an episode.
    assert "EPISODE_MAX_TIME = 2147483647" in started[1] and "fx.off" in started[1]
    env.step(env.expert_action(RNG))
    script, number, option = browser.calls[-2][1:]
    assert "select" in script and (number, option) == (1, 1)
    env.step("click 2")
    assert "click" in browser.calls[-2][1] and browser.calls[-2][2:] == (2,)


def test_typing_focuses_the_field_and_sends_keys(env):
    env.reset(seed=0, options={"task": "enter-text"})
    env.step(env.expert_action(RNG))
    calls = [c for c in browser_of(env).calls if c[0] != "open"][-3:]
    assert "focus" in calls[0][1] and calls[0][2:] == (1,)
    assert calls[1][0] == "type" and calls[2][0] == "run"


def test_invalid_actions_are_explained_with_the_page(env):
    env.reset(seed=0, options={"task": "click-test-2"})
    text, reward, terminated, _, info = env.step("click 9")
    assert text.startswith("There is no element 9.") and '2 button "TWO"' in text
    assert info["invalid_action"] and reward == 0.0 and not terminated
    assert not env.step(env.expert_action(RNG))[4]["invalid_action"]


def test_the_reward_is_that_without_the_factor_for_time(env):
    env.reset(seed=0, options={"task": "click-checkboxes"})
    ended = {**RECORDED["click-test"]["states"][-1], "reward": 1 / 3}
    browser_of(env).states = [ended]
    _, reward, terminated, _, info = env.step("click 1")
    assert terminated and reward == 1 / 3 and info["success"] is False
    assert "WOB_RAW_REWARD_GLOBAL" in miniwob_pages._READ


def test_a_failing_browser_is_an_error_and_not_a_reward(env):
    env.reset(seed=0, options={"task": "click-test-2"})
    browser_of(env).fail_at = "run"
    with pytest.raises(EnvProcessError, match="failed"):
        env.step("click 1")
    assert env.reset(seed=0)[0]  # with the next one


def test_loading_is_tried_twice_because_nothing_is_lost(env):
    env.reset(seed=0)
    browser_of(env).fail_at = "open"
    assert env.reset(seed=0)[0]


def test_splits_have_different_seeds_and_draw_all_tasks(env):
    games = {"train": set(), "test": set()}
    for seed in range(300):
        split = ("train", "test")[seed % 2]
        env.reset(seed=seed, options={"split": split})
        task, page_seed, of_page = env._game
        assert of_page == split
        games[split].add((task, page_seed))
    assert not games["train"] & games["test"]
    assert {task for task, _ in games["train"]} == set(RECORDED)


def test_restoring_replays_the_actions(env):
    env.reset(seed=0, options={"task": "click-checkboxes"})
    env.step(env.expert_action(RNG))
    state = env.snapshot()
    assert len(state) < 4_000
    action = env.expert_action(RNG)
    env.step(action)
    env.restore(state)
    assert env.expert_action(RNG) == action
    starts = [c for c in browser_of(env).calls if "startEpisode" in str(c)]
    assert len(starts) == 2


TWO = ["enter-text", "click-test"]


@pytest.mark.parametrize(
    ("tasks", "limit", "loads"),
    [
        (["enter-text"] * 3, 1, 1),
        (["click-tab"] * 3, 8, 3),  # keeps marks of the episode before
        ([*TWO, "enter-text"], 1, 3),
        ([*TWO, "enter-text"], 2, 2),
        ([*TWO, "click-tab", *TWO], 3, 3),
        ([*TWO, "focus-text", "enter-text"], 2, 4),  # the oldest is closed
        (["focus-text", *TWO, "enter-text", "click-test"], 2, 3),
    ],
)
def test_pages_are_loaded_only_where_they_cannot_start_in_place(
    env, tasks, limit, loads
):
    for seed, task in enumerate(tasks):
        env.reset(seed=seed, options={"task": task, "open_pages": limit})
    calls = browser_of(env).calls
    assert sum(c[0] == "open" for c in calls) == loads
    blurred = [c for c in calls if "activeElement.blur()" in str(c)]
    assert [c[2] for c in blurred][-1] == env._game[1]
    assert len(blurred) == len(tasks)


def test_a_page_that_failed_is_loaded_anew(env):
    env.reset(seed=0, options={"task": "enter-text"})
    browser_of(env).fail_at = "run"
    assert env.reset(seed=0, options={"task": "enter-text"})[0]
    assert [c[0] for c in browser_of(env).calls].count("open") == 2


def test_interrupting_and_closing_end_the_browser(env):
    env.interrupt()  # before there is one
    env.reset(seed=0)
    browser = browser_of(env)
    env.interrupt()
    env.close()
    assert browser.calls[-2:] == [("close",), ("close",)] and env._pages is None
    assert env.reset(seed=0)[0]  # opens another


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"task": "click-tets"}, "Did you mean 'click-test'"),
        ({"task": []}, "must be a task"),
        ({"mode": "html"}, "mode='html' must be one of dom, screen"),
        ({"pixels": 80}, "no effect in mode='dom'.*set mode='screen'"),
        ({"grid": [8, 10]}, "no effect in mode='dom'"),
        ({"mode": "screen", "pixels": 8}, "pixels=8 must be an int from 16 to 160"),
        ({"mode": "screen", "grid": [8]}, "must be two numbers"),
        ({"mode": "screen", "grid": [8, 999]}, "must be an int from 2 to 210"),
        ({"timeout_s": 0.0}, "timeout_s=0.0 must be a number from 1.0"),
    ],
)
def test_impossible_options_are_refused(env, config, words):
    with pytest.raises(ConfigError, match=words):
        make_env("miniwob-v0", config).reset(seed=0)


def test_tasks_without_an_expert_say_so(env, monkeypatch):
    env.reset(seed=0)
    env.task = "drag-box"
    with pytest.raises(NotImplementedError, match="'drag-box' has no expert"):
        env.expert_action(RNG)


def test_the_remedy_names_the_pages(monkeypatch):
    monkeypatch.setattr(miniwob_pages.importlib.util, "find_spec", lambda name: None)
    miniwob_pages.pages_folder.cache_clear()
    with pytest.raises(MissingExtraError, match=r"\[browser\].*--no-deps 'miniwob"):
        miniwob_pages.pages_folder()
    miniwob_pages.pages_folder.cache_clear()


def test_a_browser_without_memory_is_refused(monkeypatch, tmp_path):
    facts = tmp_path / "meminfo"
    facts.write_text("MemTotal: 9000000 kB\nMemAvailable: 409600 kB\n")
    monkeypatch.setattr(client, "_MEMORY", facts)
    monkeypatch.setattr(client, "_require_program", lambda title, names: "/bin/true")
    monkeypatch.setattr(client, "require_selenium", lambda: None)
    with pytest.raises(ConfigError, match="400 MiB.*num_envs_per_env_runner"):
        client.Browser().call("open", "about:blank")


def test_the_remedy_names_the_packages_of_chromium(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(client, "require_selenium", lambda: None)
    with pytest.raises(ConfigError, match="apt-get install chromium-driver"):
        client.Browser().call("open", "about:blank")
