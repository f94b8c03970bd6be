"""Adapters: games of other libraries as multi-agent text environments."""
