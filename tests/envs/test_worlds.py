"""Text stand-ins of pictures and videos, and the task of judging."""

import dataclasses
import itertools

import pytest
from component_helpers import trajectory

from rllib_llm.components.registry import bind
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.data.types import Task
from rllib_llm.envs import make_env
from rllib_llm.envs.frames import overlap
from rllib_llm.envs.geo import places
from rllib_llm.envs.make import make_playable
from rllib_llm.inference.game import Game

WORLDS = [
    "bandit-v0",
    "canvas-v0",
    "clinic-v0",
    "frames-v0",
    "geo-v0",
    "judging-v0",
    "layout-v0",
    "memory_qa-v0",
    "travel-v0",
    "ui-v0",
]


def test_overlap_is_that_of_sets():
    spans = [(a, b) for a in range(1, 6) for b in range(a, 6)]
    for a, b in itertools.product(spans, spans):
        one, other = set(range(a[0], a[1] + 1)), set(range(b[0], b[1] + 1))
        assert overlap(a, b) == pytest.approx(len(one & other) / len(one | other))


@pytest.mark.parametrize(
    ("answer", "reward"), [("3-6", 0.5), ("5-8", 1.0), ("8", 0.0), ("9-5", 0.0)]
)
def test_an_interval_is_rated_by_its_overlap(answer, reward):
    env = make_env("frames-v0")
    env.reset(seed=0)
    env.spans[0] = (5, 8) if answer != "3-6" else (3, 10)
    *_, info = step = env.step(f"<answer>{answer}</answer>")
    assert step[1] == info["overlap"] == reward
    assert step[2] and info["success"] == (reward == 1.0)


def test_a_crop_shows_at_most_its_number_of_frames():
    env = make_env("frames-v0", {"crop": 2})
    env.reset(seed=0)
    env.things, env.spans = ["cat", "dog", "cup"], [(2, 4), (3, 3), (9, 9)]
    text, _, _, _, info = env.step("<crop>2-9</crop>")
    assert text == "2: cat\n3: cat, dog"
    assert (info["tool"], info["tool_error"]) == ("crop", False)
    text, *_, info = env.step("<crop>9-13</crop>")
    assert text == "Crop from 1 to 12, as 1-4." and info["tool_error"]
    assert env.step("nothing")[4]["tool"] is None


def test_swaps_bring_tiles_into_place():
    env = make_env("canvas-v0")
    env.reset(seed=0)
    env.whole, env.tiles = ["ab", "cd", "ef", "gh"], ["cd", "ab", "ef", "gh"]
    assert env.step("swap 1 1")[4]["invalid_action"]
    assert env.step("swap 1 5")[4]["invalid_action"]
    text, reward, _, _, info = env.step("swap 3 4")
    assert (text, reward, info["placed"]) == ("1:cd 2:ab 3:gh 4:ef", 0.0, 0.0)
    assert env.step("swap 3 4")[4]["placed"] == 0.5
    _, reward, terminated, _, info = env.step("swap 2 1")
    assert (reward, terminated, info["placed"]) == (1.0, True, 1.0)


def test_a_place_is_rated_by_its_smallest_right_name():
    assert len({p.names[2] for p in places(0)}) == 64
    assert len({n for p in places(0) for n in p.names}) == 84
    assert len({c for p in places(0) for c in p.codes}) == 84
    for level, reward in ((0, 0.0), (1, 0.25), (2, 0.5), (3, 1.0)):
        env = make_env("geo-v0")
        env.reset(seed=0)
        named = ["Nowhere", *env.place.names][level]
        *_, info = step = env.step(f"<answer>In {named}.</answer>")
        assert (step[1], info["level"], info["success"]) == (reward, level, level == 3)


def test_marks_are_found_by_looking_and_searching():
    env = make_env("geo-v0")
    env.reset(seed=0)
    country, _, _ = env.place.names
    mark = env.place.codes[0]
    assert env.step("<look>sign</look>")[0] == f"The sign shows {mark}."
    found = env.step(f"<search>{mark.lower()}</search>")[0]
    assert found == f"{mark} is the mark of the country {country}."
    *_, info = step = env.step("<search>AAA</search>")
    assert step[0] == "Nothing found." and info["tool_error"]


def test_the_wrong_answer_has_the_same_relation_and_either_letter():
    env, choices = make_env("judging-v0"), []
    for seed in range(60):
        prompt = env.reset(seed=seed)[0]
        choices.append(env.choice)
        shown = dict(p.split(": ") for p in prompt.split("? ")[1].split(". ")[:2])
        right, wrong = shown[env.choice], shown["A" if env.choice == "B" else "B"]
        fact = env.chain[-1]
        assert right == fact.value != wrong
        facts = env.world.facts.values()
        assert wrong in {f.value for f in facts if f.relation == fact.relation}
    assert 15 < choices.count("A") < 45


def episode_of(name, task, kind):
    """Return what an episode of scripted agents shows, and whether it is solved."""
    game, shown = Game(make_playable(name, {}), task), []
    while not game.is_over:
        shown.append(game.observations)
        game.step({agent: game.move(kind, agent) for agent in game.observations})
    return [*shown, game.final_observation], game.success


@pytest.mark.parametrize("name", WORLDS)
def test_a_failed_task_comes_again_as_it_was(name):
    curriculum = bind("curriculum", {"name": "failed", "prob": 1.0}).call
    tasks = [Task(g, 0, seed=g, options={"split": "train"}) for g in range(10)]
    solved = [episode_of(name, task, "random")[1] for task in tasks]
    rollouts = [
        dataclasses.replace(trajectory(g, rewards=[float(success)]), task=task)
        for g, (task, success) in enumerate(zip(tasks, solved, strict=True))
    ]
    curriculum.observe(TurnTable(rollouts))
    failed = [task for task, won in zip(tasks, solved, strict=True) if not won]
    assert failed
    for number, task in enumerate(failed):
        new = Task(100 + number, 0, seed=1000 + number, options={"split": "train"})
        again = curriculum.assign(new, 1)
        first, repeated, other = (
            episode_of(name, each, "expert")[0] for each in (task, again, new)
        )
        assert repeated == first != other
    # None is left: the next task is a new one.
    assert curriculum.assign(new, 1) == new
