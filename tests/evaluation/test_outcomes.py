"""Outcomes of tasks: samples, greedy decoding, failures."""

import pytest
from team_helpers import Alone, Pair, Run, single_config, team_config

from rllib_llm.errors import ConfigError
from rllib_llm.evaluation.outcomes import by_task, held_out_tasks, play_tasks
from rllib_llm.evaluation.summary import _pass_at, summarise

FAILING_SEEDS: set[int] = set()


class Unreliable(Alone):
    """Raises for the seeds in FAILING_SEEDS."""

    def reset(self, *, seed=None, options=None):
        self.fails = seed in FAILING_SEEDS
        return super().reset(seed=seed, options=options)

    def reply(self, action):
        if self.fails:
            raise RuntimeError("out of order")
        return super().reply(action)


@pytest.fixture(scope="module")
def alone():
    return Run(single_config(env=Unreliable), learner=False)


def play(run, num_tasks, **arguments):
    tasks = held_out_tasks(run.config, num_tasks)
    return play_tasks(None, tasks, runner=run.runner, **arguments)


def test_samples_of_a_task_differ_and_repeat(alone):
    first = play(alone, 5, greedy=False, samples=3)
    assert [(o.task, o.sample) for o in first] == [
        (task, sample) for task in range(5) for sample in range(3)
    ]
    assert first == play(alone, 5, greedy=False, samples=3)
    assert len({o.seed for o in first}) == 5
    returns = [[o.episode_return for o in group] for group in by_task(first)]
    assert any(len(set(group)) > 1 for group in returns)
    # A task's first sample equals the only sample of samples=1.
    assert play(alone, 5, greedy=False) == [o for o in first if o.sample == 0]
    greedy = play(alone, 5, greedy=True)
    assert greedy == play(alone, 5, greedy=True)
    # Greedy tokens differ from those of the first sample.
    tasks = held_out_tasks(alone.config, 5)
    likely = alone.runner.sample(tasks=tasks, explore=False)
    assert [o.episode_return for o in greedy] == [e.get_return() for e in likely]
    assert greedy != play(alone, 5, greedy=False)


def test_greedy_samples_are_refused(alone):
    with pytest.raises(ConfigError, match="greedy samples are all equal"):
        play(alone, 2, greedy=True, samples=2)


def test_failed_tasks_do_not_count_as_zero(alone):
    seeds = [t.seed for t in held_out_tasks(alone.config, 6)]
    clean = play(alone, 6, greedy=False)
    FAILING_SEEDS.update(seeds[1:5])  # more than max_failed_fraction
    outcomes = play(alone, 6, greedy=False)
    FAILING_SEEDS.clear()
    failed = [o for o in outcomes if o.failure]
    assert [o.seed for o in failed] == seeds[1:5]
    assert {(o.failure, o.episode_return, o.success) for o in failed} == {
        ("env_error", None, None)
    }
    assert [o for o in outcomes if not o.failure] == [clean[0], clean[5]]
    arguments = {"env": "x", "env_config": {}, "greedy": False, "samples": 1}
    summary = summarise(outcomes, **arguments)
    assert summary.failures == {"env_error": 4} and summary.episodes == 2
    both = [clean[0].episode_return, clean[5].episode_return]
    assert summary.episode_return.mean == pytest.approx(sum(both) / 2)
    nothing = summarise(failed, **arguments)
    assert nothing.episodes == 0 and nothing.episode_return is nothing.success is None


def test_outcomes_of_a_team_have_agent_returns():
    run = Run(team_config(Pair), learner=False)
    for outcome in play(run, 3, greedy=False):
        parts = outcome.agent_returns
        assert set(parts) == {"ann_0", "ben_0"} and outcome.turns == 4
        assert outcome.episode_return == pytest.approx(sum(parts.values()))
        assert outcome.tokens > 0 and outcome.success is True


def test_pass_at_k_of_an_evaluation(alone):
    outcomes = play(alone, 6, greedy=False, samples=3)
    arguments = {"env": "x", "env_config": {}, "greedy": False, "samples": 3}
    summary = summarise(outcomes, **arguments)
    assert list(summary.pass_at) == [1, 2, 3]
    assert summary.pass_at[1].mean == pytest.approx(summary.success.mean)
    any_solved = [any(o.success for o in group) for group in by_task(outcomes)]
    assert summary.pass_at[3].mean == pytest.approx(sum(any_solved) / 6)


def test_held_out_tasks_are_not_in_training(alone):
    tasks = held_out_tasks(alone.config, 4)
    assert {t.options["split"] for t in tasks} == {"test"}


def test_tasks_with_too_few_samples_do_not_count_in_pass_at_k():
    found = _pass_at([[1.0, 0.0], [0.0, 0.0], [1.0]], 2)
    assert (found[1].tasks, found[2].tasks) == (3, 2)
    assert found[2].mean == 0.5
