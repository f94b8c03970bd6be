"""PPO for language agents: RLlib's own loss over trained tokens."""
