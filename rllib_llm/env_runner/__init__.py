"""Sampling: many concurrent text episodes around one generation engine."""
