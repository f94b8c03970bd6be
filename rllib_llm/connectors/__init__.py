"""Connectors between text and tokens, and from episodes to training rows.

- :mod:`.env_to_module`: conversations to token deltas;
- :mod:`.module_to_env`: sampled ids to text;
- :mod:`.learner`: episodes to masked token rows, values and advantages.
"""
