"""Trained policies at work: conversations, and episodes step by step."""
