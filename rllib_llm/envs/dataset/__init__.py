"""Tasks from a data file: ``dataset-v0``."""

from rllib_llm.envs.dataset.env import DatasetEnv

__all__ = ["DatasetEnv"]
