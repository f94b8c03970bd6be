"""Looks for what would make a run fail or crawl; see docs/doctor.md."""

from rllib_llm.doctor.findings import Finding

__all__ = ["Finding"]
