"""Trained policies and teams behind an OpenAI-compatible API."""
