"""Sampling of concurrent text episodes with shared generation engines."""
