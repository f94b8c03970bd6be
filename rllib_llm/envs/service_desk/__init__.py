"""A service desk with tools, a policy, and a simulated customer."""

from rllib_llm.envs.service_desk.env import ServiceDesk
from rllib_llm.envs.service_desk.talk import ServiceTalk

__all__ = ["ServiceDesk", "ServiceTalk"]
