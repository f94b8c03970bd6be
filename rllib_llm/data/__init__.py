"""Containers: turns, episodes, batch columns, turn tables."""
