"""Type names that several packages use, for annotations under TYPE_CHECKING alone.

Importing this module at run time would load RLlib and all algorithms.
"""

from __future__ import annotations

from typing import TypeAlias

import gymnasium as gym
import torch
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_llm.algorithms.algorithm import LLMAlgorithm as LLMAlgorithm
from rllib_llm.algorithms.config.llm_config import LLMConfigMixin
from rllib_llm.envs.mixture import MultiAgentMixture
from rllib_llm.envs.multi_agent_adapter import MultiAgentAdapter

# A config of this package: the mixin declares the attributes of RLlib's AlgorithmConfig
# that the package reads.
LLMConfig = LLMConfigMixin
Episode: TypeAlias = SingleAgentEpisode | MultiAgentEpisode
# An environment as EnvRunners play it: a Gymnasium one around a TextEnv, or an adapter.
PlayableEnv: TypeAlias = gym.Env | MultiAgentAdapter | MultiAgentMixture
# Observation and action space, by ModuleID or by a name of RLlib's.
Spaces: TypeAlias = dict[str, tuple[gym.Space, gym.Space]]
Device: TypeAlias = torch.device | str
