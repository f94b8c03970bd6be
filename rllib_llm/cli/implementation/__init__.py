"""Implementations of the commands; they import torch and ray when they run."""
