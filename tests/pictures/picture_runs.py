"""A small run with pictures, shared by tests of whole iterations."""

from __future__ import annotations

from picture_helpers import picture

from rllib_llm import GRPOConfig
from rllib_llm.data.types import TurnResult
from rllib_llm.envs import TextEnv

TINY = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}
MISMATCH = "train_inference_mismatch_max"


class ThreeShots(TextEnv):
    """Shows one picture, none, then two; rewards the letter that follows from them."""

    max_turns = 3

    def start(self, rng):
        self.seed_of_pictures = int(rng.integers(1000))
        return TurnResult("<image> Which?", images=[self._shot(0)])

    def _shot(self, number):
        return picture(self.seed_of_pictures + number, 20 + 6 * number, 32)

    def parse(self, completion):
        return completion or "nothing"

    def reply(self, action):
        reward = float(len(action) % 2)
        if self.turn == 1:
            return TurnResult("No picture. Which?", reward)
        if self.turn == 2:
            images = [self._shot(1), self._shot(2)]
            return TurnResult("Now <image> or <image>?", reward, images=images)
        return TurnResult("Over.", reward, terminated=True, success=True)

    def expert_action(self, rng):
        return str(rng.choice(["left", "right"]))

    random_action = expert_action


def config_of(kind=GRPOConfig, env=ThreeShots, model=None, **training):
    rollouts = {"episodes_per_iteration": 8}
    if kind is GRPOConfig:
        rollouts["group_size"] = 4
    return (
        kind()
        .environment(env)
        .language_model(**(model or {"model": "tiny-vlm", "tiny": TINY}))
        .generation(max_new_tokens=5)
        .rollouts(**rollouts)
        .training(lr=1e-2, **training)
        .env_runners(num_envs_per_env_runner=8)
        .debugging(seed=3)
    )


def learned(result):
    return result["learners"]["default_policy"]


def weights_of(algo):
    module = algo.learner_group._learner.module["default_policy"].unwrapped()
    return {n: p.detach().clone() for n, p in module.named_parameters()}
