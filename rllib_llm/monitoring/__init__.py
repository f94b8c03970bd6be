"""Monitoring of a run: health, progress, panel."""
