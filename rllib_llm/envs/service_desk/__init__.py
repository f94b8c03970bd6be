"""A service desk: tools, a policy, and a customer who says only what is asked."""

from rllib_llm.envs.service_desk.env import ServiceDesk

__all__ = ["ServiceDesk"]
