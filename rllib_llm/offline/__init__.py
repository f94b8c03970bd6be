"""Learning from recorded or scripted behaviour."""
