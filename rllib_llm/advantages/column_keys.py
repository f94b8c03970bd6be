"""Integer keys of combined columns, e.g. of an agent's messages in an episode."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from rllib_llm.losses._checks import check_same_shape, check_vector


def combined_keys(*columns: Sequence[Hashable] | np.ndarray) -> np.ndarray:
    """Return one integer per distinct combination of the columns' entries.

    ``combined_keys(episodes, agents)`` numbers each agent's part of each episode;
    ``combined_keys(tasks, turns, agents)`` is AT-GRPO's group.

    Args:
        columns: Integers or strings, one entry per message each. [M]

    Returns:
        Keys from 0 without gaps, in the order of the combinations sorted by the first
        column, then by the second, and so on. [M]

    Raises:
        ValueError: If there is no column, or the columns differ in length.

    Example:
        >>> combined_keys([7, 7, 3], ["b", "a", "b"])
        array([2, 1, 0])
    """
    if not columns:
        raise ValueError(
            "combined_keys() got no columns. It needs at least one. Pass a column."
        )
    arrays = {f"column {i}": np.asarray(column) for i, column in enumerate(columns)}
    for name, array in arrays.items():
        check_vector(name, array)
    check_same_shape(**arrays)
    # Built column by column, as digits of a number in mixed radix.
    keys = np.zeros(len(arrays["column 0"]), dtype=np.int64)
    for array in arrays.values():
        distinct, index = np.unique(array, return_inverse=True)
        # Renumbered after each column, so that the product cannot overflow.
        _, keys = np.unique(keys * len(distinct) + index, return_inverse=True)
    return keys


def key_means(values: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return the mean of the values under each key.

    Args:
        values: Finite numbers. [M]
        keys: From :func:`combined_keys`. [M]

    Returns:
        Mean per key. [keys.max() + 1]
    """
    # Keys have no gaps, so no count is 0.
    return np.bincount(keys, values) / np.bincount(keys)
