"""Connectors: where text becomes tokens, tokens become text, and episodes become rows.

- :mod:`.env_to_module`: conversations to token deltas;
- :mod:`.module_to_env`: sampled ids to text;
- :mod:`.learner`: episodes to masked token rows, values and advantages.
"""
