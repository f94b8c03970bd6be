"""Monte-Carlo tree search over the turns of held-out tasks.

The agent plans with the environment itself as the simulator: it goes back to earlier
places, which a real environment may not allow.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data, task_of
from rllib_llm.data.places import Place
from rllib_llm.data.types import Task
from rllib_llm.env_runner.episode_tree import PlayedTurn, turns_of
from rllib_llm.envs.go_to import go_to, snapshot_of
from rllib_llm.envs.parsing import require_choice, require_float, require_int
from rllib_llm.errors import ConfigError
from rllib_llm.evaluation.outcomes import Outcome
from rllib_llm.forks import search_tree
from rllib_llm.forks.search_tree import TreePlace, TreeTurn

if TYPE_CHECKING:
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

_MANY = 10**6

ROLLOUT = "rollout"
EVALUATIONS = (ROLLOUT, "critic", "scorer")

PlaceValues = Callable[[Sequence[Any]], Sequence[float]]
"""Estimates of the return from the place before the last turn of each episode on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MctsSettings:
    """Settings of the tree search.

    Attributes:
        simulations: Simulations through a place before its turn is played, those of
            earlier turns included.
        width: Turns to sample at a place; equal ones become one turn of the tree.
        rule: Selection of turns: ``"uct"`` or ``"puct"``.
        exploration: Factor of the term for rarely visited turns, in units of the
            return.
        gamma: Discount per turn of the simulated returns.
        backup: Value of a turn: the ``"mean"`` of the returns from it on, or their
            ``"max"``.
        evaluate: Value of a new turn: the return of a whole sampled episode
            (``"rollout"``), or that of the place after it, by the run's value head
            (``"critic"``) or its scorer (``"scorer"``).

    Raises:
        ConfigError: If a value is out of range, or ``backup="max"`` would keep the
            largest estimate.
    """

    simulations: int = 32
    width: int = 4
    rule: str = "uct"
    exploration: float = 1.0
    gamma: float = 1.0
    backup: str = "mean"
    evaluate: str = ROLLOUT

    def __post_init__(self) -> None:
        """Check the values."""
        require_int("simulations", self.simulations, 1, _MANY)
        require_int("width", self.width, 1, _MANY)
        require_choice("rule", self.rule, tuple(search_tree.SCORES))
        require_float("exploration", self.exploration, 0.0, _MANY)
        require_float("gamma", self.gamma, 0.0, 1.0)
        require_choice("backup", self.backup, search_tree.BACKUPS)
        require_choice("evaluate", self.evaluate, EVALUATIONS)
        if self.backup == "max" and self.evaluate != ROLLOUT:
            raise ConfigError(
                f"backup='max' beside evaluate={self.evaluate!r}: it keeps the largest "
                "return seen, and the largest estimate of one would never be "
                "corrected. Use backup='mean', or evaluate='rollout'."
            )

    @property
    def score(self) -> search_tree.Score:
        """The function that scores the turns of a place."""
        return functools.partial(
            search_tree.SCORES[self.rule], exploration=self.exploration
        )


class Snapshots:
    """Makes snapshots of places in an environment of its own.

    Args:
        env: The environment; :meth:`close` closes it.
    """

    def __init__(self, env: Any):
        self._env, self._has_snapshots = env, True

    def place_after(self, sample: PlayedTurn, task: Task) -> Place:
        """Return the place after a turn, with a snapshot if there can be one.

        Without one, EnvRunners play the texts before the place again.
        """
        if sample.place is None:
            place = sample.place_after()
            earlier = None if sample.before is None else sample.before.place
            state = self._state_at(place, earlier, task)
            sample.place = dataclasses.replace(place, state=state)
        return sample.place

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _state_at(
        self, place: Place, earlier: Place | None, task: Task
    ) -> bytes | None:
        if not self._has_snapshots:
            return None
        go_to(
            self._env,
            seed=task.seed,
            options=dict(task.options),
            actions=place.actions[:-1],
            observations=place.observations[:-1],
            state=None if earlier is None else earlier.state,
        )
        self._env.step(place.actions[-1])
        state = snapshot_of(self._env)
        self._has_snapshots = state is not None
        return state


