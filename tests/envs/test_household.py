"""household-v0: ALFWorld's rules, word for word, in AI2-THOR's rooms."""

import os
import subprocess
import sys

import numpy as np
import pytest

from rllib_llm.envs.household import Household
from rllib_llm.envs.household.instances import TASKS, Goal, goals
from rllib_llm.envs.household.rooms import KINDS, house
from rllib_llm.envs.household.world import HELP, NOTHING, World
from rllib_llm.envs.transcript import expert_policy, play, random_policy

KITCHEN = [("Fridge", 0), ("Microwave", 1), ("SinkBasin", 2), ("CounterTop", 3)]


def world(receptacles, things, opened=()):
    return World(house(), receptacles, things, opened)


def observed(room, *commands):
    return [room.do(command) for command in commands]


def test_the_data_are_all_rooms_and_every_task_has_both_splits():
    assert {kind: len(rooms) for kind, rooms in house().rooms.items()} == dict.fromkeys(
        KINDS, 30
    )
    for rooms in house().rooms.values():
        assert [room.unseen for room in rooms] == [False] * 26 + [True] * 4
        for room in rooms:
            assert {type_ for type_, _ in room.receptacles} <= house().fits.keys()
    for task in TASKS:
        assert len(goals(task, "train", False)) > 20
        assert goals(task, "test", True)
        assert goals(task, "test", False)


def test_splits_share_neither_goals_nor_rooms():
    def drawn(split, **config):
        env = Household(config)
        for seed in range(300):
            env.reset(seed=seed, options={"split": split})
            yield env.goal, env.instance.room

    train, test = set(drawn("train")), set(drawn("test"))
    seen = set(drawn("test", test_rooms="seen"))
    trained_goals, trained_rooms = map(set, zip(*train))
    assert len(trained_goals) > 100
    for other in (test, seen):
        assert not trained_goals & {goal for goal, _ in other}
    assert not trained_rooms & {room for _, room in test}
    assert all(room.unseen for _, room in test)
    assert not any(room.unseen for _, room in train | seen)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "config",
    [
        {"max_receptacles": 3, "clutter": 0},
        {"max_receptacles": 8, "clutter": 20, "closed": 0.5},
        {"max_receptacles": 50, "clutter": 40, "max_turns": 110},
    ],
)
def test_the_expert_solves_every_task(task, config):
    env = Household({"tasks": [task], **config})
    for seed in range(40):
        options = {"split": ("train", "test")[seed % 2]}
        transcript = play(env, seed, expert_policy, options=options)
        assert transcript.success, str(transcript)
        assert sum(transcript.rewards) == 1.0
        steps = [info["metrics"]["subgoals"] for info in transcript.infos]
        assert steps == sorted(steps)
        assert steps[-1] == 1.0
        assert all(step < 1.0 for step in steps[:-1])


@pytest.mark.parametrize("task", TASKS)
def test_the_expert_recovers_from_any_mistakes(task):
    env = Household({"tasks": [task], "max_turns": 80})
    for seed in range(40):
        rng = np.random.default_rng(seed)
        env.reset(seed=seed)
        over, turns = False, 0
        while not over:
            turns += 1
            act = env.random_action if turns < 25 else env.expert_action
            _, _, won, cut, _ = env.step(act(rng))
            over = won or cut
        assert won


def test_expert_uses_observed_objects_only():
    """Check that the expert takes only things that an observation has named."""
    env = Household({"max_receptacles": 12, "max_turns": 60})
    for seed in range(60):
        transcript = play(env, seed, expert_policy)
        for turn, action in enumerate(transcript.actions):
            if action.startswith(("take", "use")):
                thing = " ".join(action.split()[1:3])
                sampled_text = " ".join(transcript.observations[1 : turn + 1])
                assert f"a {thing}" in sampled_text


def test_random_play_hardly_ever_succeeds():
    env = Household()
    wins = [play(env, seed, random_policy).success for seed in range(100)]
    assert np.mean(wins) < 0.1


