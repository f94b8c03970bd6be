"""Training with vLLM in the runner's process and in an actor."""

from __future__ import annotations

import pytest

from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.recipes import load_recipe

pytest.importorskip("vllm")
pytestmark = [pytest.mark.slow, pytest.mark.ray]

# vLLM's attention on CPUs needs heads of size 32.
TINY = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 128,
}


@pytest.mark.parametrize(
    ("engine", "num_env_runners", "lora"),
    [("vllm", 0, None), ("vllm_actor", 2, None), ("vllm_actor", 0, {"rank": 4})],
)
def test_two_iterations(ray_session, monkeypatch, engine, num_env_runners, lora):
    calls = []
    tell = LLMAlgorithm._let_engines_sleep
    monkeypatch.setattr(
        LLMAlgorithm,
        "_let_engines_sleep",
        lambda self: (calls.append("sleep"), tell(self)),
    )
    config = load_recipe("frozen_lake_grpo").build_config()
    config.language_model(tiny=TINY, lora=lora)
    config.generation(
        engine=engine,
        engine_sleep=True,
        engine_kwargs={"kv_cache_memory_bytes": 2**26},
    )
    config.rollouts(episodes_per_iteration=16, group_size=4)
    config.sft(demonstrations=250)  # otherwise all returns of a group are equal
    config.training(minibatch_size=16, lr=1e-2)
    config.env_runners(num_env_runners=num_env_runners, num_envs_per_env_runner=8)
    config.evaluation(evaluation_interval=2, evaluation_duration=4)
    algo = config.build_algo()
    for iteration in (1, 2):
        result = algo.train()
        learner = result["learners"]["default_policy"]
        sampled = result["env_runners"]["engine"]
        # The engine had the Learner's weights: a stale copy would differ by much more.
        assert learner["train_inference_mismatch_max"] < 1e-3
        assert (
            sampled["decoded_tokens"] == result["env_runners"]["num_completion_tokens"]
        )
        assert sampled["cached_tokens"] > 0
        assert sampled.get("engine_restarts", 0) == 0
        assert calls == ["sleep"] * iteration
    assert result["evaluation"]["env_runners"]["num_episodes"] == 4
    algo.stop()
