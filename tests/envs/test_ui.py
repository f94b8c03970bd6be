"""Screens, apps and single steps of ui-v0."""

import numpy as np
import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.envs.ui_apps import APPS, Element, row_box
from rllib_llm.errors import ConfigError


def app_of(name, seed=0):
    return APPS[name](np.random.default_rng(seed))


def walk(app, limit=8):
    """Return the expert's actions until the goal state."""
    actions = []
    while not app.is_done():
        actions.append(app.next_action())
        assert len(actions) <= limit
        assert app.apply(actions[-1])
    return actions


@pytest.mark.parametrize("name", APPS)
@pytest.mark.parametrize("seed", range(25))
def test_the_expert_reaches_every_goal_state(name, seed):
    app = app_of(name, seed)
    assert not app.is_done()
    assert 1 <= len(walk(app)) <= 3


@pytest.mark.parametrize("name", APPS)
def test_boxes_do_not_overlap_and_a_tap_is_in_its_own(name):
    app = app_of(name, 1)
    for _ in range(3):
        elements = app.elements()
        for x in range(0, 100, 7):
            for y in range(0, 100, 3):
                assert sum(e.has(x, y) for e in elements) <= 1
        for e in elements:
            assert e.has(*(int(a) for a in e.tap[1:]))
        if app.is_done():
            break
        app.apply(app.next_action())


def test_the_corners_of_a_box_belong_to_it():
    assert row_box(2, 1, 2) == (50, 20, 99, 29)
    element = Element("tab", "Work", row_box(2, 1, 2))
    assert element.text == "tab Work [50 20 99 29]" and element.tap == (
        *("tap", "74", "24"),
    )
    assert element.has(50, 20) and element.has(99, 29)
    assert not element.has(49, 20) and not element.has(50, 30)


def test_a_form_is_saved_after_its_last_change():
    app = app_of("form")
    field, text = app.goal
    assert not app.apply(("type", text))  # without focus
    app.apply(app.labelled("Save"))
    app.apply(app.labelled(field))
    app.apply(("type", text))
    assert not app.is_done()
    app.apply(app.labelled("Save"))
    assert app.is_done()


def test_wrong_switches_are_undone():
    app = app_of("settings", 2)
    page, switch = app.goal
    other = next(p for p in app.switches if p != page)
    app.apply(app.labelled(other))
    wrong = next(iter(app.switches[other]))
    app.apply(app.labelled(wrong))
    actions = walk(app)
    assert actions[:2] == [actions[0], ("back",)] and len(actions) == 4
    assert app.switches[other] == app.before[other]
    assert app.switches[page][switch] != app.before[page][switch]


def test_the_goal_switch_beside_a_wrong_one_is_not_the_goal_state():
    app = app_of("settings", 2)
    page, switch = app.goal
    app.switches[page][switch] ^= True
    assert app.is_done()
    for other, switches in app.switches.items():
        for name in switches:
            app.switches[other][name] ^= True
            assert not app.is_done()
            app.switches[other][name] ^= True


def test_a_wrong_deletion_stays():
    app = app_of("tabs", 1)
    wrong = next(i for i in app.tabs["Home"] if i != app.goal)
    app.apply(app.labelled(wrong))
    for _ in range(6):
        app.apply(app.next_action())
    assert not app.is_done()


def test_scrolling_goes_round_and_an_open_item_does_not_scroll():
    app = app_of("list")
    first = app.elements()
    app.scroll()
    assert {e.label for e in app.elements()}.isdisjoint(e.label for e in first)
    app.scroll()
    assert app.elements() == first
    app.apply(first[0].tap)
    assert not app.apply(("scroll",)) and app.apply(("back",)) and not app.back()


def test_an_action_without_effect_shows_the_screen_again():
    env = make_env("ui-v0", {"apps": ["settings"]})
    prompt = env.reset(seed=0)[0]
    shown = "\n".join(prompt.splitlines()[1:-1])
    for action in ("tap 50 99", "type Ana", "scroll", "back"):
        assert env.step(action)[0] == f"No effect.\n{shown}"


@pytest.mark.parametrize(
    ("action", "type_right", "inside", "reward"),
    [
        ("tap 0 10", 1.0, 1.0, 1.0),
        ("tap 99 19", 1.0, 1.0, 1.0),
        ("Tap  5 20", 1.0, 0.0, 0.0),
        ("tap 5 99", 1.0, 0.0, 0.0),
        ("scroll", 0.0, 0.0, 0.0),
        ("not to tap", 0.0, 0.0, 0.0),
    ],
)
def test_a_step_is_rated_by_type_and_box(action, type_right, inside, reward):
    env = make_env("ui-v0", {"mode": "step", "apps": ["list"], "max_turns": 1})
    env.reset(seed=0)
    env.app.page = ""
    env.wanted = env.app.elements()[1].tap
    _, got, terminated, truncated, info = env.step(action)
    assert (got, info["type_right"], info["inside"]) == (reward, type_right, inside)
    assert terminated or truncated
    assert info["success"] == bool(reward)


def test_a_word_is_typed_as_named():
    for action, reward in (("type Eve", 1.0), ("type Ana", 0.0), ("back", 0.0)):
        env = make_env("ui-v0", {"mode": "step"})
        env.reset(seed=0)
        env.wanted = ("type", "Eve")
        *_, info = step = env.step(action)
        assert step[1] == reward and info["inside"] == 0.0
        assert info["type_right"] == float(action != "back")


