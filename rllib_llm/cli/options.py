"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Verbose = Annotated[
    bool, typer.Option("--verbose", help="Show the output of Ray and all processes.")
]
Storage = Annotated[
    Path | None,
    typer.Option(
        help="Parent of run folders. Default: $RLLIB_LLM_RESULTS, else "
        "~/rllib_llm_results."
    ),
]
Run = Annotated[
    str,
    typer.Argument(help="A run, trial or checkpoint folder, or a run's name."),
]
