"""Web pages for environments: a Chromium of its own, elements as text, actions."""
