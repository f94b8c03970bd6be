"""MARFT: PPO for teams, with GAE from agent to agent."""
