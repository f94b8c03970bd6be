"""Optimal policy of environments on Gymnasium's toy-text engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

Table = Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]
"""Gymnasium's ``P``: probability, next state, reward and end by state and action."""

_MOST_SWEEPS = 100_000
_TOLERANCE = 1e-10


def action_values(table: Table) -> np.ndarray:
    """Return the optimal undiscounted value of each action, by value iteration.

    Every state must be able to reach an end, and every step before it must have a
    negative reward; otherwise the undiscounted sums diverge.

    Args:
        table: Transitions, with states and actions counted from 0.

    Returns:
        Expected return until the end. [states, actions]

    Raises:
        ValueError: If the values do not converge.
    """
    outcomes = [[table[s][a] for a in range(len(table[s]))] for s in range(len(table))]
    widest = max(len(cases) for row in outcomes for cases in row)
    # Padding with terminal transitions of probability 0 makes the table rectangular.
    nothing = (0.0, 0, 0.0, True)
    padded = np.array(
        [[[*c, *[nothing] * (widest - len(c))] for c in row] for row in outcomes],
        dtype=float,
    )  # [S, A, K, 4]
    chance, following, reward, done = np.moveaxis(padded, -1, 0)  # [S, A, K] each
    following, goes_on = following.astype(int), chance * (1 - done)
    expected_reward = (chance * reward).sum(-1)  # [S, A]
    values = np.zeros(len(outcomes))
    for _ in range(_MOST_SWEEPS):
        gains = expected_reward + (goes_on * values[following]).sum(-1)
        if np.abs(gains.max(1) - values).max() < _TOLERANCE:
            return gains
        values = gains.max(1)
    raise ValueError(
        f"Values did not converge in {_MOST_SWEEPS} sweeps. Every state needs a way to "
        "an end, and rewards before it must be negative."
    )
