"""RLModules of scorers, which exist in Learners only."""

from __future__ import annotations

from rllib_llm.modules.llm_rl_module import LLMRLModule
from rllib_llm.modules.reward_model import RewardRLModule

SCORER_MODULE = "scorer"

# Modules by the setting ``scorer.scores``.
SCORER_CLASSES: dict[str, type[LLMRLModule]] = {
    "head": RewardRLModule,
    "log_ratio": LLMRLModule,
}
