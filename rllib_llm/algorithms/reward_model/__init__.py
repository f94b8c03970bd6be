"""Reward models: scores of episodes, trained on comparisons or outcomes."""
