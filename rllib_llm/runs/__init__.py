"""Runs as they lie on the disk: recipe, trials, histories, transcripts.

Nothing here imports ray or torch; finished and running runs are read alike.
"""

from rllib_llm.runs.reading import Run, Trial, read_run
from rllib_llm.transcripts.reader import latest, read_transcripts, token_column

__all__ = ["Run", "Trial", "latest", "read_run", "read_transcripts", "token_column"]
