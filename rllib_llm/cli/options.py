"""Command line options shared by several commands."""

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
        help="Parent of run folders. Default: $RLLIB_LLM_RESULTS, or "
        "~/rllib_llm_results."
    ),
]
Run = Annotated[
    str,
    typer.Argument(help="A run, trial or checkpoint folder, or a run's name."),
]
Picture = Annotated[
    Path | None, typer.Option(help="Draw the curves into this file (.png, .svg, .pdf).")
]
