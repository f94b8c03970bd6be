"""RLModules of scorers, which exist in Learners only."""

from __future__ import annotations

from rllib_llm.modules.llm_rl_module import LLMRLModule
from rllib_llm.modules.reward_model import RewardRLModule
from rllib_llm.modules.turn_critic import PlaceValueRLModule, TurnCriticRLModule

SCORER_MODULE = "scorer"

# Modules by the setting ``scorer.scores``.
SCORER_CLASSES: dict[str, type[LLMRLModule]] = {
    "head": RewardRLModule,
    "log_ratio": LLMRLModule,
}
# Modules of turn critics by the setting ``scorer.loss``.
TURN_CRITIC_CLASSES: dict[str, type[LLMRLModule]] = {
    "td": TurnCriticRLModule,
    "monte_carlo": PlaceValueRLModule,
    "vtrace": PlaceValueRLModule,
}
