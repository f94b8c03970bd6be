"""Cases of every class with a state, for test_state.py."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from learner_helpers import fake_episode, make_config, make_learner, weights
from setting_replay import drawn_by, remember, replay_buffer
from setting_saved import SAVED, save
from test_sample_ahead import Runners, iterate, sampler

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.advantages.estimators.combine import AdvantageEstimators
from rllib_llm.advantages.role_baselines import RoleBaselines
from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.algorithms.driver.sample_ahead import SampleAhead
from rllib_llm.algorithms.driver.saved_episodes import EpisodeSaver
from rllib_llm.algorithms.learner.adamw import MixedPrecisionAdamW
from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.components.registry import bind
from rllib_llm.data import columns
from rllib_llm.data.turn_table import TurnTable, example_table
from rllib_llm.data.types import Task
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.env_runner.task_groups import TaskSource
from rllib_llm.losses.composed_loss import ComposedLoss
from rllib_llm.losses.token_batch import example_batch
from rllib_llm.monitoring.alarms.alarm_actions import Guard
from rllib_llm.monitoring.alarms.metric_history import History
from rllib_llm.prompt_texts.bank import Bank
from rllib_llm.selfplay.league import League
from rllib_llm.selfplay.matchmaker import Matchmaker
from rllib_llm.selfplay.payoffs import GameResult, Payoffs
from rllib_llm.selfplay.ratings import Ratings


@dataclasses.dataclass
class Case:
    """Construction, use and observed state of a class.

    Attributes:
        fresh: Builds an object.
        use: Changes its state.
        look: What it does next; this may change its state once more.
        save: Returns its state.
        load: Brings a state back.
    """

    fresh: Callable[[], Any]
    use: Callable[[Any], Any]
    look: Callable[[Any], Any]
    save: Callable[[Any], Any] = lambda thing: thing.get_state()
    load: Callable[[Any, Any], Any] = lambda thing, state: thing.set_state(state)


def by_dict(**case):
    """A case of a class that names its methods as torch does."""
    return Case(
        **case,
        save=lambda thing: thing.state_dict(),
        load=lambda thing, state: thing.load_state(state),
    )


# Pieces -------------------------------------------------------------------------------


def played(first: int = 0, scale: float = 1.0) -> TurnTable:
    """A table of solved and unsolved trajectories of tasks ``first`` and on."""
    table = example_table(("ann", "ben"))
    for i, one in enumerate(table.trajectories):
        one.task = dataclasses.replace(one.task, group_id=first + one.task.group_id)
        one.success = i % 3 > 0
        one.rewards = [scale * (0.1 * i + 0.2 * j) for j in range(len(one.rewards))]
    return TurnTable(table.trajectories)


def taught(curriculum: Any) -> None:
    for first in (0, 10):
        table = played(first)
        for group in sorted({t.task.group_id for t in table.trajectories}):
            curriculum.assign(Task(group, 0, group), 0)
        curriculum.observe(table)


def failed(curriculum: Any) -> None:
    table = played()
    for trajectory in table.trajectories:
        trajectory.success = False
    curriculum.observe(table)


def proposed(curriculum: Any) -> None:
    """Let options of medium success be kept, and others wait."""
    curriculum.receive([{"size": 3}, {"size": 4}, {"size": 5}])
    for group in range(2):
        curriculum.assign(Task(group, 0, group), 0)
    curriculum.observe(played())


def assigned(curriculum: Any) -> list[Any]:
    taught(curriculum)  # what was counted before decides what this leads to
    return [curriculum.assign(Task(g, 0, g), 0).options for g in range(50, 56)]


def curriculum(name: str, **settings: Any) -> Case:
    spec = {"name": name, **settings}
    return Case(lambda: bind("curriculum", spec).call, taught, assigned)


def advantage_estimator(name: str, **settings: Any) -> Case:
    spec = {"name": name, **settings}
    return Case(
        lambda: bind("advantage_estimator", spec).call,
        lambda of: of(played(scale=3.0)),
        valued_by,
    )


def valued_by(estimate: Callable[[TurnTable], Any]) -> list[float]:
    return np.asarray(estimate(played(20))).tolist()


THRESHOLD_CURRICULUM = {
    "levels": [{"size": 3}, {"size": 4}],
    "window": 20,
    "threshold": 0.5,
}


class Asked:
    """Counts how often it was asked; the answer depends on it."""

    def __init__(self):
        self.asked = 0

    def __call__(self, given):
        """Answer."""
        self.asked += 1
        if isinstance(given, TurnTable):
            return np.arange(len(given)) != self.asked
        return float(self.asked)

    def get_state(self):
        """Return the count."""
        return self.asked

    def set_state(self, state):
        """Bring it back."""
        self.asked = state


def driver_components() -> DriverComponents:
    settings: dict[str, Any] = {"rewards": [Asked], "filters": [Asked]}
    settings["curriculum"] = {"name": "threshold", **THRESHOLD_CURRICULUM}
    return DriverComponents(GRPOConfig().rollouts(**settings))


def use_rewards_filters(components: DriverComponents) -> None:
    taught(components.only.curriculum.call)
    components.only.rewards(played().trajectories)
    components.only.filters(played())


def look_at_rewards_filters(components: DriverComponents) -> list[Any]:
    rewards = components.only.rewards(played().trajectories)
    outcomes, _ = components.only.filters(played())
    parts = {name: part.tolist() for name, part in rewards.items()}
    return [
        assigned(components.only.curriculum.call),
        parts,
        [v.is_dropped for v in outcomes],
    ]


TARGET = {"name": "entropy_target", "target": 9.0, "step": 0.01}


def term_losses(components: ComposedLoss) -> list[Any]:
    batch = example_batch(components.needs)
    return [(name, loss.tolist()) for name, loss in components.term_losses(batch)]


def saver() -> EpisodeSaver:
    config = make_config(LLMPPOConfig).rollouts(save_episodes=True, save_where=[Asked])
    return EpisodeSaver(config, Path(SAVED.name), "run")


def saved_by(of: EpisodeSaver) -> list[int]:
    """Return the rollouts that are saved next: the count decides which."""
    save(of, 9)
    rows = Path(SAVED.name, "run-000009.jsonl").read_text().splitlines()
    return [json.loads(row)["task"]["rollout"] for row in rows]


# League -------------------------------------------------------------------------------


def games(first: int = 0) -> list[GameResult]:
    return [
        GameResult(first, ("learner", "old"), (1.0, 0.0)),
        GameResult(first + 1, ("old", "learner"), (1.0, 0.0)),
        GameResult(first + 2, ("learner", "old"), (1.0, 0.0)),
    ]


def use_league(league: League) -> None:
    league.add("oldest", 0)
    league.add("old", 1)
    league.record(games())


def look_at_league(league: League) -> list[Any]:
    seen = [league.probabilities(), league.should_snapshot(), league.choose(3, 1)]
    return [*seen, league.add("new", 2), league.probabilities()]


def use_matchmaker(maker: Matchmaker) -> None:
    for iteration in range(3):
        maker.add_snapshot(iteration)
        slots = {member: slot for slot, member in maker.members().items()}
        assignment = {"ann": "policy", "ben": slots[f"snapshot_{iteration}"]}
        maker.record([maker.result(iteration, assignment, {"ann": 1.0})])


def look_at_matchmaker(maker: Matchmaker) -> list[Any]:
    seen = [maker.members(), maker.metrics(), [maker.assignment(s) for s in range(9)]]
    return [*seen, maker.wants_snapshot(), maker.add_snapshot(9), maker.members()]


def matchmaker() -> Matchmaker:
    pytest.importorskip("openskill")
    return Matchmaker(
        "policy", ("one", "two"), ("ann", "ben"), {}, snapshot_min_games=1
    )


def ratings() -> Ratings:
    pytest.importorskip("openskill")
    return Ratings()


def look_at_ratings(of: Ratings) -> list[Any]:
    of.record(games(5))
    return [of.rating("old"), of.rating("learner"), of.games("old"), of.ranking()]


# Alarms -------------------------------------------------------------------------------


def result(iteration: int, entropy: float) -> dict[str, Any]:
    learners = {"default_policy": {"entropy": entropy, "approx_kl_k3": 0.01}}
    returns = {"episode_return_mean": entropy}
    return {
        "training_iteration": iteration,
        "learners": learners,
        "env_runners": returns,
        "done": False,
    }


def guard() -> Guard:
    sent_metrics: list[Any] = []
    algorithm = SimpleNamespace(
        sent_metrics=sent_metrics,
        logdir="/nowhere",
        iteration=0,
        lower_lr=lambda *given: sent_metrics.append(given),
        lr_scales=dict,
    )
    low = {"below": 0.5, "action": "lower_lr", "cooldown": 3}
    return Guard(GRPOConfig().alarms(entropy_collapse=low), algorithm)


def watch(of: Guard, iterations: range) -> list[Any]:
    reports = []
    for iteration in iterations:
        seen = result(iteration, 0.1)
        of.after_iteration(seen)
        reports.append(seen["alarms"])
    return [reports, of._algorithm.sent_metrics[:]]


def look_at_guard(of: Guard) -> list[Any]:
    of._algorithm.sent_metrics.clear()
    return watch(of, range(4, 8))


def look_at_history(of: History) -> list[Any]:
    key = "learners/<module>/entropy"
    return [
        of.series(key, "default_policy"),
        of.newest(key, "default_policy"),
        list(of.module_ids),
    ]


# Learners, runners, modules -----------------------------------------------------------


STEERED = {
    "lr": [[0, 1e-2], [100, 1e-3]],
    "critic_lr": 1e-2,
    "ref_kl_coeff": 0.1,
    "ref_kl_target": 1e-9,
}


def learner(**training: Any) -> Any:
    return make_learner(make_config(LLMPPOConfig, **STEERED, **training))


def train(of: Any, first: int) -> None:
    steps = {"num_env_steps_sampled_lifetime": 10 * (first + 1)}
    data = [fake_episode(seed) for seed in range(first, first + 4)]
    of.update(
        training_data=LLMTrainingData(episodes=data),
        timesteps=steps,
        num_epochs=2,
        minibatch_size=2,
    )


def use_learner(of: Any) -> None:
    for first in (0, 4):
        train(of, first)
    of.lower_lr(None, 0.5, 1e-6)


def look_at_learner(of: Any) -> list[Any]:
    seen = [of._ref_kl_coeffs["default_policy"], dict(of.lr_scales)]
    seen += [float(of.curr_kl_coeffs_per_module["default_policy"])]
    seen += [g["lr"] for o in of._named_optimizers.values() for g in o.param_groups]
    train(of, 8)
    seen += [of._weights_seq_no, of._ref_kl_coeffs["default_policy"]]
    return [*seen, {n: w.numpy() for n, w in weights(of).items()}]


def module() -> Any:
    return make_learner(make_config(LLMPPOConfig)).module["default_policy"].unwrapped()


def move(of: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in of.parameters():
            parameter += 0.01


def values_of(of: Any) -> dict[str, Any]:
    return {name: array.tolist() for name, array in of.get_state().items()}


def runner() -> LLMEnvRunner:
    config = make_config(LLMPPOConfig)
    config.env_runners(num_envs_per_env_runner=1).generation(max_new_tokens=4)
    return LLMEnvRunner(config=config, worker_index=1)


def use_runner(of: LLMEnvRunner) -> None:
    of.sample(num_episodes=3)
    move(of.module)
    of.set_weights_version(4)


def look_at_runner(of: LLMEnvRunner) -> list[Any]:
    (episode,) = of.sample(num_episodes=1)
    turns = episode.get_extra_model_outputs(columns.TURN)
    sampled_turns = [(t.action_ids.tolist(), t.weights_seq_no) for t in turns]
    return [
        sampled_turns,
        episode.get_observations(0),
        of.num_env_steps_sampled_lifetime,
    ]


def optimizer() -> SimpleNamespace:
    parameter = torch.nn.Parameter(torch.arange(1.0, 4.0).bfloat16())
    return SimpleNamespace(
        parameter=parameter, optimizer=MixedPrecisionAdamW([parameter], lr=1e-3)
    )


def step(of: SimpleNamespace, times: int = 3) -> list[Any]:
    for scale in range(1, times + 1):
        of.parameter.grad = torch.full_like(of.parameter, float(scale))
        of.optimizer.step()
    master = of.optimizer.state[of.parameter]["master"]
    return [of.parameter.tolist(), master.tolist()]


def load_optimizer(of: SimpleNamespace, state: Any) -> None:
    values, moments = state
    with torch.no_grad():
        of.parameter.copy_(values)
    of.optimizer.load_state_dict(moments)


FUNCTION = """
def twice(a):
    \"\"\"Twice a.

    >>> twice(2)
    4
    \"\"\"
    return 2 * a
