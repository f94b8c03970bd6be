"""GiGPO's clusters of turns with pictures."""

from __future__ import annotations

import numpy as np
import pytest
from component_helpers import trajectory

from rllib_llm.advantages.estimators.anchor import anchor, anchors
from rllib_llm.data.turn_table import TurnTable

TEXTS = ["Go on.", "Go on.", "Go on!"]
SHOWN = [
    [("a",), ("b",), ("c",)],
    [("a",), ("c",), ("a", "b")],
]


def table(shown):
    return TurnTable(
        [
            trajectory(
                0, rollout, 0, [0.0, 0.5 * rollout, 1.0], observations=TEXTS, **images
            )
            for rollout, images in enumerate(shown)
        ]
    )


@pytest.mark.parametrize("similarity", [1.0, 0.8])
def test_turns_with_equal_texts_and_other_pictures_are_apart(similarity):
    keys = anchors(table([{"images": images} for images in SHOWN]), similarity)
    # Of the pictures a, b, c and "a b" with texts that are equal, or only similar.
    apart = ["a", "b", "c", "a", "c" if similarity < 1 else "c.", "a b"]
    assert [list(keys == k) for k in keys] == [[x == y for y in apart] for x in apart]


def test_the_return_is_compared_among_equal_pictures():
    made = table([{"images": images} for images in SHOWN])
    returns = made.to_go(0.9)
    expected = np.zeros(6)
    for one, other in ((0, 3), (3, 0)):
        expected[one] = returns[one] - (returns[one] + returns[other]) / 2
    np.testing.assert_allclose(anchor(made, discount=0.9), expected, atol=1e-12)


def test_without_pictures_texts_decide():
    keys = anchors(table([{}, {}]))
    assert keys[0] == keys[1] == keys[3] == keys[4] != keys[2] == keys[5]
    assert table([{}, {}]).images == [""] * 6
