"""Checks of the machine and of a recipe before a run (docs/doctor.md)."""

from rllib_llm.doctor.findings import Finding

__all__ = ["Finding"]
