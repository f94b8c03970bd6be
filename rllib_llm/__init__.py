"""rllib_llm: train LLM agents by reinforcement learning, with RLlib.

Names are imported on first use, so that ``import rllib_llm`` loads neither torch nor
ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rllib_llm.version import __version__

_EXPORTS = {
    "LLMPPO": "rllib_llm.algorithms.ppo.llm_ppo",
    "LLMPPOConfig": "rllib_llm.algorithms.ppo.llm_ppo",
    "GRPO": "rllib_llm.algorithms.grpo.grpo",
    "GRPOConfig": "rllib_llm.algorithms.grpo.grpo",
    "MARFT": "rllib_llm.algorithms.marft.marft",
    "MARFTConfig": "rllib_llm.algorithms.marft.marft",
    "Pref": "rllib_llm.algorithms.pref.pref",
    "PrefConfig": "rllib_llm.algorithms.pref.pref",
    "PromptSearch": "rllib_llm.algorithms.prompt_search.prompt_search",
    "PromptSearchConfig": "rllib_llm.algorithms.prompt_search.prompt_search",
    "RewardModel": "rllib_llm.algorithms.reward_model.reward_model",
    "RewardModelConfig": "rllib_llm.algorithms.reward_model.reward_model",
    "SFT": "rllib_llm.algorithms.sft.sft",
    "SFTConfig": "rllib_llm.algorithms.sft.sft",
    "SelfPlay": "rllib_llm.algorithms.selfplay.self_play",
    "SelfPlayConfig": "rllib_llm.algorithms.selfplay.self_play",
    "LLMPolicy": "rllib_llm.inference.policy",
    "TextEnv": "rllib_llm.envs",
    "ToolEnv": "rllib_llm.envs",
    "TurnResult": "rllib_llm.data.types",
    "StopReason": "rllib_llm.data.types",
    "StopPolicy": "rllib_llm.data.types",
    "register_text_env": "rllib_llm.envs",
    "check_env": "rllib_llm.envs",
    "load_recipe": "rllib_llm.recipes",
    "register_trainables": "rllib_llm.algorithms.registry",
    "setting": "rllib_llm.algorithms.config.declarations",
}

__all__ = [*sorted(_EXPORTS), "__version__"]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'rllib_llm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
