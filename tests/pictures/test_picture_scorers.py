"""Scorers and turn critics that read pictures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from picture_helpers import write_vlm
from picture_runs import TINY, config_of

from rllib_llm import GRPO
from rllib_llm.data.types import TurnResult
from rllib_llm.envs import TextEnv
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.errors import ConfigError, ModelError
from rllib_llm.modules.reward_model import RewardRLModule
from rllib_llm.modules.scorer import SCORER_MODULE

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
OWN = {"name": "environment", "weight": 0.0}
SCORER = {"rewards": [OWN, "scorer"]}
TURN_CRITIC = {
    "advantage_estimator": "turn_critic",
    "drop_zero_variance_groups": False,
}
LOSSES = {
    "outcome": ({"loss": "outcome"}, SCORER, {}),
    "pairwise": ({"loss": "pairwise", "pool": "sum"}, SCORER, {}),
    "return": ({"loss": "return", "pool": "sum"}, SCORER, {}),
    "log_ratio": (
        {"loss": "pairwise", "scores": "log_ratio", "pool": "mean"},
        SCORER,
        {},
    ),
    "td": ({"loss": "td"}, {}, TURN_CRITIC),
    "monte_carlo": ({"loss": "monte_carlo"}, {}, TURN_CRITIC),
    "vtrace": ({"loss": "vtrace"}, {}, TURN_CRITIC),
}


def scored(name, **more):
    scorer, rollouts, training = LOSSES[name]
    config = config_of(model={"model": "tiny-vlm", "tiny": TINY}, **training)
    return config.rollouts(**rollouts).scorer(lr=1e-2, **scorer, **more)


def scorer_module(folder):
    space = UnicodeText()
    config = {
        "model": write_vlm(folder / "vlm"),
        "dtype": "float32",
        "lora": None,
        "value_head": {"detach": False},
        "reference": False,
        "temperature": 1.0,
        "init_seed": 0,
    }
    return RewardRLModule(
        observation_space=space, action_space=space, model_config=config
    )


def scorer_weights(algo):
    module = algo.learner_group._learner.module[SCORER_MODULE].unwrapped()
    return {n: p.detach().clone() for n, p in module.named_parameters()}


@pytest.mark.parametrize("name", LOSSES)
def test_every_scorer_reads_pictures_and_resumes(tmp_path, name):
    algo = scored(name).build_algo()
    algo.train()
    before = scorer_weights(algo)
    algo.save_to_path(tmp_path / "one")
    result = algo.train()
    after = scorer_weights(algo)
    algo.stop()
    assert SCORER_MODULE in result["learners"]
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    # Towers get a gradient only if pictures are computed in the scorer's rows.
    assert any("vision_model" in n for n in changed)
    assert any("text_model" in n for n in changed)
    again = GRPO.from_checkpoint(tmp_path / "one")
    again.train()
    resumed = scorer_weights(again)
    again.stop()
    if name in ("log_ratio", "vtrace"):
        # They read the sampler's log-probabilities, whose last bits differ between runs
        # of several turns, of text as well.
        assert all(torch.allclose(after[n], resumed[n], atol=1e-4) for n in after)
    else:
        assert all(torch.equal(after[n], resumed[n]) for n in after)


class Fate(TextEnv):
    """A bright picture is success, a dark one failure, whatever the reply is."""

    max_turns = 1

    def start(self, rng):
        self.is_bright = bool(rng.integers(2))
        level = (200 if self.is_bright else 40) + int(rng.integers(20))
        return TurnResult(
            "<image> Well?", images=[np.full((32, 32, 3), level, np.uint8)]
        )

    def parse(self, completion):
        return completion or "nothing"

    def reply(self, action):
        right = self.is_bright
        return TurnResult("Over.", float(right), terminated=True, success=right)

    def expert_action(self, rng):
        return str(rng.choice(["left", "right"]))

    random_action = expert_action


@pytest.mark.parametrize("loss", ["outcome", "monte_carlo"])
def test_what_a_picture_alone_tells_is_learned(loss):
    config = scored(loss, num_epochs=4).environment(Fate)
    algo = config.rollouts(episodes_per_iteration=32).build_algo()
    found = [algo.train()["learners"][SCORER_MODULE] for _ in range(12)]
    algo.stop()
    assert found[-1]["outcome_accuracy"] > 0.95
    assert found[0]["outcome_accuracy"] < 0.95


def test_what_does_not_carry_pictures_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"scorer.privileged=True does not carry"):
        scored("outcome", privileged=True).validate()
    causal = scored("outcome").scorer(loss="causal").rollouts(rewards=["environment"])
    with pytest.raises(ConfigError, match="causal"):
        causal.validate()
    module = scorer_module(tmp_path)
    with pytest.raises(ModelError, match="ForSequenceClassification"):
        module.save_model(tmp_path / "out")
