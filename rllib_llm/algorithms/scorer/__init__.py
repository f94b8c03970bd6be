"""Scorers: models that learn to score episodes beside the policy that plays them."""
