"""The command ``rllib-llm``, a module per verb; ``rllib-llm --help`` lists them."""