def test_answers_are_worded_as_in_alfworld():
    room = world(
        KITCHEN, [("Apple", 0), ("Apple", 3), ("Mug", 3), ("Knife", 3), ("Egg", 3)]
    )
    assert room.introduction() == (
        "You are in the middle of a room. Looking quickly around you, you see a "
        "countertop 1, a fridge 1, a microwave 1, and a sinkbasin 1."
    )
    assert observed(room, "look", "inventory", "help") == [
        "You are in the middle of a room. Looking quickly around you, you see nothing.",
        "You are not carrying anything.",
        HELP,
    ]
    assert observed(
        room, "go to countertop 1", "look", "take apple 2 from countertop 1"
    ) == [
        "You arrive at countertop 1. On the countertop 1, you see a apple 2, a egg 1, "
        "a knife 1, and a mug 1.",
        "You are facing the countertop 1. Next to it, you see nothing.",
        "You pick up the apple 2 from the countertop 1.",
    ]
    assert observed(room, "inventory", "examine apple 2", "go to fridge 1") == [
        "You are carrying: a apple 2.",
        "There's nothing special about apple 2.",
        "You arrive at fridge 1. The fridge 1 is closed.",
    ]
    assert observed(room, "cool apple 2 with fridge 1", "examine apple 2") == [
        "You cool the apple 2 using the fridge 1.",
        "This is a cold apple 2.",
    ]
    assert observed(
        room, "open fridge 1", "move apple 2 to fridge 1", "examine fridge 1"
    ) == [
        "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1.",
        "You move the apple 2 to the fridge 1.",
        "The fridge 1 is open. In it, you see a apple 2, and a apple 1.",
    ]
    assert observed(room, "close fridge 1", "take apple 1 from fridge 1") == [
        "You close the fridge 1.",
        NOTHING,
    ]


def test_things_get_clean_hot_cool_and_sliced():
    room = world(KITCHEN, [("Potato", 3), ("Cup", 3), ("Knife", 3)])
    observed(room, "go to countertop 1", "take knife 1 from countertop 1")
    assert room.do("slice potato 1 with knife 1") == (
        "You sliced the potato 1 with the knife 1."
    )
    observed(room, "move knife 1 to countertop 1", "take potato 1 from countertop 1")
    looks = [room.do("examine potato 1")]
    for command in (
        "go to microwave 1",
        "heat potato 1 with microwave 1",
        "go to sinkbasin 1",
        "clean potato 1 with sinkbasin 1",
        "go to fridge 1",
        "cool potato 1 with fridge 1",
    ):
        assert room.do(command) != NOTHING
        looks.append(room.do("examine potato 1"))
    assert looks[::2] == [
        "This is a sliced potato 1.",
        "This is a hot sliced potato 1.",
        "This is a hot and clean sliced potato 1.",
        "This is a cool and clean sliced potato 1.",
    ]
    observed(room, "open fridge 1", "move potato 1 to fridge 1", "go to countertop 1")
    observed(room, "take cup 1 from countertop 1")
    assert room.do("examine cup 1") == "This is a normal cup 1. In it, you see nothing."


def test_receptacles_of_one_place_are_reached_together():
    room = world([("Drawer", 5), ("Drawer", 5), ("Desk", 1)], [("Pen", 0), ("Pen", 2)])
    assert room.do("go to drawer 2") == (
        "You arrive at drawer 2. The drawer 2 is closed."
    )
    commands = list(room.commands())
    assert [c for c in commands if c.startswith(("go", "open"))] == [
        "go to desk 1",
        "open drawer 1",
        "open drawer 2",
    ]
    observed(room, "open drawer 1", "open drawer 2", "take pen 1 from drawer 1")
    observed(room, "move pen 1 to drawer 2")
    assert room.do("look") == (
        "You are facing the drawer 2, and drawer 1. Next to it, you see a pen 1."
    )


