"""Reading of runs from disk: recipes, trials, histories and transcripts.

Importing it loads neither ray nor torch. Runs can be read while they train.
"""

from rllib_llm.runs.reading import Run, Trial, read_run
from rllib_llm.transcripts.reader import latest, read_transcripts, token_column

__all__ = ["Run", "Trial", "latest", "read_run", "read_transcripts", "token_column"]
