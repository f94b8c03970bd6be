"""SFT's whole gradient against a loop over tokens, prompt tokens included."""

from __future__ import annotations

from gradient_reference import SecondStep, assert_gradient, chains_of
from learner_helpers import make_learner
from test_gradient_grpo import with_advantages
from test_sft import sft

from rllib_llm.offline.prepare_model import prepare_language_model

OBSERVED = 0.3


def test_the_whole_gradient():
    config = sft(
        observation_weight=OBSERVED,
        loss_agg_mode="seq-mean-token-mean",
        micro_batch_tokens=64,
    )
    config.validate()
    config.resolved_model = prepare_language_model(config)
    episodes = with_advantages()
    step = SecondStep(make_learner(config), episodes)
    (after,) = step.after.values()
    terms = {"said": 0.0, "read": 0.0}
    chains = chains_of(episodes)
    for chain in chains:
        share = 1.0 / chain.count / len(chains)
        sampled = {(token.row, token.column) for token in chain.tokens}
        for row, ids in enumerate(chain.rows):
            logps = after.row_logps(ids)
            for column in range(1, len(ids)):  # the first token follows nothing
                nll = -logps[column - 1][ids[column]]
                if (row, column) in sampled:
                    terms["said"] = terms["said"] + share * nll
                else:
                    terms["read"] = terms["read"] + share * OBSERVED * nll
    assert_gradient(step.gradients["default_policy"], after, terms)
