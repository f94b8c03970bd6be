"""Registry of algorithms by name, for YAML and Tune."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib import import_module
from typing import Any

from rllib_llm.registry import Registry


@dataclasses.dataclass(frozen=True)
class AlgorithmEntry:
    """Import paths of an algorithm's classes, so that listing names stays cheap.

    Attributes:
        module: Import path.
        config_name: Name of the AlgorithmConfig class.
        algo_name: Name of the Algorithm class.
        paper: Paper to cite.
        paper: Paper to cite.
        summary: One line for ``rllib-llm list``.
    """

    module: str
    config_name: str
    algo_name: str
    paper: str
    summary: str

    def config_class(self) -> type[Any]:
        """Import and return the config class."""
        return getattr(import_module(self.module), self.config_name)

    def algo_class(self) -> type[Any]:
        """Import and return the Algorithm class."""
        return getattr(import_module(self.module), self.algo_name)


ALGORITHMS: Registry[AlgorithmEntry] = Registry("algorithm")

ALGORITHMS.register(
    "LLMPPO",
    AlgorithmEntry(
        module="rllib_llm.algorithms.ppo.llm_ppo",
        config_name="LLMPPOConfig",
        algo_name="LLMPPO",
        paper="Schulman et al. 2017, arXiv:1707.06347",
        summary="RLlib's PPO over trained tokens, with a critic and token GAE",
    ),
)
ALGORITHMS.register(
    "GRPO",
    AlgorithmEntry(
        module="rllib_llm.algorithms.grpo.grpo",
        config_name="GRPOConfig",
        algo_name="GRPO",
        paper="Shao et al. 2024, arXiv:2402.03300",
        summary="Group-relative advantages, clipped policy loss, no critic",
    ),
)
ALGORITHMS.register(
    "MARFT",
    AlgorithmEntry(
        module="rllib_llm.algorithms.marft.marft",
        config_name="MARFTConfig",
        algo_name="MARFT",
        paper="Liao et al. 2025, arXiv:2504.16129",
        summary="Teams of agents: PPO per message or token, GAE from agent to agent",
    ),
)
ALGORITHMS.register(
    "SelfPlay",
    AlgorithmEntry(
        module="rllib_llm.algorithms.selfplay.self_play",
        config_name="SelfPlayConfig",
        algo_name="SelfPlay",
        paper="Liu et al. 2025, arXiv:2506.24119",
        summary="Games against itself and frozen snapshots, advantages per role",
    ),
)
ALGORITHMS.register(
    "SFT",
    AlgorithmEntry(
        module="rllib_llm.algorithms.sft.sft",
        config_name="SFTConfig",
        algo_name="SFT",
        paper="Ouyang et al. 2022, arXiv:2203.02155",
        summary="Imitation of scripted experts, before RL or instead of it",
    ),
)
ALGORITHMS.register(
    "Pref",
    AlgorithmEntry(
        module="rllib_llm.algorithms.pref.pref",
        config_name="PrefConfig",
        algo_name="Pref",
        paper="Rafailov et al. 2023, arXiv:2305.18290",
        summary="DPO and related losses on pairs of sampled or stored episodes",
    ),
)
ALGORITHMS.register(
    "RewardModel",
    AlgorithmEntry(
        module="rllib_llm.algorithms.reward_model.reward_model",
        config_name="RewardModelConfig",
        algo_name="RewardModel",
        paper="Ouyang et al. 2022, arXiv:2203.02155",
        summary="A model that scores conversations, from comparisons or outcomes",
    ),
)
ALGORITHMS.register(
    "PromptSearch",
    AlgorithmEntry(
        module="rllib_llm.algorithms.prompt_search.prompt_search",
        config_name="PromptSearchConfig",
        algo_name="PromptSearch",
        paper="cf. Cai et al. 2025, arXiv:2510.08191",
        summary="Texts before prompts change by what is sampled, weights do not",
    ),
)


def register_algorithm(
    name: str, *, paper: str, summary: str
) -> Callable[[type[Any]], type[Any]]:
    """Register a config class under ``name`` (decorator).

    The class's default ``algo_class`` is the Algorithm.
    """

    def decorate(config_class: type[Any]) -> type[Any]:
        algo = config_class().algo_class
        ALGORITHMS.register(
            name,
            AlgorithmEntry(
                module=config_class.__module__,
                config_name=config_class.__name__,
                algo_name=algo.__name__,
                paper=paper,
                summary=summary,
            ),
        )
        _register_with_tune(name, algo)
        return config_class

    return decorate


def register_trainables() -> None:
    """Register all algorithms with Tune, by name: ``tune.Tuner("LLMPPO", ...)``."""
    for name in ALGORITHMS.names():
        _register_with_tune(name, ALGORITHMS.get(name).algo_class())


def _register_with_tune(name: str, algo: type[Any]) -> None:
    from ray import tune

    tune.register_trainable(name, algo)
