"""Values at a message's first token with MARFT's action level."""

import pytest
import torch
from ray.rllib.core.columns import Columns
from team_helpers import Pair, Run, batches, team_config

from rllib_llm.data import columns


@pytest.mark.parametrize("message_logp", ["mean", "sum"])
def test_first_tokens_stand_for_whole_messages(message_logp):
    settings = {"level": "action", "message_logp": message_logp, "ref_kl_coeff": 0.1}
    run = Run(team_config(Pair, training=settings))
    batch = batches(run.learner, run.sample(3))["a"]
    generator = torch.Generator().manual_seed(0)
    shape = batch[Columns.ACTION_LOGP].shape
    scores = torch.randn((*shape, 2), generator=generator)
    batch[columns.REF_LOGP] = torch.randn(shape, generator=generator)
    batch[Columns.ADVANTAGES] = torch.randn(shape, generator=generator)
    made, out = run.learner._as_messages(batch, {Columns.ACTION_DIST_INPUTS: scores})
    seen = 0
    for row, turns in enumerate(batch[columns.TURN_IDS].tolist()):
        for turn in sorted(set(turns) - {-1}):
            at = [t for t, x in enumerate(turns) if x == turn]
            first, count = at[0], len(at)
            old = batch[Columns.ACTION_LOGP][row, at]
            ratio = (scores[row, at, 0] - old).sum()
            ratio = ratio / (count if message_logp == "mean" else 1)
            new = out[Columns.ACTION_DIST_INPUTS][row, first]
            apart = (scores[row, at, 0] - batch[columns.REF_LOGP][row, at]).mean()
            for got, wanted in (
                (new[0] - old[0], ratio),
                (new[1], scores[row, at, 1].mean()),
                (
                    made[Columns.ADVANTAGES][row, first],
                    batch["advantages"][row, at].mean(),
                ),
                (new[0] - made[columns.REF_LOGP][row, first], apart),
            ):
                torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
            assert made[Columns.LOSS_MASK][row, at].tolist() == [True] + [False] * (
                count - 1
            )
            seen += 1
    assert seen == int(made[Columns.LOSS_MASK].sum()) > 3
