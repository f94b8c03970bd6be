"""Tree search and best of n on held-out tasks."""

import numpy as np
import pytest
from search_toys import Lock, LockWithoutSnapshots, Unreliable
from team_helpers import Pair, Run, single_config, team_config

from rllib_llm.cli.implementation.search import parse_searches, report
from rllib_llm.errors import ConfigError
from rllib_llm.evaluation import best_of
from rllib_llm.evaluation.beam import BeamSettings
from rllib_llm.evaluation.outcomes import held_out_tasks
from rllib_llm.evaluation.search_summary import evaluate_search
from rllib_llm.evaluation.tree_search import MctsSettings, search_tasks

SETTINGS = MctsSettings(simulations=12, width=4, exploration=0.5)


class Algo:
    """An algorithm as an evaluation reads it."""

    def __init__(self, run):
        self.config, self.env_runner = run.config, run.runner
        self.learner_group = self

    def get_weights(self):
        return self.env_runner.module.get_state()


def run_of(env):
    return Run(single_config(env=env), learner=False)


@pytest.fixture(scope="module")
def lock():
    return run_of(Lock)


def searched(run, count=6, settings=SETTINGS):
    return search_tasks(run.runner, held_out_tasks(run.config, count), settings)


def outcomes_of(searches):
    return [search.outcome(number) for number, search in enumerate(searches)]


def test_the_search_opens_every_lock_and_repeats(lock):
    # A random policy opens one of eight.
    settings = MctsSettings(simulations=40, width=8, exploration=0.5)
    searches = searched(lock, settings=settings)
    outcomes = outcomes_of(searches)
    assert [o.success for o in outcomes] == [True] * 6
    assert [o.episode_return for o in outcomes] == [1.0] * 6
    assert [o.turns for o in outcomes] == [3] * 6
    assert outcomes == outcomes_of(searched(lock, settings=settings))
    for search in searches:
        # The subtree of the turn that was played counts at the next place.
        assert 40 <= search.simulations < 3 * 40


def test_the_played_turns_have_this_return_in_the_environment(lock):
    tasks = held_out_tasks(lock.config, 6)
    for search, task in zip(searched(lock), tasks, strict=True):
        env = lock.config.make_text_env()
        env.reset(seed=task.seed, options=dict(task.options))
        rewards = []
        for turn in search.played:
            sample = turn.data
            text = sample.episode.get_actions()[sample.turn]
            _, reward, terminated, _, info = env.step(text)
            rewards.append(reward)
        assert rewards == [turn.reward for turn in search.played]
        assert terminated and info["success"] == search.outcome(0).success


def test_environments_without_snapshots_are_searched_alike(lock):
    without = searched(run_of(LockWithoutSnapshots))
    with_snapshots = searched(lock)
    assert outcomes_of(without) == outcomes_of(with_snapshots)
    states = [
        [sample.place.state for sample in samples_with_place(search)]
        for search in (with_snapshots[0], without[0])
    ]
    assert states[0] and all(state is not None for state in states[0])
    assert states[1] and all(state is None for state in states[1])


def samples_with_place(search):
    samples = [turn.data for turn in search.played]
    return [sample for sample in samples if sample.place is not None]


def test_tokens_are_those_of_the_simulations_alone(lock, monkeypatch):
    counts = []
    sample = lock.runner.sample

    def counted(**arguments):
        episodes = sample(**arguments)
        stats = lock.runner.engine.stats()
        lock.runner.engine.reset_stats()
        counts.append(stats["decoded_tokens"])
        return episodes

    monkeypatch.setattr(lock.runner, "sample", counted)
    monkeypatch.setattr(lock.runner, "get_metrics", dict)
    monkeypatch.setattr(lock.runner, "_log_engines", lambda: None)
    lock.runner.engine.reset_stats()
    searches = searched(lock, 2)
    assert sum(search.tokens for search in searches) == sum(counts)


def test_tasks_that_the_environment_fails_are_left_out_of_all_rows():
    run = run_of(Unreliable)
    tasks = held_out_tasks(run.config, 4)
    Unreliable.failing = {tasks[1].seed}
    result = evaluate_search(Algo(run), 4, mcts=SETTINGS)
    Unreliable.failing = set()
    assert result.failures == 1 and result.tasks == 4
    for row in result.rows:
        assert row.success.tasks == 3
    assert "  failed    1 tasks" in "\n".join(report(result))


