"""Evaluation of trained policies and of teams with exchanged policies."""