"""


def written() -> TurnTable:
    """Two tasks with checked tests and one without, each of three functions."""
    codes = [f"def f(n):\n    return n {o} 2" for o in ("+", "*", "*")]
    table = []
    for task in range(3):
        for i, (code, test) in enumerate(zip(codes, ([[1], 3], [[2], 4], [[5], 7]))):
            infos = [
                {"program": code, "test": None, "checked": i > 0 if task else None},
                {"program": None, "test": test, "checked": None},
            ]
            one = dataclasses.replace(example_table().trajectories[0], infos=infos)
            one.task, one.episode = Task(task, i, task), 3 * task + i
            table.append(one)
    return TurnTable(table)


CASES = {
    "Bandit": curriculum("bandit", arms=[{"size": 3}, {"size": 4}], rule="thompson"),
    "FailedTasks": Case(
        lambda: bind("curriculum", {"name": "failed", "prob": 1.0}).call,
        failed,
        lambda of: [of.assign(Task(g, 0, 1000 + g), 0).seed for g in range(3)],
    ),
    "Memory": Case(
        lambda: bind("prompt_text", {"name": "memory", "learn_from": "all"}).call,
        lambda of: of.observe(played(), []),
        lambda of: [
            of.observe(played(scale=3.0), []),
            of.assign(Task(0, 0, 0), 0).prompt_text.texts_for("Well?"),
        ],
    ),
    "Library": Case(
        lambda: bind("prompt_text", {"name": "library", "of": "w", "size": 2}).call,
        lambda of: of.observe(played(), ["ADD: a"]),
        lambda of: (of.observe(played(), ["ADD: b"]), of.get_state()),
    ),
    "Population": Case(
        lambda: bind("prompt_text", {"name": "population", "of": "w"}).call,
        lambda of: (of.assign(Task(0, 0, 0), 0), of.observe(played(), ["a"])),
        lambda of: (
            [of.assign(Task(g, 0, g), 0).prompt_text for g in range(4)],
            of.get_state(),
        ),
    ),
    "Functions": Case(
        lambda: bind("prompt_text", {"name": "functions", "of": "w"}).call,
        lambda of: of.observe(played(), [f"add_function\n{FUNCTION}"]),
        lambda of: (
            of.assign(Task(0, 0, 0), 0).options,
            of.observe(played(scale=3.0), ["remove_function twice"]),
            of.get_state(),
        ),
    ),
    "Evolved": Case(
        lambda: bind("filter", {"name": "evolved", "children": 40}).call,
        lambda of: of(written()),
        lambda of: (of(written()).tolist(), of.get_state()),
    ),
    "Bank": Case(
        lambda: Bank(capacity=5, similar=0.9),
        lambda of: [of.write(key, key, 0.5) for key in ("a", "b", "a")],
        lambda of: [of.write("a", "c", 0.9), of.add("d", "d").number, of.entries],
    ),
    "Proposed": Case(
        lambda: bind("curriculum", {"name": "proposed", "of": "x", "prob": 1.0}).call,
        proposed,
        lambda of: [of.assign(Task(g, 0, g), 0).options for g in range(9)],
    ),
    "ThresholdCurriculum": curriculum("threshold", **THRESHOLD_CURRICULUM),
    "advantages.estimators.recent_returns.History": advantage_estimator("history"),
    "Role": advantage_estimator("role"),
    "AdvantageEstimators": Case(
        lambda: AdvantageEstimators(["role", "history"]),
        lambda of: of.advantages(played(scale=3.0)),
        lambda of: valued_by(of.advantages),
    ),
    "BoundComponent": Case(
        lambda: bind("advantage_estimator", "role"),
        lambda of: of.call(played(scale=3.0)),
        lambda of: valued_by(of.call),
    ),
    "RoleBaselines": Case(
        lambda: RoleBaselines(0.5),
        lambda of: of.advantages([1.0, 3.0], ["g", "g"], [0, 1]),
        lambda of: of.advantages([2.0, 2.0], ["g", "g"], [0, 1]).tolist(),
        save=lambda of: of.state_dict(),
        load=lambda of, state: of.load_state_dict(state),
    ),
    "DriverComponents": Case(
        driver_components, use_rewards_filters, look_at_rewards_filters
    ),
    "EpisodeSaver": Case(
        saver, lambda of: [save(of, n) for n in range(2)], lambda of: saved_by(of)
    ),
    "EntropyTarget": Case(
        lambda: bind("loss_term", TARGET).call,
        lambda of: of.end_update({"entropy": 1.0}),
        lambda of: (of.coeff, of.end_update({"entropy": 99.0}), of.coeff),
    ),
    "ComposedLoss": Case(
        lambda: ComposedLoss(None, [TARGET], ()),
        lambda of: of.end_update({"entropy": 1.0}),
        term_losses,
    ),
    "Payoffs": by_dict(
        fresh=Payoffs,
        use=lambda of: [of.record(game) for game in games()],
        look=lambda of: (of.table(["learner", "old"]), of.games("old", "learner")),
    ),
    "Ratings": by_dict(
        fresh=ratings, use=lambda of: of.record(games()), look=look_at_ratings
    ),
    "League": by_dict(
        fresh=lambda: League(max_members=2, snapshot_min_games=2),
        use=use_league,
        look=look_at_league,
    ),
    "Matchmaker": by_dict(
        fresh=matchmaker, use=use_matchmaker, look=look_at_matchmaker
    ),
    "monitoring.alarms.metric_history.History": Case(
        History, lambda of: of.add(result(1, 0.5)), look_at_history
    ),
    "Guard": Case(guard, lambda of: watch(of, range(1, 4)), look_at_guard),
    "TaskSource": Case(
        lambda: TaskSource(seed=3, group_size=2),
        lambda of: of.next_groups(5),
        lambda of: of.next_groups(2),
    ),
    "SampleAhead": Case(
        lambda: sampler(Runners(2)),
        lambda of: iterate(of, of._runners, 3),
        SampleAhead.get_state,
    ),
    "ReplayBuffer": Case(
        replay_buffer, lambda of: remember(of, 0), lambda of: drawn_by(of, 5)
    ),
    "LearnerStateMixin": Case(
        lambda: learner(use_kl_loss=True, kl_target=1e-9), use_learner, look_at_learner
    ),
    "ComposedLossMixin": Case(
        lambda: learner(loss_terms=[TARGET]), use_learner, look_at_learner
    ),
    "CheckpointedModule": Case(module, move, values_of),
    "RunnerState": Case(runner, use_runner, look_at_runner),
    "MixedPrecisionAdamW": Case(
        optimizer,
        step,
        step,
        save=lambda of: (of.parameter.data.clone(), of.optimizer.state_dict()),
        load=load_optimizer,
    ),
}
