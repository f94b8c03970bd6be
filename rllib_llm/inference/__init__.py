"""Inference with trained policies: conversations, games and matches."""
