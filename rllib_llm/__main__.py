"""``python -m rllib_llm`` is the ``rllib-llm`` command."""

from rllib_llm.cli.main import main

main()
