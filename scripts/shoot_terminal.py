"""Picture of a run in the terminal, for docs/live.md.

    python scripts/shoot_terminal.py guess_number_grpo docs/terminal.svg --after 8

Trains the recipe and writes the terminal's content some seconds after an iteration: the
lines so far and the panel below them.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from pathlib import Path
from typing import Any

from ray import tune
from rich.console import Console

from rllib_llm import load_recipe
from rllib_llm.cli.session import quiet_loggers, ray_session
from rllib_llm.monitoring.panel import LivePanel
from rllib_llm.monitoring.progress_line import ProgressLine
from rllib_llm.recipes.tuning import make_tuner

WIDTH = 150


class Camera(ProgressLine):
    """A progress line that writes its content to a file."""

    def __init__(self, out: Path, after: int, wait_s: float, total: int):
        super().__init__(total_iterations=total)
        self.out, self.after, self.wait_s = out, after, wait_s
        self.results, self.taken = 0, False

    def setup(self, *args: Any, **info: Any) -> None:
        """Set up a terminal that writes to a file."""
        super().setup(*args, **info)
        console = Console(
            file=io.StringIO(), record=True, force_terminal=True, width=WIDTH
        )
        self._panel = LivePanel(self.total_iterations, console)

    def on_trial_result(self, *args: Any, **info: Any) -> None:
        """Count the iterations."""
        super().on_trial_result(*args, **info)
        self.results, self.at = self.results + 1, time.monotonic()

    def on_step_begin(self, *args: Any, **info: Any) -> None:
        """Take the picture during the next iteration."""
        if self.taken or self.results < self.after:
            return
        if time.monotonic() - self.at >= self.wait_s:
            console = self._panel._console
            console.print(self._panel.render())
            console.save_svg(str(self.out), title="rllib-llm train")
            self.taken = True


def main() -> None:
    """Train and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("out", type=Path)
    parser.add_argument("--after", type=int, default=8, help="iterations before it")
    parser.add_argument("--wait", type=float, default=0.5, help="seconds after that")
    given = parser.parse_args()
    quiet_loggers()
    stop = f"stop.training_iteration={given.after + 1}"
    recipe = load_recipe(given.recipe, [stop])
    recipe.validate()
    camera = Camera(given.out, given.after, given.wait, recipe.total_iterations)
    with ray_session(verbose=False), tempfile.TemporaryDirectory() as folder:
        results = make_tuner(recipe, folder, callbacks=[camera]).fit()
    assert isinstance(results, tune.ResultGrid) and camera.taken, results.errors


if __name__ == "__main__":
    main()