def test_the_rows_compare_equal_tokens(lock):
    result = evaluate_search(Algo(lock), 5, mcts=SETTINGS)
    rows = {row.name: row for row in result.rows}
    assert list(rows) == ["plain", "best_of, logp", "best_of, oracle", "mcts"]
    mcts, best = rows["mcts"], rows["best_of, oracle"]
    # The episode that reaches the tokens of the search is the last one.
    longest = max(o.tokens for o in result.outcomes["plain"])
    assert mcts.tokens <= best.tokens < mcts.tokens + longest
    by_task = {}
    for outcome in result.outcomes["plain"]:
        by_task.setdefault(outcome.task, []).append(outcome)
    for number, outcomes in by_task.items():
        assert [o.sample for o in outcomes] == list(range(len(outcomes)))
        searched_tokens = result.outcomes["mcts"][number].tokens
        tokens = [o.tokens for o in outcomes]
        assert sum(tokens[:-1]) < searched_tokens <= sum(tokens)
        best_return = max(o.episode_return for o in outcomes)
        assert result.outcomes["best_of, oracle"][number].episode_return == best_return
    plain = np.mean([np.mean([o.success for o in t]) for t in by_task.values()])
    assert rows["plain"].success.mean == pytest.approx(plain)
    assert rows["plain"].episodes == 1.0
    lines = report(result)
    assert len(lines) == 6 and lines[-1].split()[0] == "mcts"


def test_best_of_n_takes_the_highest_score(lock):
    tasks = held_out_tasks(lock.config, 3)
    samples = [
        best_of.TaskSamples(task, number, max_episodes=7)
        for number, task in enumerate(tasks)
    ]
    kept = []

    def record(episodes):
        kept.extend(episodes)
        return best_of.mean_logps(episodes)

    best_of.sample_tasks(lock.runner, samples, {"logp": record})
    for number, each in enumerate(samples):
        assert len(each.outcomes) == 7
        means = []
        for episode in kept[7 * number : 7 * number + 7]:
            logps = [
                float(logp)
                for turn in episode.get_extra_model_outputs("turn")
                for logp in turn.action_logps
            ]
            means.append(sum(logps) / len(logps))
        assert each.scores["logp"] == pytest.approx(means, abs=1e-6)
        assert each.best_by("logp").sample == int(np.argmax(means))


def test_options_of_the_command():
    none = dict.fromkeys(("mcts", "episodes", "best_turn", "beam"))
    settings = MctsSettings(simulations=8, rule="puct", backup="max")
    text = "mcts:simulations=8,rule=puct,backup=max"
    assert parse_searches([text, "best_of"]) == {**none, "mcts": settings}
    assert parse_searches(["mcts:evaluate=critic"])["mcts"].evaluate == "critic"
    assert parse_searches(["best_of"]) == {**none, "episodes": 8}
    assert parse_searches(["best_of:n=3"]) == {**none, "episodes": 3}
    assert parse_searches(["best_turn"]) == {**none, "best_turn": 8}
    assert parse_searches(["best_of", "best_turn:n=4"]) == {**none, "best_turn": 4}
    assert parse_searches(["beam", "best_of"]) == {**none, "beam": BeamSettings()}
    beam = BeamSettings(width=2, expand=3)
    given = parse_searches(["beam:width=2,expand=3", "best_of:n=5"])
    assert given == {**none, "beam": beam, "episodes": 5}


@pytest.mark.parametrize(
    "texts, message",
    [
        (["a_star"], "'a_star' must be one of mcts, best_of, best_turn, beam"),
        (["mcts", "mcts"], "given twice"),
        (["mcts:widht=2"], "no option 'widht'. Did you mean 'width'"),
        (["mcts:width=0"], "width=0 must be an int from 1"),
        (["mcts:rule=ucb"], "rule='ucb' must be one of uct, puct"),
        (["mcts:gamma=2"], "gamma=2 must be a number from 0"),
        (["mcts:exploration=-1"], "exploration=-1 must be a number from 0"),
        (["best_of:n=0"], "n=0 must be an int from 1"),
        (["best_turn:n=1"], "n=1 must be an int from 2"),
        (["best_turn:width=2"], "no option 'width'"),
        (["beam:n=2"], "beam has no option 'n'"),
        (["beam:width=0"], "width=0 must be an int from 1"),
        (["beam:expand=0"], "expand=0 must be an int from 1"),
        (["mcts:backup=sum"], "backup='sum' must be one of mean, max"),
        (["mcts:evaluate=judge"], "evaluate='judge' must be one of rollout, critic"),
        (
            ["mcts:backup=max,evaluate=critic"],
            "beside evaluate='critic'.*backup='mean', or evaluate='rollout'",
        ),
    ],
)
def test_wrong_options_are_refused(texts, message):
    with pytest.raises(ConfigError, match=message):
        parse_searches(texts)


def test_teams_are_refused():
    algo = Algo(Run(team_config(Pair), learner=False))
    with pytest.raises(
        ConfigError, match=r"Tree search, best turn and beam.*agents ann_0, ben_0"
    ):
        evaluate_search(algo, 2, mcts=SETTINGS)
    with pytest.raises(ConfigError, match=r"Tree search, best turn and beam"):
        evaluate_search(algo, 2, beam=BeamSettings())
    with pytest.raises(ConfigError, match="Best of n scores episodes of one agent"):
        evaluate_search(algo, 2, episodes=2)
    with pytest.raises(ConfigError, match="needs mcts, episodes"):
        evaluate_search(algo, 2)
