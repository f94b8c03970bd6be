"""Returns or successes of rollouts, for estimators that need shares of success."""

from __future__ import annotations

import numpy as np

from rllib_llm.data.turn_table import TurnTable
from rllib_llm.losses._checks import check_choice

OUTCOMES = ("return", "success")


def outcomes(table: TurnTable, of: str) -> np.ndarray:
    """Return each trajectory's return, or 1 if it was solved and 0 if not. [N]

    If the environment reports success, a rollout that was truncated before it could do
    so has not succeeded.

    Raises:
        ValueError: If ``of`` is unknown, no success is reported, or a return is
            negative.
    """
    check_choice("of", of, OUTCOMES)
    values = table.returns if of == "return" else table.success
    if len(values) and np.isnan(values).all():
        raise ValueError(
            "of='success', but the environment reports no success. Use "
            "of='return', or report success in its info."
        )
    if (values < 0).any():
        raise ValueError(
            f"The return {np.nanmin(values):g} is negative, but a share of success "
            "cannot be. Use of='success', or rewards that are not negative."
        )
    # NaN is a truncated rollout without a reported success; see above.
    return np.nan_to_num(values)
