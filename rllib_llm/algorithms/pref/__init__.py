"""Preference optimisation: DPO and related losses of episodes compared in pairs."""
