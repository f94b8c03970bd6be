"""Requests and responses in the form of OpenAI's API, for every server of policies."""
