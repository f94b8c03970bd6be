"""Training with EnvRunners that share one torch engine in an actor."""

from __future__ import annotations

import functools
import sys

import numpy as np
import pytest
import ray

from rllib_llm import LLMPPOConfig
from rllib_llm.engines import ActorEngine, TorchEngine
from rllib_llm.modules.loading import load_causal_lm

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}


class Counting(TorchEngine):
    """Counts updates of its weights."""

    updates = 0

    def update_weights(self, named_tensors, version):
        self.updates += 1
        super().update_weights(named_tensors, version)

    def stats(self):
        return super().stats() | {"updates": self.updates}

    def reset_stats(self):
        super().reset_stats()
        self.updates = 0


def build_engine(folder, context):
    return Counting(load_causal_lm(folder), max_slots=16, max_context_tokens=context)


class HostedConfig(LLMPPOConfig):
    """Builds a torch engine in the actor in place of vLLM."""

    def build_generation_engine(self, module):
        context = self.resolved_context_tokens()
        return ActorEngine(
            functools.partial(build_engine, self.resolved_model, context),
            name=self.engine_actor,
            max_context_tokens=context,
            has_tokenizer=True,
        )


@pytest.mark.ray
@pytest.mark.slow
def test_two_runners_train_with_one_engine(ray_session):
    config = (
        HostedConfig()
        .environment("guess_number-v0")
        .language_model(tiny=TINY)
        .generation(max_new_tokens=4, max_context_tokens=256)
        .rollouts(episodes_per_iteration=8)
        .training(lr=1e-2)
        .env_runners(num_env_runners=2, num_envs_per_env_runner=4)
        .evaluation(
            evaluation_interval=3,
            evaluation_duration=4,
            evaluation_before_training=False,  # it would fetch the first weights
        )
    )
    algo = config.build_algo()
    updates = []
    for iteration in range(3):
        result = algo.train()
        sampled = result["env_runners"]["engine"]
        updates.append(sampled["updates"])
        # The engine had the Learner's weights: stale weights would differ by much more.
        assert (
            result["learners"]["default_policy"]["train_inference_mismatch_max"] < 1e-3
        )
        assert (
            sampled["decoded_tokens"] == result["env_runners"]["num_completion_tokens"]
        )
        assert sampled["engine_restarts"] == (iteration == 2)
        if iteration == 1:
            ray.kill(ray.get_actor(algo.config.engine_actor))
    # Once per version, not once per EnvRunner; evaluation uses the same weights.
    assert updates == [1, 1, 1]
    assert np.isfinite(result["evaluation"]["env_runners"]["episode_return_mean"])
    algo.stop()
