"""household-v0 against ALFWorld's own engine; needs ``pip install alfworld==0.4.2``."""

import importlib.util
import sys
from pathlib import Path

import pytest

from rllib_llm.envs.household import Household
from rllib_llm.envs.household.instances import TASKS, Goal
from rllib_llm.envs.household.rooms import house
from rllib_llm.envs.household.world import World

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import household_parity

needs_alfworld = pytest.mark.skipif(
    importlib.util.find_spec("alfworld") is None,
    reason="alfworld is not installed; pip install alfworld==0.4.2 builds it",
)


@needs_alfworld
@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("share", [1.0, 0.3])
def test_episodes_match_alfworld(task, share):
    env = Household({"tasks": [task], "max_receptacles": 16, "closed": 0.7})
    tally = household_parity.Tally()
    for seed in range(2):
        household_parity.compare(env, seed, share, tally, steps=30)
        assert not tally.difference, tally.difference
    assert tally.steps > 10
    assert share < 1 or tally.wins == tally.games


@needs_alfworld
@pytest.mark.slow
@pytest.mark.parametrize(
    ("receptacles", "things", "commands"),
    [
        (  # sliced, treated, and looked at in all states
            [("Fridge", 0), ("Microwave", 1), ("SinkBasin", 2), ("CounterTop", 3)],
            [("Potato", 3), ("Knife", 3), ("Cup", 0)],
            """go to countertop 1; take knife 1 from countertop 1; examine knife 1;
            slice potato 1 with knife 1; go to fridge 1; move knife 1 to fridge 1;
            go to sinkbasin 1; clean knife 1 with sinkbasin 1;
            move knife 1 to sinkbasin 1; go to countertop 1;
            take potato 1 from countertop 1; examine potato 1; go to microwave 1;
            heat potato 1 with microwave 1; examine potato 1; go to fridge 1;
            cool potato 1 with fridge 1; examine potato 1; go to sinkbasin 1;
            clean potato 1 with sinkbasin 1; examine potato 1; go to microwave 1;
            heat potato 1 with microwave 1; examine potato 1; open microwave 1;
            move potato 1 to microwave 1; look; close microwave 1; go to fridge 1;
            open fridge 1; take cup 1 from fridge 1; examine cup 1""",
        ),
        (  # two drawers in reach of each other
            [("Drawer", 5), ("Drawer", 5), ("Drawer", 6), ("Desk", 1)],
            [("Pen", 0), ("Pen", 3), ("Book", 1), ("CD", 1)],
            """look; go to drawer 2; look; open drawer 1; open drawer 2;
            take pen 1 from drawer 1; move pen 1 to drawer 2; look;
            take book 1 from drawer 2; move book 1 to drawer 1; look; close drawer 1;
            look; go to desk 1; look; go to drawer 1; examine drawer 2;
            open drawer 1; take book 1 from drawer 1; move book 1 to drawer 2; look;
            take pen 1 from drawer 2; go to drawer 3; open drawer 3;
            move pen 1 to drawer 3; look""",
        ),
    ],
)
def test_unusual_rules_match_alfworld(receptacles, things, commands):
    env = Household()
    env.reset(seed=0)
    env.world = World(house(), receptacles, things)
    # Never reached here.
    env.goal = Goal("put", things[-1][0], receptacles[-1][0])
    tally, reference = household_parity.Tally(), household_parity.Reference(env)
    history = []
    for command in (" ".join(c.split()) for c in commands.split(";")):
        history.append(command)
        completion = env.world.do(command)
        reference.step(command)
        listed = env.admissible_actions()
        household_parity._check(reference, completion, listed, False, history, tally)
        assert not tally.difference, tally.difference


def test_problems_describe_the_room():
    env = Household({"tasks": ["heat"]})
    env.reset(seed=0)
    text = household_parity.problem_facts(env)
    assert text.count("(receptacleAtLocation") == len(env.world.receptacles)
    assert text.count("(inReceptacle") == len(env.world.things)
    assert text.count("(") == text.count(")")
