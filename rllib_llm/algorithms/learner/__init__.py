"""Learners of language-model policies."""
