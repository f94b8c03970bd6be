"""Rooms, collisions and rules of layout-v0."""

import itertools

import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.layout import Box, Rule, physics
from rllib_llm.envs.transcript import expert_policy, play


def squares(box):
    return {
        (x, y)
        for x in range(box.x, box.x + box.width)
        for y in range(box.y, box.y + box.depth)
    }


EVERY = [
    Box(x, y, w, d)
    for x, y in itertools.product(range(4), repeat=2)
    for w, d in itertools.product((1, 2, 3), repeat=2)
]


def test_boxes_collide_where_they_share_a_square():
    for one, other in itertools.product(EVERY, EVERY):
        shared = squares(one) & squares(other)
        assert one.collides(other) == bool(shared)
        assert physics({"bed": one, "desk": other}, 2, 4) == pytest.approx(
            sum(box.fits(4) and not shared for box in (one, other)) / 2
        )


def test_walls_and_sides_are_those_of_the_squares():
    room = set(itertools.product(range(4), repeat=2))
    for box in EVERY:
        assert box.fits(4) == (squares(box) <= room)
        if box.fits(4):
            columns, rows = zip(*squares(box), strict=True)
            ends = (
                min(columns) == 0,
                min(rows) == 0,
                max(columns) == 3,
                max(rows) == 3,
            )
            sides = ("west", "north", "east", "south")
            assert tuple(box.touches(side, 4) for side in sides) == ends
    for one, other in itertools.product(EVERY, EVERY):
        boxes = {"bed": one, "desk": other}
        west = max(x for x, _ in squares(one)) < min(x for x, _ in squares(other))
        north = max(y for _, y in squares(one)) < min(y for _, y in squares(other))
        assert Rule("bed", "west", "desk").holds(boxes, 4) == west
        assert Rule("desk", "east", "bed").holds(boxes, 4) == west
        assert Rule("bed", "north", "desk").holds(boxes, 4) == north
        assert Rule("desk", "south", "bed").holds(boxes, 4) == north


def test_what_is_not_placed_counts_as_wrong():
    box = Box(0, 0, 2, 2)
    assert physics({"bed": box}, 2, 4) == 0.5
    assert not Rule("desk", "west").holds({"bed": box}, 4)
    assert not Rule("bed", "west", "desk").holds({"bed": box}, 4)


def room():
    env = make_env("layout-v0")
    env.reset(seed=0)
    env.solution = {"bed": Box(0, 0, 2, 3), "desk": Box(3, 4, 2, 1)}
    env.rules = [
        Rule("bed", "north"),
        Rule("desk", "east"),
        Rule("bed", "west", "desk"),
    ]
    return env


@pytest.mark.parametrize(
    ("text", "physics_", "rules", "reply"),
    [
        ("bed 0 0, desk 3 4", 1.0, 3, "Good!"),
        ("BED 0 0 then desk 1 1 or rather desk 3 0", 1.0, 3, "Good!"),
        (
            "bed 0 0, desk 1 1",
            0.0,
            1,
            "bed and desk collide; not desk at the east wall; not bed west of desk.",
        ),
        (
            "bed 0 2",
            0.5,
            0,
            "desk is missing; not bed at the north wall; not desk at the east wall; "
            "not bed west of desk.",
        ),
        ("bed 4 0, desk 3 4", 0.5, 2, "bed is outside; not bed west of desk."),
    ],
)
def test_a_layout_is_rated_and_corrected(text, physics_, rules, reply):
    shown, reward, terminated, _, info = room().step(text)
    assert info["physics"] == pytest.approx(physics_)
    assert info["rules"] == pytest.approx(rules / 3)
    assert (shown, reward) == (reply, float(reply == "Good!"))
    assert terminated == (reply == "Good!")


@pytest.mark.parametrize("text", ["", "a bed", "sofa 1 1", "bed 1"])
def test_a_text_without_furniture_of_the_task_is_no_action(text):
    info = room().step(text)[4]
    assert info["invalid_action"] and info["physics"] == info["rules"] == 0.0


@pytest.mark.parametrize("items", [2, 3, 4])
@pytest.mark.parametrize("relations", [0, 2])
def test_every_task_has_a_layout(items, relations):
    env = make_env("layout-v0", {"items": items, "relations": relations, "size": 6})
    for seed in range(20):
        assert play(env, seed, expert_policy).success
        assert len(env.solution) == items <= len(env.rules)
        assert sum(bool(rule.other) for rule in env.rules) <= relations
        assert len({rule.text for rule in env.rules}) == len(env.rules)
