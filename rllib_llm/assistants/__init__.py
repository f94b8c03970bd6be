"""Assistants: models or functions that answer questions about sampled episodes."""
