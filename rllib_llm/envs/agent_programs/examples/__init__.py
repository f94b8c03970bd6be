"""Programs for ``agent-v0``, each written with another client of OpenAI's API."""
