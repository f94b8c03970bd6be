"""Versions of the weights that sampled each token of a turn."""

import numpy as np
import pytest

from rllib_llm.data.types import FinishReason, Turn, token_versions
from rllib_llm.engines.base import SamplingParams
from rllib_llm.engines.requests import Request, Session


def sampled(*versions):
    """Return a turn whose tokens these versions sampled; None: no token."""
    session = Session("s", history=[1, 2])
    request = Request(0, session, SamplingParams(max_new_tokens=9, seed=0), room=9)
    for version, has_token in versions:
        request.begin(version)
        if has_token:
            request.accept(5, -0.5, version)
    return request.result(FinishReason.STOP, 0.0)


def test_a_turn_of_one_version_has_no_changes():
    done = sampled((3, True), (3, True))
    assert done.weights_version == 3 and done.version_changes == ()
    assert done.token_versions.tolist() == [3, 3]


def test_changes_begin_with_the_first_token_of_new_weights():
    done = sampled((3, True), (4, True), (4, True), (7, True))
    assert done.weights_version == 3
    assert done.version_changes == ((1, 4), (3, 7))
    assert done.token_versions.tolist() == [3, 4, 4, 7]


def test_weights_that_sampled_nothing_are_left_out():
    done = sampled((1, False), (2, True), (3, False), (4, True))
    assert done.weights_version == 2 and done.version_changes == ((1, 4),)


@pytest.mark.parametrize("count, expected", [(0, [6]), (3, [6, 6, 8])])
def test_versions_of_a_turn(count, expected):
    turn = Turn(
        prompt_ids=np.zeros(0, np.int32),
        extends=True,
        action_ids=np.zeros(count, np.int32),
        action_logps=np.zeros(count, np.float32),
        finish=FinishReason.STOP,
        weights_seq_no=6,
        version_changes=((2, 8),) if count else (),
    )
    assert turn.token_versions.tolist() == expected


def test_versions_in_any_number():
    assert token_versions(0, ((1, 2), (2, 5)), 4).tolist() == [0, 2, 5, 5]