def test_steps_name_all_four_actions():
    env = make_env("ui-v0", {"mode": "step"})
    wanted, screens = set(), set()
    for seed in range(200):
        screens.add(env.reset(seed=seed)[0])
        wanted.add(env.wanted[0])
        assert play(env, seed, expert_policy).success
    assert wanted == {"tap", "type", "scroll", "back"} and len(screens) > 150


def test_apps_can_be_chosen_and_unknown_ones_are_refused():
    env = make_env("ui-v0", {"apps": ["form"]})
    assert all(env.reset(seed=s)[0].startswith("Set ") for s in range(20))
    for apps in ([], "form", ["form", "camera"]):
        with pytest.raises(ConfigError, match="apps"):
            make_env("ui-v0", {"apps": apps}).reset(seed=0)


def test_the_expert_plans_what_is_left_and_only_the_last_line_is_played():
    env = make_env("ui-v0", {"apps": ["settings"], "plan": True})
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    page, switch = env.app.goal
    plan, action = env.expert_action(rng).splitlines()
    assert plan == f"Plan: tap {page}, tap {switch}."
    assert action == " ".join(env.app.labelled(page))
    assert env.app.page == ""  # planning has changed nothing
    env.step(f"{plan}\n{action}")
    assert env.app.page == page
    assert env.expert_action(rng).startswith(f"Plan: tap {switch}.\n")
    # Names of actions in a plan are not played.
    assert env.step("Plan: back.\nI go.")[-1]["invalid_action"]
    assert env.step("Plan: back.\nscroll")[-1]["parsed_action"] == ("scroll",)
    bare = make_env("ui-v0", {"apps": ["settings"]})
    bare.reset(seed=0)
    assert bare.expert_action(rng) == action


def test_without_boxes_taps_name_labels():
    env = make_env("ui-v0", {"apps": ["settings"], "boxes": False, "checks": 1})
    prompt = env.reset(seed=0)[0]
    page, switch = env.app.goal
    assert "[" not in prompt and f"link {page}\n" in prompt
    assert prompt.endswith("Use 'tap Save', 'type Ana', 'scroll' or 'back'.")
    assert env.step("tap Nothing")[0] == "Refused: nothing is there."
    assert env.expert_action(np.random.default_rng(0)) == f"tap {page}"
    shown, *_, info = env.step(f"I tap {page.lower()}")
    assert f"switch {switch} " in shown and "[" not in shown
    assert info["right_step"] == info["inside"] == 1.0
    env.step(f"tap {switch}")
    assert env.app.is_done()


def test_plans_name_the_fields_and_words_of_a_form():
    env = make_env("ui-v0", {"apps": ["form"], "plan": True})
    env.reset(seed=1)
    field, word = env.app.goal
    planned = env.expert_action(np.random.default_rng(0)).splitlines()[0]
    assert planned == f"Plan: tap {field}, type {word}, tap Save."


def test_an_action_without_effect_is_refused_with_the_reason_and_takes_no_turn():
    env = make_env("ui-v0", {"apps": ["settings"], "checks": 2})
    env.reset(seed=0)
    before = dict(env.app.__dict__)
    assert env.step("tap 50 99")[0] == "Refused: nothing is there."
    assert env.step("type Ana")[0] == "Refused: no field is in focus."
    assert env.turn == 0 and env.app.__dict__ == before
    # The third in a row is carried out, and counts.
    assert env.step("back")[0].startswith("No effect.\n") and env.turn == 1
    assert env.step("back")[0] == "Refused: this is the first page."
    env.step(env.expert_action(np.random.default_rng(0)))
    assert env.turn == 2
    assert env.step("scroll")[0] == "Refused: there is nothing to scroll."
    assert env.refused == 1


def test_checked_episodes_end_after_as_many_turns_that_count():
    env = make_env("ui-v0", {"apps": ["tabs"], "checks": 1, "max_turns": 3})
    env.reset(seed=0)
    ends = [env.step("scroll")[3] for _ in range(6)]
    assert ends == [False] * 5 + [True]


def test_a_right_step_is_the_next_one_of_a_shortest_way_with_its_word():
    env = make_env("ui-v0", {"apps": ["form"]})
    env.reset(seed=1)
    field, word = env.app.goal

    def right(action):
        return env.step(action)[-1]["right_step"]

    assert right("scroll") == 0.0 and right("tap 50 99") == 0.0
    assert right(" ".join(env.app.labelled(field))) == 1.0
    assert right("type Nobody") == 0.0
    env.app.fields[field] = ""
    assert right(f"type {word}") == 1.0
    assert right("what?") == 0.0


@pytest.mark.parametrize(
    "options",
    [
        *({"checks": -1}, {"checks": True}, {"plan": "yes"}),
        {"mode": "step", "checks": 1},
        {"mode": "step", "plan": True},
        {"mode": "step", "boxes": False},
    ],
)
def test_plans_and_checks_that_cannot_work_are_refused(options):
    with pytest.raises(ConfigError, match="checks|plan|boxes"):
        make_env("ui-v0", options).reset(seed=0)
