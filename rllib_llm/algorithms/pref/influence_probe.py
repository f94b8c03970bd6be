"""Influence of pairs on a validation return: the Learner's part and the driver's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns

from rllib_llm.algorithms.pref.pairs import (
    PreferencePair,
    best_of_tasks,
    compared_replies,
)
from rllib_llm.connectors.pipelines import row_settings
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.distributed import sum_gradients
from rllib_llm.env_runner.task_groups import with_sources
from rllib_llm.errors import RLlibLLMError
from rllib_llm.losses.influence import influences, moved, pair_scores, unit_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rllib_llm.algorithms.pref.pref import Pref
    from rllib_llm.data.types import Task

# Pairs, and validation episodes.
Probe = tuple[Sequence[PreferencePair], Sequence[Any]]


class InfluenceProbeMixin:
    """Mixin of Pref's Learner that measures influence by one step and back."""

    if TYPE_CHECKING:
        config: Any
        module: Any
        _device: Any

        def in_update(self) -> Any: ...
        def _scored_rows(self, shard: Sequence[Any], **kwargs: Any) -> Any: ...
        def _parameters_of(self, module_id: str) -> list[torch.nn.Parameter]: ...
        def _parts(self, *args: Any) -> Iterator[dict[str, Any]]: ...
        def _add_units(self, data: dict[str, Any]) -> Any: ...
        def _losses_now(self, module_id: str, data: dict[str, Any]) -> torch.Tensor: ...

    def pair_influences(self, shard: Probe, step_size: float) -> list[float]:
        """Return the influence of each pair; weights are afterwards what they were.

        The losses before and after the step are those that the update minimises
        (``rllib_llm/losses/influence.py``). All Learners must be called at once, since
        they add their gradients up.

        Args:
            shard: Pairs, and validation episodes with their centred return as
                advantage, both of the policy in training.
            step_size: Length of the step in the direction that raises the return.
        """
        pairs, validation = shard
        (module_id,) = self.config.trained_module_ids
        parameters = self._parameters_of(module_id)
        with self.in_update():
            rows = self._rows_of_pairs(module_id, pairs)
            self._add_return_gradient(module_id, validation)
            sum_gradients(parameters)
            try:
                steps = unit_steps([p.grad for p in parameters], step_size)
            except ValueError as error:
                raise RLlibLLMError(
                    f"Influence of pairs: {error} It is that of the validation "
                    "return. Look for extreme rewards in the transcripts."
                ) from error
            if rows is None:
                return []
            before = self._losses_now(module_id, rows)
            with moved(parameters, steps):
                after = self._losses_now(module_id, rows)
        return [float(each) for each in influences(before, after, step_size)]

    def _rows_of_pairs(
        self, module_id: str, pairs: Sequence[PreferencePair]
    ) -> dict[str, Any] | None:
        """Return the rows of pairs with those of their reference; None without any."""
        config = self.config.get_config_for_module(module_id)
        rows: dict[str, Any] | None = self._scored_rows(
            pairs,
            old_logps=self.config.scored_old_logps,
            references=[module_id] if config.uses_reference else (),
            settings=row_settings(config),
            module_id=module_id,
        )
        if rows is not None:
            self._add_units(rows)
        return rows

    def _add_return_gradient(self, module_id: str, validation: Sequence[Any]) -> None:
        """Add the gradient of the validation return, by REINFORCE, to the parameters.

        ``sum over episodes of (R - mean of its task) grad sum_t log pi(a_t)``; its
        length does not count.
        """
        config = self.config.get_config_for_module(module_id)
        settings = row_settings(config)
        data = self._scored_rows(validation, settings=settings, module_id=module_id)
        if data is None:
            return
        module = self.module[module_id].unwrapped()
        for part in self._parts(module_id, data, self.config):
            logp = module.forward_train(part)[Columns.ACTION_DIST_INPUTS][..., 0]
            weights = part[Columns.ADVANTAGES] * part[Columns.LOSS_MASK]
            (weights * logp).sum().backward()


