"""Tasks of a mixture: shares, groups, held-out tasks, state."""

import collections

import pytest

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.driver.runner_calls import split_by_group
from rllib_llm.env_runner.task_groups import EnvironmentTasks, TaskSource
from rllib_llm.errors import CheckpointError, ConfigError
from rllib_llm.evaluation.outcomes import held_out_tasks

ENVIRONMENTS = [
    EnvironmentTasks("a", 3.0),
    EnvironmentTasks("b", 1.0, first_number=10),
    EnvironmentTasks("c", 2.0),
]
MIXTURE = {
    "environments": [
        {"env": "guess_number-v0", "weight": 2},
        {"env": "frozen_lake-v0", "env_config": {"size": 3}},
    ]
}


def source(seed=1, group_size=4):
    return TaskSource(seed, group_size, environments=ENVIRONMENTS)


def test_a_group_has_one_environment_and_shares_are_exact():
    drawn = source()
    for count in (1, 2, 5, 7, 30):
        for group in range(count):
            tasks = drawn.next_groups(1)
            assert len({(t.group_id, t.seed, t.environment) for t in tasks}) == 1, group
        for environment, number in zip(ENVIRONMENTS, drawn.drawn, strict=True):
            assert abs(number - drawn.cursor * environment.weight / 6) <= 1


def test_every_environment_numbers_its_own_tasks():
    tasks = source(group_size=1).next_groups(12)
    numbers = [t.options["task_number"] for t in tasks if t.environment == "b"]
    assert numbers == [10, 11]
    assert all("task_number" not in t.options for t in tasks if t.environment != "b")


def test_tasks_are_those_of_the_environment_alone():
    alone = TaskSource(1, 1).next_groups(6)
    mixed = [t for t in source(group_size=1).next_groups(12) if t.environment == "a"]
    assert [t.seed for t in mixed] == [t.seed for t in alone]


@pytest.mark.parametrize("cut", [1, 5, 11])
def test_the_state_continues_exactly(cut):
    whole, first, second = source(), source(), source()
    first.next_groups(cut)
    second.set_state(first.get_state())
    assert whole.next_groups(20)[4 * cut :] == second.next_groups(20 - cut)


def test_a_state_of_other_environments_is_refused():
    alone = TaskSource(1)
    with pytest.raises(CheckpointError, match="the tasks of one environment, but"):
        source().set_state(alone.get_state())
    with pytest.raises(CheckpointError, match="'a', 'b', 'c', but the run samples one"):
        alone.set_state(source().get_state())


def test_evaluation_gives_every_environment_as_many_tasks():
    config = GRPOConfig().environment("mixture", env_config=MIXTURE)
    tasks = config.build_task_source(in_evaluation=True).fixed(10)
    assert collections.Counter(t.environment for t in tasks) == {
        "guess_number-v0": 5,
        "frozen_lake-v0": 5,
    }
    alone = GRPOConfig().environment("guess_number-v0")
    expected = [t.seed for t in held_out_tasks(alone, 5)]
    assert [t.seed for t in tasks if t.environment == "guess_number-v0"] == expected
    # Two EnvRunners together play the same tasks.
    halves = [
        config.build_task_source(in_evaluation=True).fixed(5, first=k, stride=2)
        for k in (0, 1)
    ]
    key = repr
    assert sorted(map(key, halves[0] + halves[1])) == sorted(map(key, tasks))


def test_held_out_tasks_are_those_of_the_environment_alone():
    config = GRPOConfig().environment("mixture", env_config=MIXTURE)
    plain = GRPOConfig().environment("frozen_lake-v0")
    mixed = held_out_tasks(config, 5, "frozen_lake-v0")
    assert [t.seed for t in mixed] == [t.seed for t in held_out_tasks(plain, 5)]
    with pytest.raises(ConfigError, match="no environment 'frozen_lake'. Did you mean"):
        held_out_tasks(config, 5, "frozen_lake")


def test_every_part_of_a_batch_has_its_share_of_environments():
    parts = split_by_group(source().next_groups(12), 2)
    counts = [collections.Counter(t.environment for t in part) for part in parts]
    assert all(abs(counts[0][name] - counts[1][name]) <= 4 for name in "abc")
    groups = [{t.group_id for t in part} for part in parts]
    assert not groups[0] & groups[1]
