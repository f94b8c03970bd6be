"""MARFT: PPO for teams, credit passed from message to message."""
