"""PPO for language agents: RLlib's loss over trained tokens."""
