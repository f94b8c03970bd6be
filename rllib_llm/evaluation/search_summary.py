"""Search at evaluation beside plain sampling, with the tokens that each sampled."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rllib_llm.algorithms.config.check_forks import fork_obstacle
from rllib_llm.algorithms.config.one_agent import one_agent_obstacle
from rllib_llm.algorithms.scorer.whole_episode import WholeEpisode
from rllib_llm.data.types import Task
from rllib_llm.errors import ConfigError
from rllib_llm.evaluation import best_of
from rllib_llm.evaluation.beam import BeamSettings, search_beams
from rllib_llm.evaluation.best_turn import TurnSelection, last_logps, select_turns
from rllib_llm.evaluation.outcomes import Outcome, held_out_tasks
from rllib_llm.evaluation.place_values import place_values
from rllib_llm.evaluation.runner import local_runner, runner_in
from rllib_llm.evaluation.success_statistics import (
    Estimate,
    mean_of_tasks,
    share_of_tasks,
)
from rllib_llm.evaluation.tree_search import MctsSettings, search_tasks
from rllib_llm.modules.scorer import SCORER_MODULE

if TYPE_CHECKING:
    from rllib_llm.algorithms.scorer.trains_scorer import TrainsScorer
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
    from rllib_llm.envs.make import EnvSpec
    from rllib_llm.types import LLMAlgorithm, LLMConfig

PLAIN, MCTS, BEST_TURN, BEAM = "plain", "mcts", "best_turn", "beam"


@dataclasses.dataclass(frozen=True)
class SearchRow:
    """Result of one way to choose the episode that counts.

    Attributes:
        name: ``"plain"``: every sampled episode counts; ``"best_of, SCORE"``: of each
            task the one with the best score; ``"mcts"``: the one that the tree search
            played; ``"best_turn, SCORE"``: the one whose turns had the best scores;
            ``"beam, SCORE"``: the one with the best score of the beam search.
        success: Share of solved tasks; None if the environment does not say.
        episode_return: Mean return.
        tokens: Sampled tokens per task, those of simulations included; for ``"plain"``
            per episode.
        episodes: Sampled episodes or simulations per task; 1 for ``"plain"``,
            ``"best_turn"`` and ``"beam"``.
    """

    name: str
    success: Estimate | None
    episode_return: Estimate
    tokens: float
    episodes: float


@dataclasses.dataclass(frozen=True)
class SearchEvaluation:
    """Results of all ways on the same tasks.

    Attributes:
        env: The environment's name.
        env_config: Its options.
        tasks: Number of held-out tasks.
        failures: Tasks that a failure of the environment excludes from all rows.
        rows: The results.
        outcomes: Outcomes of the episodes that count, by name of the row.
    """

    env: str
    env_config: dict[str, Any]
    tasks: int
    failures: int
    rows: tuple[SearchRow, ...]
    outcomes: dict[str, list[Outcome]]


def evaluate_search(
    algo: LLMAlgorithm,
    num_tasks: int,
    *,
    mcts: MctsSettings | None = None,
    episodes: int | None = None,
    best_turn: int | None = None,
    beam: BeamSettings | None = None,
    env: EnvSpec | None = None,
    env_config: dict[str, Any] | None = None,
) -> SearchEvaluation:
    """Evaluate search on held-out tasks, beside plain sampling.

    Args:
        algo: The algorithm.
        num_tasks: Number of tasks.
        mcts: Settings of the tree search; None: none.
        episodes: Episodes per task for best of n; None: of each task as many as reach
            the tokens that another search sampled for it: the first given one of
            ``mcts``, ``best_turn`` and ``beam``.
        best_turn: Replies that are sampled at each turn, of which the one with the best
            score is played; None: no such row.
        beam: Settings of the beam search; None: none.
        env: Environment in place of that of training.
        env_config: Its options. For the run's own environment, missing options have
            their values of training.

    Raises:
        ConfigError: If no way to search is given, episodes of this run cannot begin
            at places of others, or the run has not trained what ``mcts`` reads.
    """
    goes_back = any(each is not None for each in (mcts, best_turn, beam))
    if episodes is None and not goes_back:
        raise ConfigError("evaluate_search() needs mcts, episodes, best_turn or beam.")
    runner_of_algo = runner = local_runner(algo)
    if env is not None:
        runner = runner_in(runner_of_algo, env, env_config)
    config = runner.config
    _check(config, goes_back=goes_back)
    tasks = held_out_tasks(config, num_tasks)
    searches: list[Any] = []
    if mcts is not None:
        searches = search_tasks(runner, tasks, mcts, place_values(algo, mcts))
    selected = _selections(algo, runner, tasks, best_turn, beam)
    before = [searches, *selected.values()] if searches else [*selected.values()]
    samples = [
        best_of.TaskSamples(
            task,
            number,
            max_episodes=episodes,
            max_tokens=None if episodes else earlier[0].tokens,
            failure=next((s.failure for s in earlier if s.failure is not None), None),
        )
        for number, (task, *earlier) in enumerate(zip(tasks, *before, strict=True))
    ]
    best_of.sample_tasks(runner, samples, _scores(algo))
    if runner is not runner_of_algo:
        runner.stop()
    kept = [each for each in samples if each.failure is None]
    outcomes = {PLAIN: [o for each in kept for o in each.outcomes]}
    for name in kept[0].scores if kept else ():
        outcomes[f"best_of, {name}"] = [each.best_by(name) for each in kept]
    if searches:
        outcomes[MCTS] = [searches[s.number].outcome(s.number) for s in kept]
    for name, each_task in selected.items():
        outcomes[name] = [each_task[s.number].outcome() for s in kept]
    simulations = [float(searches[s.number].simulations) for s in kept if searches]
    return SearchEvaluation(
        env=config.env if isinstance(config.env, str) else repr(config.env),
        env_config=dict(config.env_config),
        tasks=num_tasks,
        failures=num_tasks - len(kept),
        rows=tuple(
            _row(name, each, kept, simulations) for name, each in outcomes.items()
        )
        if kept
        else (),
        outcomes=outcomes,
    )


def _check(config: LLMConfig, *, goes_back: bool) -> None:
    if goes_back and (obstacle := fork_obstacle(config) or one_agent_obstacle(config)):
        raise ConfigError(
            f"Tree search, best turn and beam search: {obstacle} Use best_of, or "
            "another run."
        )
    if config.is_multi_agent:
        raise ConfigError(
            f"Best of n scores episodes of one agent; {config.env} has several. Leave "
            "--search out."
        )


def _selections(
    algo: LLMAlgorithm,
    runner: LLMEnvRunner,
    tasks: Sequence[Task],
    best_turn: int | None,
    beam: BeamSettings | None,
) -> dict[str, Sequence[TurnSelection]]:
    """Return the tasks played turn by turn, by the name of the row."""
    scores = _scores(algo)
    del scores["oracle"]  # the environment has not received the replies
    played: dict[str, Sequence[TurnSelection]] = {}
    if best_turn is not None:
        for name, score in {**scores, "logp": last_logps}.items():
            row = f"{BEST_TURN}, {name}"
            played[row] = select_turns(runner, tasks, best_turn, score)
    if beam is not None:
        for name, score in scores.items():
            played[f"{BEAM}, {name}"] = search_beams(runner, tasks, beam, score)
    return played


def _scores(algo: LLMAlgorithm) -> dict[str, best_of.EpisodeScore]:
    """Return the scores that a run has for whole episodes, by name."""
    scores: dict[str, best_of.EpisodeScore] = {
        "logp": best_of.mean_logps,
        # Not a score that an agent would have: then best of n is pass@n.
        "oracle": best_of.returns,
    }
    config: Any = algo.config  # with ScorerSettings, if it trains a scorer
    if not getattr(config, "scores_turns", False) or config.is_turn_critic:
        return scores
    if config.scorer_privileged:  # it has read the answers in training
        return scores

    def scorer(episodes: Sequence[Any]) -> list[float]:
        whole = [WholeEpisode(e, module_id=SCORER_MODULE) for e in episodes]
        return [
            float(sum(turns)) for turns in cast("TrainsScorer", algo).score_turns(whole)
        ]

    return {"scorer": scorer, **scores}


def _row(
    name: str,
    outcomes: Sequence[Outcome],
    samples: Sequence[best_of.TaskSamples],
    simulations: Sequence[float],
) -> SearchRow:
    by_task: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        by_task.setdefault(outcome.task, []).append(outcome)
    tasks = list(by_task.values())
    solved = [[float(o.success) for o in t if o.success is not None] for t in tasks]
    if name == PLAIN or name.startswith((BEST_TURN, BEAM)):
        tokens, episodes = [float(o.tokens or 0) for o in outcomes], [1.0]
    elif name == MCTS:
        tokens, episodes = [float(o.tokens or 0) for o in outcomes], list(simulations)
    else:
        tokens = [float(each.tokens) for each in samples]
        episodes = [float(len(each.outcomes)) for each in samples]
    return SearchRow(
        name=name,
        success=share_of_tasks(solved) if any(solved) else None,
        episode_return=mean_of_tasks(
            [
                [o.episode_return for o in t if o.episode_return is not None]
                for t in tasks
            ]
        ),
        tokens=float(np.mean(tokens)),
        episodes=float(np.mean(episodes)),
    )
