"""Replay on the driver: what is kept of an iteration, what joins the update."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import pyarrow.fs
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.utils.annotations import override
from ray.rllib.utils.checkpoints import Checkpointable

from rllib_llm import json_state
from rllib_llm.advantages.estimators.recent_returns import History
from rllib_llm.algorithms.config.schedules import value_at
from rllib_llm.data.episode_data import REPLAY, agent_episodes, episode_data, task_of
from rllib_llm.data.types import StopPolicy
from rllib_llm.errors import CheckpointError
from rllib_llm.filters.apply import Filters
from rllib_llm.offline.episode_store import EpisodeStore
from rllib_llm.rllib_bases import RLlibAlgorithm
from rllib_llm.seeding import stable_seed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyarrow.fs import FileSystem

    from rllib_llm.algorithms.grpo.grpo import GRPOConfig
    from rllib_llm.data.episode_data import EpisodeData
    from rllib_llm.data.sampled_episodes import SampledEpisodes
    from rllib_llm.offline.self_labels import TextLogps

REPLAY_STATE = "llm_replay"  # component, and folder of a checkpoint
_INDEX_FILE, _LINES_FILE = "index.json", "episodes.jsonl"


class ReplayBuffer(Checkpointable):
    """Earlier episodes of a run, as ``replay`` says.

    Args:
        config: An algorithm's config with ``replay``.
    """

    def __init__(self, config: GRPOConfig) -> None:
        self.config = config
        self.store = EpisodeStore(
            capacity_tokens=config.replay_capacity_tokens,
            max_age=config.replay_max_age,
            draw=config.replay_draw,
            alpha=config.replay_alpha,
            seed=config.seed or 0,
        )
        self._filters = Filters(config.replay_keep, turns_may_be_masked=False)
        self._stop_policies = config.resolved_stop_policies()
        # By environment: rewards of a mixture may have different scales.
        self._recent: dict[str | None, History] = {}

    def observe(self, episodes: SampledEpisodes) -> None:
        """Add the groups' mean returns to the baseline of rebased advantages."""
        if self.config.replay_advantages != "rebased":
            return
        places: dict[str | None, list[int]] = {}
        for index, trajectory in enumerate(episodes.trajectories):
            places.setdefault(trajectory.task.environment, []).append(index)
        for environment, indices in places.items():
            self._history_of(environment)(episodes.table_of(indices))

    def draw(
        self, iteration: int, text_logps: TextLogps | None = None
    ) -> tuple[list[Any], dict[str, float]]:
        """Return the episodes that join an update, and metrics by name.

        Args:
            iteration: The iteration of the update.
            text_logps: Returns the policy's log-probabilities of trained tokens, of
                which bounds of the perplexity are read.
        """
        self.store.expire(iteration)
        config = self.config
        count = config.replay_episodes_per_iteration
        rng = np.random.default_rng(
            stable_seed(config.seed or 0, REPLAY_STATE, iteration)
        )
        if rng.random() >= value_at(config.replay_probability, iteration):
            count = 0
        episodes, ages = self.store.draw(count, iteration, self._prepare)
        metrics = {}
        if config.bounds_perplexity and episodes:
            assert text_logps is not None
            joins = self._within_bounds(_perplexities(episodes, text_logps))
            metrics["perplexity_kept_frac"] = float(joins.mean())
            kept = np.flatnonzero(joins)
            episodes, ages = [episodes[i] for i in kept], [ages[i] for i in kept]
        metrics |= {
            "num_episodes_drawn": float(len(episodes)),
            "num_episodes_stored": float(len(self.store)),
            "num_tokens_stored": float(self.store.num_tokens),
        }
        if ages:
            metrics["age_mean"] = float(np.mean(ages))
        return episodes, metrics

    def _within_bounds(self, perplexities: np.ndarray) -> np.ndarray:
        """Return which episodes may join; NaN, without trained tokens, does not."""
        low, high = self.config.replay_min_perplexity, self.config.replay_max_perplexity
        above = perplexities >= (0.0 if low is None else low)
        joins: np.ndarray = above & (perplexities <= (np.inf if high is None else high))
        return joins

    def add(self, episodes: SampledEpisodes, iteration: int) -> None:
        """Keep this iteration's episodes; they can be drawn from the next one on."""
        results, _ = self._filters(episodes.table())
        kept = {
            trajectory.episode
            for trajectory, result in zip(episodes.trajectories, results, strict=True)
            if not (result.is_dropped or result.is_masked)
        }
        candidates = (episodes[number] for number in sorted(kept))
        usable = self._is_positive if self.config.replay_positive_only else _is_trained
        if self.config.replay_keep_masked:
            usable = self._has_masked
        self.store.add(filter(usable, candidates), iteration)

    def _has_masked(self, episode: Any) -> bool:
        """Return whether a filter has masked an agent's part that has advantages."""
        return any(
            data.advantage is not None and self._is_masked_by_filter(data)
            for data, _ in _parts(episode)
        )

    def _is_masked_by_filter(self, data: EpisodeData) -> bool:
        if data.stop_policy is not StopPolicy.MASK:
            return False
        return self._stop_policy_of(data) is not StopPolicy.MASK

    def _stop_policy_of(self, data: EpisodeData) -> StopPolicy:
        """Return the treatment that follows from the reason of the episode's end."""
        if data.stop_reason is None:
            return StopPolicy.TRAIN
        return self._stop_policies[data.stop_reason]

    def _prepare(self, episode: Any) -> bool:
        """Set source and advantages of a drawn episode; return whether to use it."""
        rebased = self.config.replay_advantages == "rebased"
        environment = task_of(episode).environment
        for data, part in _parts(episode):
            data.source = REPLAY
            if self.config.replay_keep_masked:
                # The other agents' parts have been trained already.
                is_left_over = self._is_masked_by_filter(data)
                policy = self._stop_policy_of(data) if is_left_over else StopPolicy.MASK
                data.stop_policy = policy
            if rebased:
                means = self._history_of(environment).means.get(
                    (part.agent_id,), (0.0,)
                )
                # One number for all turns, as of the return that it is made from.
                data.advantage = part.get_return() - float(np.median(means))
        episode_data(episode).source = REPLAY
        return not self.config.replay_positive_only or self._is_positive(episode)

    @staticmethod
    def _is_positive(episode: Any) -> bool:
        return _is_trained(episode) and all(
            np.mean(data.advantage) > 0
            for data, _ in _parts(episode)
            if data.advantage is not None
        )

    def _history_of(self, environment: str | None) -> History:
        if environment not in self._recent:
            self._recent[environment] = History(window=self.config.replay_window)
        return self._recent[environment]

    # Checkpoints ---------------------------------------------------------------------

    def _index(self) -> dict[str, Any]:
        recent = [[name, each.get_state()] for name, each in self._recent.items()]
        return {
            "episodes": self.store.get_index(),
            "recent": recent,
            "filters": [bound.get_state() for bound in self._filters.bound],
        }

    def _set_index(self, index: dict[str, Any]) -> None:
        self.store.set_index(index["episodes"])
        self._recent = {}
        for name, state in index["recent"]:
            self._history_of(name).set_state(state)
        for bound, state in zip(self._filters.bound, index["filters"], strict=True):
            bound.set_state(state)

    @override(Checkpointable)
    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return everything in memory; checkpoints on disk copy the file."""
        stream = pyarrow.BufferOutputStream()
        index = self._index()
        self.store.write_lines(stream)
        return {**index, "lines": stream.getvalue().to_pybytes()}

    @override(Checkpointable)
    def set_state(self, state: dict[str, Any]) -> None:
        self._set_index(state)
        self.store.read_lines(pyarrow.BufferReader(state["lines"]))

    @override(Checkpointable)
    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (self.config,), {}

    @override(Checkpointable)
    def save_to_path(
        self,
        path: str | Path | None = None,
        *,
        state: Any = None,
        filesystem: FileSystem | None = None,
        **_: Any,
    ) -> str:
        """Write index and episodes; the latter are never all in memory."""
        target = filesystem or pyarrow.fs.LocalFileSystem()
        target.create_dir(str(path), recursive=True)
        text = json_state.dumps(self._index(), "replay")
        with target.open_output_stream(f"{path}/{_INDEX_FILE}") as file:
            file.write(text.encode("ascii"))
        with target.open_output_stream(f"{path}/{_LINES_FILE}") as file:
            self.store.write_lines(file)
        return str(path)

    @override(Checkpointable)
    def restore_from_path(
        self,
        path: str | Path | None,
        *,
        component: str | None = None,
        filesystem: FileSystem | None = None,
        **_: Any,
    ) -> None:
        """Restore what :meth:`save_to_path` wrote.

        Raises:
            CheckpointError: If the index is damaged.
        """
        source = filesystem or pyarrow.fs.LocalFileSystem()
        with source.open_input_stream(f"{path}/{_INDEX_FILE}") as file:
            text = file.read().decode("ascii")
        try:
            self._set_index(json_state.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path}/{_INDEX_FILE} is damaged: {error}. Use another checkpoint."
            ) from error
        with source.open_input_stream(f"{path}/{_LINES_FILE}") as file:
            self.store.read_lines(file)


class ReplaysEpisodes(RLlibAlgorithm):
    """Mixin of algorithms whose updates earlier episodes join.

    Put it before the Algorithm class in the bases.
    """

    _buffer: ReplayBuffer | None = None

    if TYPE_CHECKING:

        def sample_groups(self, num_groups: int) -> SampledEpisodes: ...

    @override(Algorithm)
    def setup(self, config: Any) -> None:
        self._buffer = ReplayBuffer(config) if config.uses_replay else None
        super().setup(config)

    def with_stored(self, episodes: SampledEpisodes) -> list[Any]:
        """Return the episodes to train on, with earlier ones."""
        if self._buffer is None:
            joined: list[Any] = super().with_stored(episodes)  # type: ignore[misc]
            return joined
        replayed, metrics = self._buffer.draw(
            self.iteration,
            functools.partial(self.learner_group.map_units, "text_logps")
            if self._buffer.config.bounds_perplexity
            else None,
        )
        for name, value in metrics.items():
            self.metrics.log_value(("replay", name), value, window=1)
        self._buffer.add(episodes, self.iteration)
        is_alone = replayed and self._buffer.config.replay_alone
        # Rows of files join in any case.
        joined = super().with_stored([] if is_alone else episodes)  # type: ignore[misc]
        return [*joined, *replayed]

    @override(Algorithm)
    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        components = super().get_checkpointable_components()
        if self._buffer is not None:
            components.append((REPLAY_STATE, self._buffer))
        return components

    @override(Algorithm)
    def get_state(
        self, components: Any = None, *, not_components: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        state = super().get_state(components, not_components=not_components, **kwargs)
        is_wanted = self._check_component(REPLAY_STATE, components, not_components)
        if self._buffer is not None and is_wanted:
            state[REPLAY_STATE] = self._buffer.get_state()
        return state

    @override(Algorithm)
    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if self._buffer is not None and REPLAY_STATE in state:
            self._buffer.set_state(state[REPLAY_STATE])


def _parts(episode: Any) -> list[tuple[Any, Any]]:
    return [(episode_data(part), part) for part in agent_episodes(episode)]


def _perplexities(episodes: Sequence[Any], text_logps: TextLogps) -> np.ndarray:
    """Return each episode's perplexity per trained token; NaN without any. [N]"""
    parts = [agent_episodes(episode) for episode in episodes]
    logps = iter(text_logps([part for of_one in parts for part in of_one]))
    perplexities = []
    for of_one in parts:
        tokens = np.concatenate([next(logps) for _ in of_one])
        perplexities.append(np.exp(-tokens.mean()) if len(tokens) else np.nan)
    return np.array(perplexities, np.float64)


def _is_trained(episode: Any) -> bool:
    """Return whether any agent's part has advantages and is not masked."""
    return any(
        data.advantage is not None and data.stop_policy is not StopPolicy.MASK
        for data, _ in _parts(episode)
    )