class TaskSearch:
    """Search of one task: simulate, play the most visited turn, and so on.

    Args:
        task: The task; its ``rollout`` is not used.
        settings: Settings of the search.

    Attributes:
        here: The place whose turn is searched; None at the end of the episode.
        played: The turns that were played.
        tokens: Sampled tokens of all simulations.
        simulations: Number of simulations.
        failure: Stop reason of a simulation that the environment failed.
    """

    def __init__(self, task: Task, settings: MctsSettings):
        self.task, self.settings = task, settings
        self.here: TreePlace | None = TreePlace()
        self.played: list[TreeTurn] = []
        self.tokens = self.simulations = self._num_sampled = 0
        self.failure: str | None = None
        self._path: list[TreeTurn] = []

    def next_task(self, snapshots: Snapshots) -> Task | None:
        """Return the task whose episode the search needs next; None at its end.

        Plays turns that have enough simulations. A simulation that ends in the tree
        samples nothing.
        """
        while self.here is not None and self.failure is None:
            if self.here.visits >= self.settings.simulations:
                self._play(self.here.most_visited())
                continue
            path = search_tree.select(
                self.here, self.settings.score, self.settings.width
            )
            self.simulations += 1
            if path and path[-1].after is None:
                search_tree.backup(path, self.settings.gamma, self.settings.backup)
                continue
            self._path, self._num_sampled = path, self._num_sampled + 1
            sample = path[-1].data if path else self.here.data
            return dataclasses.replace(
                self.task,
                rollout=self._num_sampled - 1,
                place=sample and snapshots.place_after(sample, self.task),
                max_turns=self._max_turns(sample),
            )
        return None

    def _max_turns(self, before: PlayedTurn | None) -> int | None:
        """Return the turns of an episode: to its end, or one and the turn after it.

        The turn after it tells whether the one before ended the episode.
        """
        if self.settings.evaluate == ROLLOUT:
            return self.task.max_turns
        return 2 if before is None else before.turn + 3

    def add(self, episode: Any, value: float | None = None) -> None:
        """Add the episode of the task that :meth:`next_task` returned.

        Args:
            episode: The episode.
            value: Value of the place before its last turn, which is then left out;
                None: the return alone counts.
        """
        assert self.here is not None
        data = episode_data(episode)
        grown = (self._path[-1].after if self._path else None) or self.here
        self.tokens += data.num_sampled - data.inherited_tokens
        if len(episode) == data.fork_turn:
            self.failure = "no turn fits into the context"
            return
        turns = list(turns_of(episode, grown.data))
        if value is not None:
            turns.pop()
            turn = episode.get_extra_model_outputs(columns.TURN)[-1]
            self.tokens -= len(turn.action_ids)
        path = [*self._path, *search_tree.add(grown, turns)]
        settings = self.settings
        search_tree.backup(path, settings.gamma, settings.backup, value or 0.0)

    def outcome(self, number: int) -> Outcome:
        """Return the outcome of the turns that were played."""
        if self.failure is not None:
            return Outcome(number, self.task.seed, 0, failure=self.failure)
        last = episode_data(self.played[-1].data.episode)
        return Outcome(
            task=number,
            seed=self.task.seed,
            sample=0,
            episode_return=float(sum(turn.reward for turn in self.played)),
            success=None if last.success is None else bool(last.success),
            turns=len(self.played),
            tokens=self.tokens,
            stop_reason=None if last.stop_reason is None else last.stop_reason.value,
        )

    def _play(self, turn: TreeTurn) -> None:
        assert self.here is not None
        self.here.turns.clear()  # frees the episodes of the other turns
        self.played.append(turn)
        self.here = turn.after


def search_tasks(
    runner: LLMEnvRunner,
    tasks: Sequence[Task],
    settings: MctsSettings,
    values: PlaceValues | None = None,
) -> list[TaskSearch]:
    """Search tasks side by side, one simulation of each at a time.

    Args:
        runner: An EnvRunner with the policy.
        tasks: The tasks.
        settings: Settings of the search.
        values: Values of places, for other settings of ``evaluate`` than "rollout".

    Returns:
        The finished searches, in the order of the tasks.
    """
    assert (values is None) == (settings.evaluate == ROLLOUT), settings.evaluate
    # The number names the task: episodes keep their task without its place.
    numbered = [dataclasses.replace(t, group_id=n) for n, t in enumerate(tasks)]
    searches = [TaskSearch(task, settings) for task in numbered]
    snapshots = Snapshots(runner.config.make_text_env())
    running = searches
    while running:
        requests = [(search, search.next_task(snapshots)) for search in running]
        running = [search for search, task in requests if task is not None]
        sampled = sample_from_places(runner, [t for _, t in requests if t])
        value_of = {} if values is None else _values_after(sampled, values)
        for number, episode in sampled:
            if isinstance(episode, str):
                searches[number].failure = episode
            else:
                searches[number].add(episode, value_of.get(number))
    snapshots.close()
    return searches


def _values_after(
    sampled: Sequence[tuple[int, Any]], values: PlaceValues
) -> dict[int, float]:
    """Return the value after the first sampled turn where the episode goes on."""
    going_on = {
        number: episode
        for number, episode in sampled
        if not isinstance(episode, str)
        and len(episode) > episode_data(episode).fork_turn + 1
    }
    if not going_on:
        return {}
    return dict(zip(going_on, values([*going_on.values()]), strict=True))


def sample_from_places(
    runner: LLMEnvRunner, tasks: Sequence[Task]
) -> list[tuple[int, Any]]:
    """Return each task's ``group_id`` with its episode, or why there is none."""
    if not tasks:
        return []
    # Failures are outcomes here, not a reason to end.
    episodes = runner.sample(tasks=list(tasks), explore=True, max_failed_fraction=1.0)
    runner.get_metrics()  # discarded: training metrics must not include these episodes
    failures = [(task.group_id, reason) for task, reason in runner.failures]
    return [*((task_of(e).group_id, e) for e in episodes), *failures]
