"""Adapters of other libraries' games and tasks to text environments."""
