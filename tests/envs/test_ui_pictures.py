"""Screens of ui_pictures-v0, beside those of ui-v0."""

import numpy as np
import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.envs.ui_apps import APPS, KINDS, LABELS
from rllib_llm.envs.ui_drawing import BACKGROUND, COLOURS, INK, LETTERS_FROM, draw
from rllib_llm.errors import ConfigError
from rllib_llm.pictures.contract import PLACEHOLDER, digest

SPLITS = ("train", "test")
CONFIGS = [{}, {"mode": "step"}, {"plan": True, "checks": 1}, {"apps": ["tabs"]}]


def app_of(name, seed=0):
    return APPS[name](np.random.default_rng(seed))


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("split", SPLITS)
def test_the_expert_solves_the_tasks_of_the_screens_in_text(config, split):
    shown, text = (make_env(name, config) for name in ("ui_pictures-v0", "ui-v0"))
    for seed in range(20):
        one, two = (
            play(env, seed, expert_policy, options={"split": split})
            for env in (shown, text)
        )
        assert one.success and (one.actions, one.rewards) == (two.actions, two.rewards)
        lines, whole = one.observations[0].splitlines(), two.observations[0]
        assert lines == [PLACEHOLDER, whole.splitlines()[0], whole.splitlines()[-1]]


def test_the_infos_of_wrong_actions_are_those_of_the_screens_in_text():
    shown, text = (make_env(name) for name in ("ui_pictures-v0", "ui-v0"))
    for seed in range(10):
        shown.reset(seed=seed), text.reset(seed=seed)
        for _ in range(6):
            action = text.random_action(np.random.default_rng(seed))
            one, two = shown.step(action), text.step(action)
            pictures = one[-1].pop("images", [])
            assert one[1:] == two[1:]
            if one[2]:
                break
            has_effect = not two[0].startswith("No effect.")
            below = "Go on." if has_effect else "No effect."
            assert one[0] == f"{PLACEHOLDER}\n{below}" and len(pictures) == 1


def test_labels_have_distinct_colours():
    assert set(COLOURS) == set(LABELS)
    colours = np.array([*COLOURS.values(), BACKGROUND, INK], float)
    gaps = [np.linalg.norm(a - b) for i, a in enumerate(colours) for b in colours[:i]]
    assert min(gaps) > 60
    form = np.array([COLOURS[e.label] for e in app_of("form").elements()], float)
    assert (
        min(np.linalg.norm(form[i] - form[:i], axis=1).min() for i in (1, 2, 3)) > 120
    )


@pytest.mark.parametrize("pixels", [32, 64, 100])
@pytest.mark.parametrize("name", APPS)
def test_the_middle_of_a_box_has_the_colour_of_its_label(name, pixels):
    app = app_of(name, 1)
    for _ in range(3):
        picture = draw(app.elements(), pixels)
        assert picture.shape == (pixels, pixels, 3) and picture.dtype == np.uint8
        for e in app.elements():
            left, top, right, bottom = (n * pixels / 100 for n in e.box)
            row, column = int((top + bottom) / 2), int(left + 0.4 * (right - left))
            assert tuple(picture[row, column]) == COLOURS[e.label]
            kind = 255 * KINDS.index(e.kind) // 5
            assert tuple(picture[row, int(np.ceil(left))]) == (kind,) * 3
        assert tuple(picture[-1, -1]) == BACKGROUND
        if not app.is_done():
            app.apply(app.next_action())


@pytest.mark.parametrize("pixels", [32, 64, 200])
def test_a_picture_shows_switches_and_typed_words(pixels):
    app, seen = app_of("settings", 2), set()
    app.apply(app.next_action())
    for _ in range(2):
        seen.add(digest(draw(app.elements(), pixels)))
        app.apply(app.elements()[0].tap)
    assert len(seen) == 2 and digest(draw(app.elements(), pixels)) in seen
    form, seen = app_of("form"), {digest(draw(app_of("form").elements(), pixels))}
    form.apply(form.elements()[0].tap)
    seen.add(digest(draw(form.elements(), pixels)))  # in focus
    for word in ("Ana", "Bob", "Eve", "Ida", "Leo", "Max", "Ned", "Uma", "Nao", "ana"):
        form.apply(("type", word))
        seen.add(digest(draw(form.elements(), pixels)))
    assert len(seen) == 12


def test_a_bright_mark_is_a_switch_that_is_on():
    values = set()
    for seed in range(6):
        app = app_of("settings", seed)
        app.apply(app.next_action())
        picture = draw(app.elements(), 100)
        for e in app.elements():
            mark = tuple(picture[e.box[1] + 5, 75])
            assert mark == (BACKGROUND if e.value == "on" else INK)
            values.add(e.value)
    assert values == {"on", "off"}


def test_large_pictures_have_letters():
    elements = app_of("list").elements()
    for pixels, has_letters in ((LETTERS_FROM - 1, False), (LETTERS_FROM, True)):
        picture = draw(elements, pixels)
        for e in elements:
            rows = picture[e.box[1] * pixels // 100 + 2 : e.box[3] * pixels // 100 - 1]
            right = rows[:, pixels // 10 :].reshape(-1, 3)
            assert (len(np.unique(right, axis=0)) > 1) == has_letters


def test_held_out_steps_are_not_in_training():
    env, seen = make_env("ui_pictures-v0", {"mode": "step"}), {}
    for split in SPLITS:
        seen[split] = {
            (text, digest(info["images"][0]))
            for text, info in (
                env.reset(seed=s, options={"split": split}) for s in range(200)
            )
        }
        assert len(seen[split]) > 50
    assert not seen["train"] & seen["test"]


def test_a_restored_episode_shows_the_same_pictures():
    env = make_env("ui_pictures-v0", {"apps": ["settings"]})
    env.reset(seed=0)
    state, shown = env.snapshot(), []
    for _ in range(2):
        *_, info = env.step(" ".join(env.app.elements()[0].tap))
        shown.append(digest(info["images"][0]))
        env.restore(state)
    assert shown[0] == shown[1]


def test_a_refused_action_shows_no_picture():
    env = make_env("ui_pictures-v0", {"apps": ["settings"], "checks": 1})
    env.reset(seed=0)
    text, *_, info = env.step("tap 50 99")
    assert text == "Refused: nothing is there." and "images" not in info


@pytest.mark.parametrize(
    "config",
    [
        *({"pixels": 31}, {"pixels": 513}, {"apps": ["camera"]}, {"mode": "page"}),
        *({"mode": "step", "plan": True}, {"boxes": False}),
    ],
)
def test_impossible_options_are_refused(config):
    with pytest.raises(ConfigError, match=list(config)[-1]):
        make_env("ui_pictures-v0", config).reset(seed=0)
