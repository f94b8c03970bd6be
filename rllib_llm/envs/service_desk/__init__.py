"""A service desk with tools, a policy, and a simulated customer."""

from rllib_llm.envs.service_desk.env import ServiceDesk

__all__ = ["ServiceDesk"]
