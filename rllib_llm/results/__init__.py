"""Runs as they lie on the disk: recipe, trials, histories, transcripts.

Nothing here imports ray or torch; finished and running runs are read alike.
"""

from rllib_llm.results.reading import Run, Trial, read_run
from rllib_llm.results.transcripts import read_transcripts

__all__ = ["Run", "Trial", "read_run", "read_transcripts"]