def test_a_lamp_must_be_used_where_the_thing_is_held():
    room = world([("Desk", 0), ("Bed", 1)], [("DeskLamp", 0), ("Book", 1)])
    goal = Goal("light", "Book", "DeskLamp")
    assert observed(room, "go to desk 1", "use desklamp 1") == [
        "You arrive at desk 1. On the desk 1, you see a desklamp 1.",
        "You turn on the desklamp 1.",
    ]
    assert goal.reached(room) == 0
    assert "take desklamp 1 from desk 1" not in room.commands()
    observed(room, "go to bed 1", "take book 1 from bed 1")
    assert goal.reached(room) == 1
    room.do("go to desk 1")
    assert goal.reached(room) == 2


def test_two_things_count_in_the_same_receptacle_only():
    room = world(
        [("Shelf", 0), ("Shelf", 1), ("Bed", 2)],
        [("Book", 2), ("Book", 2), ("Book", 0)],
    )
    goal = Goal("two", "Book", "Shelf")
    reached = []
    for number, shelf in ((1, 2), (2, 1)):
        for command in (
            "go to bed 1",
            f"take book {number} from bed 1",
            f"go to shelf {shelf}",
            f"move book {number} to shelf {shelf}",
        ):
            assert room.do(command) != NOTHING
        reached.append(goal.reached(room))
    assert reached == [2, 4]


def test_treatment_counts_before_or_after_but_must_last():
    room = world(KITCHEN, [("Apple", 3)])
    goal = Goal("heat", "Apple", "CounterTop")
    assert goal.reached(room) == 0  # it lies there, but cold
    observed(room, "go to countertop 1", "take apple 1 from countertop 1")
    observed(room, "go to microwave 1", "heat apple 1 with microwave 1")
    assert goal.reached(room) == 2
    observed(room, "go to fridge 1", "cool apple 1 with fridge 1")
    assert goal.reached(room) == 1


def test_impossible_commands_change_nothing():
    env = Household()
    env.reset(seed=0)
    before = env.admissible_actions()
    text, reward, terminated, _, info = env.step("go to attic 1")
    assert (text, reward, terminated) == (NOTHING, 0.0, False)
    assert not info["invalid_action"]
    assert env.admissible_actions() == before
    text, _, _, _, info = env.step("I would rather not.")
    assert text == NOTHING
    assert info["invalid_action"]


@pytest.mark.parametrize(
    ("completion", "command"),
    [
        ("go to desk 1", "go to desk 1"),
        ("  Go  to Desk 1.\n", "go to desk 1"),
        (
            "I could open drawer 2, but: take pen 1 from desk 1",
            "take pen 1 from desk 1",
        ),
        ("Action: put pen 1 in desk 1", None),
        ("> move pen 1 to drawer 12", "move pen 1 to drawer 12"),
        ("heat egg 1 with microwave 1", "heat egg 1 with microwave 1"),
        ("slice egg 1 with knife 2", "slice egg 1 with knife 2"),
        ("take pen 1 from", None),
        ("take from desk 1", None),
        ("go to desk", None),
        ("Let me look around.\nlook", "look"),
        ("Action: inventory", "inventory"),
        ("look", "look"),
        ("I look at it", None),
        ("help me", None),
    ],
)
def test_the_last_command_of_a_text_counts(completion, command):
    assert Household().parse(completion) == command


def test_instances_do_not_depend_on_the_process():
    code = (
        "from rllib_llm.envs.household import Household\n"
        "from rllib_llm.envs.transcript import play, random_policy as policy\n"
        "for seed in range(8): print(play(Household({'clutter': 20}), seed, policy))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_options_shape_the_room():
    env = Household({"max_receptacles": 5, "clutter": 0, "closed": 0.0})
    for seed in range(40):
        env.reset(seed=seed)
        assert 1 <= len(env.world.receptacles) <= 5
        assert all(r.accessible for r in env.world.receptacles)
        types = {thing.type for thing in env.world.things}
        assert types <= {env.goal.target, "DeskLamp"}
    env = Household({"clutter": 30})
    counts = []
    for seed in range(40):
        env.reset(seed=seed)
        assert not any(r.is_open for r in env.world.receptacles)
        counts.append(len(env.world.things))
    assert max(counts) > 15
