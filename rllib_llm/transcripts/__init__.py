"""Transcripts of episodes: collected, annotated, selected, read."""
