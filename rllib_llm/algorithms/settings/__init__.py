"""The fluent settings of an algorithm, one file per method."""

from rllib_llm.algorithms.settings.alarms import AlarmSettings
from rllib_llm.algorithms.settings.assign import assign
from rllib_llm.algorithms.settings.evaluation import EvaluationSettings
from rllib_llm.algorithms.settings.fault_tolerance import FaultToleranceSettings
from rllib_llm.algorithms.settings.generation import GenerationSettings
from rllib_llm.algorithms.settings.language_model import LanguageModelSettings
from rllib_llm.algorithms.settings.league import LeagueSettings
from rllib_llm.algorithms.settings.multi_agent import MultiAgentSettings
from rllib_llm.algorithms.settings.rollouts import RolloutSettings
from rllib_llm.algorithms.settings.training import TrainingSettings
from rllib_llm.algorithms.settings.warm_start import WarmStartSettings

__all__ = [
    "AlarmSettings",
    "EvaluationSettings",
    "FaultToleranceSettings",
    "GenerationSettings",
    "LanguageModelSettings",
    "LeagueSettings",
    "MultiAgentSettings",
    "RolloutSettings",
    "TrainingSettings",
    "WarmStartSettings",
    "assign",
]
