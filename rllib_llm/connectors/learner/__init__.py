"""Learner connectors: episodes to masked token rows, old scores and advantages."""
