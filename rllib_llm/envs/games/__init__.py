"""Multi-agent games, one per file."""
