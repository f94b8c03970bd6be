"""An EnvRunner to evaluate with."""

from __future__ import annotations

from typing import Any

from ray.rllib.core import COMPONENT_RL_MODULE


def local_runner(algo: Any) -> Any:
    """Return an EnvRunner in this process with the Learners' current policy."""
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

    runner = algo.env_runner
    if not isinstance(runner, LLMEnvRunner):  # trained with RLlib's stock runner
        runner = LLMEnvRunner(config=algo.config, worker_index=0)
    weights = algo.learner_group.get_weights()
    runner.set_state({COMPONENT_RL_MODULE: weights})
    return runner
