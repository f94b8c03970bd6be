"""MiniWoB++ in a real browser; skipped where Chromium or the extra is missing."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("selenium")

from rllib_llm.envs import make_env
from rllib_llm.envs.adapters.miniwob import RESTARTED
from rllib_llm.envs.adapters.miniwob_experts import EXPERTS
from rllib_llm.envs.adapters.miniwob_pages import MiniWobPages
from rllib_llm.envs.browser import client
from rllib_llm.envs.browser.actions import PageAction
from rllib_llm.envs.browser.chromium import find_program
from rllib_llm.envs.browser.elements import TYPED
from rllib_llm.envs.child_process import EnvProcessError
from rllib_llm.envs.transcript import expert_policy, play, random_policy
from rllib_llm.errors import MissingExtraError

pytestmark = pytest.mark.slow
if not find_program(client.BINARIES) or not find_program(client.DRIVERS):
    pytest.skip("no Chromium with its chromedriver", allow_module_level=True)
try:
    make_env("miniwob-v0")
except MissingExtraError as error:
    pytest.skip(str(error), allow_module_level=True)
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def env():
    made = make_env("miniwob-v0")
    yield made
    made.close()


@pytest.fixture
def browser(env):
    """Return the browser of an episode that has just begun."""
    env.reset(seed=0, options={"task": "click-test-2"})
    return env._pages.browser


def has_ended(group):
    """Return whether all processes of a group are gone, within 20 s."""
    end = time.monotonic() + 20.0
    while time.monotonic() < end:
        with contextlib.suppress(ChildProcessError):  # an ended child is a zombie
            os.waitpid(group, os.WNOHANG)
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("task", EXPERTS)
def test_experts_succeed_on_training_and_held_out_seeds(env, task):
    for seed in range(10):
        options = {"task": task, "split": ("train", "test")[seed % 2]}
        transcript = play(env, seed, expert_policy, options=options)
        assert transcript.success is True, str(transcript)
        assert transcript.rewards[-1] == 1.0  # not less for the time it took


SCREEN = {"mode": "screen"}
ON_SCREEN = [task for task in EXPERTS if task != "choose-list"]


@pytest.mark.parametrize("task", ON_SCREEN)
def test_experts_succeed_by_places_of_the_screen(env, task):
    for seed in range(4):
        options = {"task": task, "split": ("train", "test")[seed % 2], **SCREEN}
        options |= {"grid": [16, 21]} if seed > 1 else {}
        transcript = play(env, seed, expert_policy, options=options)
        assert transcript.success is True, str(transcript)


@pytest.fixture(scope="module")
def pages():
    """Return pages that are loaded for each episode, and others."""
    made = MiniWobPages(), MiniWobPages()
    for each in made:
        each.has_screenshots = True
    yield made
    for each in made:
        each.browser.close()


@pytest.mark.parametrize("task", sorted(RESTARTED))
def test_pages_started_in_place_equal_new_ones(pages, task):
    new, old = pages
    for seed in range(5):
        shown = old.start(task, seed, "train", anew=False)
        assert shown == new.start(task, seed, "train", anew=True)
        if seed % 2:  # an episode without an end
            for element in shown.elements:
                if element.kind in TYPED:
                    shown = old.act(PageAction("type", element.number, "left"))
            if not shown.is_done:
                number = int(RNG.integers(len(shown.elements))) + 1
                old.act(PageAction("click", number))
        while not shown.is_done and seed % 2 == 0:
            shown = old.act(EXPERTS[task](shown.task, shown.elements))
    assert old._num_loads < new._num_loads


def test_each_page_has_a_tab_of_its_own_up_to_the_limit(pages):
    tasks = ["enter-text", "click-test", "focus-text", "click-color"]
    new, old = pages
    old.limit = 3
    try:
        for seed, place in enumerate((0, 1, 2, 0, 1, 3, 1, 0, 2)):
            loads = old._num_loads
            shown = old.start(tasks[place], seed, "train", anew=False)
            assert shown == new.start(tasks[place], seed, "train", anew=True)
            assert (old._num_loads == loads) == (seed in (3, 4, 6, 7)), seed
            while not shown.is_done:  # clicks and keys reach the tab that is shown
                action = EXPERTS[tasks[place]](shown.task, shown.elements)
                if action.kind == "click":
                    left, top, right, bottom = shown.elements[action.number - 1].box
                    middle = (left + right) / 2, (top + bottom) / 2
                    action = PageAction("click", place=middle)
                shown = old.act(action)
            assert shown.reward == 1.0
    finally:
        old.limit = 1


def test_pictures_depend_on_nothing_but_the_seed(env):
    tasks = ["enter-text", "click-tab-2", "click-button", "focus-text"]
    alone = {task: pictures_of(env, task) for task in tasks}
    again = make_env("miniwob-v0", SCREEN)
    for task in reversed(tasks):
        shown = pictures_of(again, task)
        assert len(shown) == len(alone[task])
        for a, b in zip(shown, alone[task], strict=True):
            np.testing.assert_array_equal(a, b)
    again.close()


def pictures_of(env, task):
    """Return the pictures of an episode of the expert after a random click."""
    info = env.reset(seed=3, options={"task": task, **SCREEN})[1]
    shown = [info["images"][0]]
    action, is_over = env.random_action(np.random.default_rng(0)), False
    while not is_over:
        *_, terminated, truncated, info = env.step(action)
        is_over = terminated or truncated
        shown += info.get("images", [])
        action = "" if is_over else env.expert_action(RNG)
    return shown


def test_screens_show_the_page_and_what_is_typed(env):
    text, info = env.reset(seed=1, options={"task": "enter-text", **SCREEN})
    (picture,) = info["images"]
    assert picture.shape == (210, 160, 3) and "<image>" in text
    np.testing.assert_array_equal(picture[45, 80], (255, 255, 0))  # the instruction
    shown = [picture]
    for _ in range(2):
        shown.append(env.step(env.expert_action(RNG))[4]["images"][0])
    field = next(e for e in env.state.elements if e.kind == "field")
    left, top, right, bottom = field.box
    changed = (shown[1] != shown[2]).any(axis=2)
    assert changed[top:bottom, left:right].any()
    changed[top - 3 : bottom + 3, left - 3 : right + 3] = False
    assert not changed.any()
    small = env.reset(seed=1, options={"task": "enter-text", "pixels": 32, **SCREEN})
    assert small[1]["images"][0].shape == (42, 32, 3)


def test_clicks_reach_what_is_on_top(env):
    env.reset(seed=0, options={"task": "click-test-2", **SCREEN})
    one = next(e for e in env.state.elements if e.name == "ONE")
    x, y = (one.box[0] + one.box[2]) // 2, (one.box[1] + one.box[3]) // 2
    cover = (
        "const d = document.createElement('div');"
        "d.style = 'position:absolute;left:0;top:0;width:160px;height:210px;"
        "z-index:99'; d.onclick = () => d.remove(); document.body.appendChild(d);"
    )
    env._pages.browser.call("run", cover)
    assert not env.step(f"click {x} {y}")[2]
    assert env.step(f"click {x} {y}")[1] == 1.0


def test_experts_recover_from_mistakes(env):
    for seed, task in enumerate(["click-checkboxes", "login-user", "choose-list"] * 3):
        env.reset(seed=seed, options={"task": task})
        while not any(e.value in ("on", "x") for e in env.state.elements):
            element = env.state.elements[int(RNG.integers(len(env.state.elements)))]
            if element.kind == "checkbox":
                env.step(f"click {element.number}")
            elif element.kind in ("field", "list"):
                break
        fields = [e for e in env.state.elements if e.kind == "field"]
        for field in fields:
            env.step(f'type {field.number} "wrong"')
        is_over = False
        while not is_over:
            *_, reward, terminated, truncated, _ = env.step(env.expert_action(RNG))
            is_over = terminated or truncated
        assert reward == 1.0


def test_episodes_depend_on_nothing_but_the_seed(env):
    tasks = ["click-tab-2", "click-checkboxes", "click-dialog", "click-widget"]
    alone = []
    for seed, task in enumerate(tasks):
        alone.append(str(play(env, seed, random_policy, options={"task": task})))
    again = make_env("miniwob-v0")
    for seed, task in reversed(list(enumerate(tasks))):
        transcript = play(again, seed, random_policy, options={"task": task})
        assert str(transcript) == alone[seed]
    again.close()


def test_a_killed_browser_loses_its_episode_and_is_replaced(env, browser):
    prompt = env.reset(seed=5)[0]
    group, folder = browser.pid, Path(browser._folder)
    os.killpg(group, signal.SIGKILL)
    with pytest.raises(EnvProcessError, match="ended"):
        env.step("click 1")
    assert has_ended(group) and not folder.exists()
    assert env.reset(seed=5)[0] == prompt and browser.pid != group
    assert env.step(env.expert_action(RNG))[2]


def test_a_browser_killed_between_episodes_loses_none(env, browser):
    os.killpg(browser.pid, signal.SIGKILL)
    assert play(env, 3, expert_policy).success


def test_a_crashed_page_is_an_error(env, browser):
    group = browser.pid
    with pytest.raises(EnvProcessError):
        browser.call("open", "chrome://crash")
    assert has_ended(group) and play(env, 3, expert_policy).success


def test_a_page_that_hangs_is_ended_in_time(env, browser):
    group, browser.timeout_s = browser.pid, 2.0
    began = time.monotonic()
    with pytest.raises(EnvProcessError, match="within 2 s and was killed"):
        browser.call("run", "while (true) {}")
    assert time.monotonic() - began < 20.0
    assert has_ended(group) and play(env, 3, expert_policy).success


def test_errors_of_scripts_are_failures_of_the_browser(env, browser):
    with pytest.raises(EnvProcessError, match="failed in run"):
        browser.call("run", "return missing.name;")
    assert play(env, 3, expert_policy).success


def test_closing_ends_all_processes_and_removes_the_files():
    made = make_env("miniwob-v0")
    made.reset(seed=0)
    browser = made._pages.browser
    group, folder = browser.pid, Path(browser._folder)
    assert folder.is_dir()
    made.close()
    assert has_ended(group) and not folder.exists()


def test_collected_environments_end_their_browsers():
    made = make_env("miniwob-v0")
    made.reset(seed=0)
    group, folder = made._pages.browser.pid, Path(made._pages.browser._folder)
    del made
    gc.collect()
    assert has_ended(group) and not folder.exists()


def test_no_address_but_this_machine_can_be_reached(env, browser):
    script = (
        "const done = arguments[0]; fetch('http://192.0.2.1/')"
        ".then(() => 'reached', error => String(error))"
        ".then(text => { window.outcome = text; });"
    )
    browser.call("run", script)
    end = time.monotonic() + 20.0
    while not (outcome := browser.call("run", "return window.outcome || '';")):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert "Failed to fetch" in outcome


def test_typing_replaces_a_text_and_keys_reach_the_focus(env):
    env.reset(seed=1, options={"task": "login-user"})
    name = next(e.number for e in env.state.elements if e.kind == "field")
    shown = []
    for action in ('"Ann"', f'{name} "ab "', '"\u00e9\\""'):
        number = "" if action.startswith(str(name)) else f"{name} "
        env.step(f"type {number if not shown else ''}{action}")
        shown.append(env.state.elements[name - 1].value)
    assert shown == ["Ann", "ab", 'ab \u00e9"']
    env.step(f'type {name} ""')
    assert env.state.elements[name - 1].value == ""
    env.step('type "abc"')
    env.step("press backspace")
    assert env.state.elements[name - 1].value == "ab"
    env.step("press tab")
    focused = next(e for e in env.state.elements if e.is_focused)
    assert focused.number > name