# On the driver ------------------------------------------------------------------------


def pairs_by_influence(
    algo: Pref,
    sampled: SampledEpisodes,
    *,
    max_pairs_per_task: int | None,
    **settings: Any,
) -> list[PreferencePair]:
    """Return pairs of replies at one place, chosen by value gap and influence.

    Pairs with a score of at most 0 are left out; see
    :func:`~rllib_llm.losses.influence.pair_scores`.

    Args:
        algo: The algorithm.
        sampled: Episodes of one agent.
        max_pairs_per_task: Maximum number of a task, highest scores first; None: all.
        settings: Those of :func:`~rllib_llm.algorithms.pref.pairs.compared_replies`.
    """
    candidates = compared_replies(sampled.table(), **settings)
    if not candidates:
        # In every iteration: RLlib reports NaN for a sum of nothing.
        algo.metrics.log_value(("influence", "num_tokens"), 0, reduce="sum")
        return []
    given = algo.config.complete_influence()
    pairs = [
        PreferencePair(sampled[p.better], sampled[p.worse], turn=p.turn)
        for p in candidates
    ]
    validation = play_validation(algo, given["validation_tasks"])
    measured = ask_learners(algo.learner_group, pairs, validation, given["step_size"])
    gaps = np.array([each.gap for each in candidates])
    scores = pair_scores(gaps, measured, given["weight"]).tolist()
    kept = best_of_tasks(scores, [each.task for each in candidates], max_pairs_per_task)
    kept = [index for index in kept if scores[index] > 0]
    for name, value in (
        ("negative_frac", float(np.mean(measured < 0))),
        ("kept_frac", len(kept) / len(pairs)),
    ):
        algo.metrics.log_value(("influence", name), value, window=1)
    return [pairs[index] for index in kept]


def ask_learners(
    learners: Any,
    pairs: Sequence[PreferencePair],
    validation: Iterable[Any],
    step_size: float,
) -> np.ndarray:
    """Return the influence of each pair, each Learner a part of both. [P]"""
    count, episodes = max(1, len(learners)), list(validation)
    shards = [(list(pairs[r::count]), episodes[r::count]) for r in range(count)]
    measured = np.zeros(len(pairs))
    answers = learners.foreach_shard("pair_influences", shards, step_size=step_size)
    for rank, answer in enumerate(answers):
        measured[rank::count] = answer
    return measured


def play_validation(algo: Pref, num_tasks: int) -> SampledEpisodes:
    """Sample episodes of training tasks that make no pairs, with centred returns.

    Tasks are the next ones of the run's source, each played ``group_size`` times from
    the prompt. As in evaluation, returns are the environment's: without ``rewards``,
    ``reward_transforms`` and the curriculum.

    Returns:
        Episodes of the compared agent. Their advantage is the return less the mean of
        their task's.
    """
    tasks = validation_tasks(algo._task_source.next_groups(num_tasks))
    tasks = with_sources(tasks, algo._driver_components.shared_texts())
    played = SampledEpisodes(algo.play_extra_tasks(tasks, explore=True))
    # Of all agents, before the others are left out.
    tokens = sum(sum(trajectory.num_tokens) for trajectory in played.trajectories)
    algo.metrics.log_value(("influence", "num_tokens"), tokens, reduce="sum")
    if (agent := algo.config.compared_agent) is not None:
        played = played.of_agent(agent)
    returns: dict[int, list[float]] = {}
    size = algo.config.group_size
    for trajectory in played.trajectories:
        of_task = returns.setdefault(trajectory.task.group_id // size, [])
        of_task.append(trajectory.episode_return)
    for data, trajectory in zip(played.data, played.trajectories, strict=True):
        mean = float(np.mean(returns[trajectory.task.group_id // size]))
        data.advantage = trajectory.episode_return - mean
    return played


def validation_tasks(tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks, each rollout a group of its own: nothing forks within it."""
    return [
        dataclasses.replace(task, group_id=number) for number, task in enumerate(tasks)
    ]
