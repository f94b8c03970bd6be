"""Sampled episodes of a run, written into data files."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.config.check_candidates import BEST
from rllib_llm.algorithms.config.saving import (
    CALIBRATIONS,
    CORRECTIONS,
    EXPERT_REPLIES,
    ROLLBACKS,
    SELF_LABELS,
)
from rllib_llm.connectors.fingerprint import tokenizer_fingerprint
from rllib_llm.data.candidates import best_candidates
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.turn_table import Trajectory
from rllib_llm.envs.dataset.row_files import absolute_path
from rllib_llm.filters.apply import Filters
from rllib_llm.offline.calibrations import calibrations
from rllib_llm.offline.corrections import Row, corrections
from rllib_llm.offline.expert_replies import expert_replies
from rllib_llm.offline.rollbacks import rollbacks
from rllib_llm.offline.saved_rows import dump_row, episode_row
from rllib_llm.offline.self_labels import self_labels
from rllib_llm.rllib_bases import RLlibAlgorithm

EPISODES_FOLDER = "episodes"  # in a run folder


class EpisodeSaver:
    """Writes the episodes of each iteration into a file of its own.

    An iteration that is repeated after a resume replaces its file, so that no episode
    is in the files twice.

    Args:
        config: The algorithm's config, with a prepared model.
        folder: Folder of the files; it is created.
        trial: Beginning of the files' names, which differs between trials.
    """

    def __init__(self, config: Any, folder: Path, trial: str) -> None:
        self.folder, self._trial = folder, trial
        self._env = str(config.env)
        self._filters = Filters(config.save_where)
        self._fingerprints = {
            module_id: tokenizer_fingerprint(renderer.tokenizer)
            for module_id, renderer in config.chat_renderers().items()
            if renderer is not None
        }
        self._iteration, self._parts = -1, 0

    def save(self, episodes: SampledEpisodes, iteration: int) -> int:
        """Write the episodes that the filters keep; return their number."""
        return self._write(self._rows(episodes, iteration), iteration)

    def save_rows(self, rows: Sequence[Mapping[str, Any]], iteration: int) -> int:
        """Write rows that are complete; return their number."""
        return self._write([dump_row(row) for row in rows], iteration)

    def save_expert_replies(
        self, env: Any, episodes: SampledEpisodes, iteration: int
    ) -> int:
        """Write the expert's replies at the kept turns; return their number."""
        rows = [
            row
            for trajectory, untrained in self._filtered(episodes)
            for row in expert_replies(
                env,
                episodes[trajectory.episode],
                trajectory,
                frozenset(range(len(trajectory))) - untrained,
            )
        ]
        return self.save_rows(rows, iteration)

    def _write(self, rows: list[str], iteration: int) -> int:
        name = f"{self._trial}-{iteration:06d}"
        if iteration != self._iteration:
            for old in self.folder.glob(f"{name}*.jsonl"):
                old.unlink()
            self._iteration, self._parts = iteration, 0
        if rows:
            suffix = f"-{self._parts}" if self._parts else ""
            _write_whole(self.folder / f"{name}{suffix}.jsonl", rows)
            self._parts += 1
        return len(rows)

    def metrics(self) -> dict[tuple[str, str], float]:
        """Return what the filters measured in their last call."""
        return self._filters.metrics()

    def get_state(self) -> list[Any]:
        """Return the filters' state."""
        return [bound.get_state() for bound in self._filters.bound]

    def set_state(self, state: list[Any]) -> None:
        """Restore :meth:`get_state`'s result."""
        for bound, saved in zip(self._filters.bound, state, strict=True):
            bound.set_state(saved)

    def _rows(self, episodes: SampledEpisodes, iteration: int) -> list[str]:
        kept: set[int] = set()
        untrained: dict[int, dict[int, frozenset[int]]] = {}
        for trajectory, turns in self._filtered(episodes):
            untrained.setdefault(trajectory.episode, {})[trajectory.agent] = turns
            if len(turns) < len(trajectory):
                kept.add(trajectory.episode)
        return [
            dump_row(
                episode_row(
                    episodes[number],
                    self._fingerprints,
                    env=self._env,
                    iteration=iteration,
                    untrained=untrained[number],
                )
            )
            for number in sorted(kept)
        ]

    def _filtered(
        self, episodes: SampledEpisodes
    ) -> Iterator[tuple[Trajectory, frozenset[int]]]:
        """Yield each trajectory and its turns that filters leave out."""
        results, _ = self._filters(episodes.table())
        for trajectory, data, result in zip(
            episodes.trajectories, episodes.data, results, strict=True
        ):
            is_out = result.is_dropped or result.is_masked
            context = frozenset(data.masked_turns) | result.masked_turns
            turns = frozenset(range(len(trajectory)))
            yield trajectory, turns if is_out else context


