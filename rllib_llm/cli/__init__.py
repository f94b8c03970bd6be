"""The command line: ``rllib-llm train | evaluate | export | list | check``."""