class SavesEpisodes(RLlibAlgorithm):
    """Mixin of algorithms that write what they sample into files.

    Put it before the Algorithm class in the bases.
    """

    _saver: EpisodeSaver | None = None

    @override(Algorithm)
    def setup(self, config: Any) -> None:
        super().setup(config)
        given = self.config.save_episodes
        if given:
            folder = Path(self.logdir, EPISODES_FOLDER) if given is True else given
            folder = Path(os.path.abspath(absolute_path(str(folder))))
            self._saver = EpisodeSaver(self.config, folder, config.tune_trial)

    def save_episodes(self, episodes: SampledEpisodes) -> None:
        """Write sampled episodes, before filters leave any out of the update."""
        if self._saver is None:
            return
        if self.config.save_as == BEST:
            chosen = [best_candidates(episode) for episode in episodes]
            episodes = SampledEpisodes(reply for each in chosen for reply in each)
        if self.config.save_as in (CORRECTIONS, ROLLBACKS, CALIBRATIONS):
            rows = self._corrected(episodes)
            count = self._saver.save_rows(rows, self.iteration + 1)
        elif self.config.save_as == EXPERT_REPLIES:
            env = self.config.make_text_env()
            count = self._saver.save_expert_replies(env, episodes, self.iteration + 1)
            env.close()
        elif self.config.save_as == SELF_LABELS:
            rows = self._self_labels(episodes)
            count = self._saver.save_rows(rows, self.iteration + 1)
        else:
            count = self._saver.save(episodes, self.iteration + 1)
        self.metrics.log_value("num_episodes_saved", count, reduce="sum")
        for name, value in self._saver.metrics().items():
            self.metrics.log_value(("filters", *name), value, window=1)

    def _corrected(self, episodes: SampledEpisodes) -> list[Row]:
        """Return the rows of corrections, rollbacks or calibrations."""
        config = self.config
        if config.save_as == CORRECTIONS:
            return corrections(episodes.trajectories, config.correction)
        env = config.make_text_env()
        if config.save_as == ROLLBACKS:
            rows = rollbacks(env, episodes.trajectories, config.correction)
        else:
            margin = config.calibration_margin
            rows = calibrations(env, episodes.table(), config.correction, margin)
        env.close()
        return rows

    def _self_labels(self, episodes: SampledEpisodes) -> list[Row]:
        """Return a conversation for each task, and log how much calls help."""
        config = self.config
        rows, decreases = self_labels(
            episodes.trajectories,
            config.answer_template,
            config.call_margin,
            config.chat_renderer(),
            functools.partial(self.learner_group.map_units, "text_logps"),
        )
        self.metrics.log_value(
            ("self_labels", "num_calls"), len(decreases), reduce="sum"
        )
        if decreases:
            helpful = float(np.mean(np.array(decreases) >= config.call_margin))
            for name, value in (
                ("loss_decrease_mean", np.mean(decreases)),
                ("helpful", helpful),
            ):
                key = ("self_labels", name)
                self.metrics.log_value(key, float(value), window=1)
        return rows


def _write_whole(path: Path, rows: list[str]) -> None:
    """Write the rows under the file's name once they are complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, delete=False, encoding="utf-8", suffix=".part"
    ) as part:
        try:
            part.writelines(row + "\n" for row in rows)
        except BaseException:
            os.unlink(part.name)
            raise
    os.replace(part.name, path)
