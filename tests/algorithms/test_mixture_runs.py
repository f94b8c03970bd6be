"""Training runs on mixtures of environments."""

from __future__ import annotations

import json

import numpy as np
import pytest
from side_by_side import flat

from rllib_llm import GRPOConfig, LLMPPOConfig, MARFTConfig
from rllib_llm.data.episode_data import task_of
from rllib_llm.viewer.contents import read_contents
from rllib_llm.yaml_io import dump

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]
TINY = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}
SIZES = {
    "name": "threshold",
    "levels": [{"size": 3}, {"size": 4}],
    "threshold": 0.01,
    "window": 4,
}
BANDIT = {"name": "bandit", "arms": [{"upper": 3}, {"upper": 7}]}
GUESS, LAKE = "guess_number-v0", "frozen_lake-v0"
MIXTURE = {
    "environments": [
        {"env": GUESS, "weight": 2, "curriculum": BANDIT},
        {
            "env": LAKE,
            "env_config": {"max_turns": 8},
            "curriculum": SIZES,
            "rewards": [{"name": "format", "weight": 0.5}],
        },
    ]
}


def config(config_class=GRPOConfig, runners=0, **training):
    return (
        config_class()
        .environment("mixture", env_config=MIXTURE)
        .language_model(tiny=TINY)
        .generation(max_new_tokens=4)
        .rollouts(episodes_per_iteration=12, group_size=2)
        .training(lr=1e-3, **training)
        # One at a time: the last bit of a log-probability depends on its batch.
        .env_runners(num_env_runners=runners, num_envs_per_env_runner=1)
        .evaluation(evaluation_interval=None)
        .debugging(seed=0)
    )


def watched(algo):
    """Return the tasks of the batches that the algorithm samples from now on."""
    batches = []
    sample = algo.sample_groups

    def keep(num_groups):
        episodes = sample(num_groups)
        batches.append([(task_of(e), e.get_return()) for e in episodes])
        return episodes

    algo.sample_groups = keep
    return batches


def weights(algo):
    return {k: np.asarray(v) for k, v in flat(algo.learner_group.get_weights()).items()}


def test_a_restored_run_continues_exactly(tmp_path):
    whole = config(drop_zero_variance_groups=False).build_algo()
    batches = watched(whole)
    whole.train()
    saved = whole.save_to_path(str(tmp_path / "checkpoint"))
    state = json.dumps(whole.package_state(), sort_keys=True, default=str)
    for _ in range(2):
        whole.train()
    restored = config(drop_zero_variance_groups=False).build_algo()
    restored.restore_from_path(saved)
    assert json.dumps(restored.package_state(), sort_keys=True, default=str) == state
    again = watched(restored)
    for _ in range(2):
        restored.train()
    assert again == batches[1:]
    expected, found = weights(whole), weights(restored)
    assert all(np.array_equal(found[k], v) for k, v in expected.items())
    states = restored.driver_state()["llm_driver_components"]
    assert set(states) == {GUESS, LAKE}
    assert {task.environment for task, _ in again[0]} == {GUESS, LAKE}
    restored.stop()
    whole.stop()


@pytest.mark.ray
def test_the_number_of_env_runners_changes_no_batch():
    returns = []
    for runners in (0, 2):
        algo = config(LLMPPOConfig, runners).build_algo()
        batches = watched(algo)
        result = algo.train()
        returns.append(batches)
        each = result["env_runners"]["environments"]
        assert {name: m["num_episodes"] for name, m in each.items()} == {
            GUESS: 8,
            LAKE: 4,
        }
        assert {*result["reward_parts"]} == {LAKE}
        algo.stop()
    assert returns[0] == returns[1]


GAMES = {
    "environments": [
        {"env": "secret_sum-v0", "weight": 2},
        {"env": "team-v0"},
        {"env": "negotiation-v0"},
    ]
}
CENTRAL = {"critic": "central"}


@pytest.mark.parametrize(
    ("config_class", "training"),
    [(GRPOConfig, {}), (LLMPPOConfig, {}), (MARFTConfig, {}), (MARFTConfig, CENTRAL)],
)
def test_games_with_different_agents_share_a_policy(config_class, training):
    cfg = (
        config_class()
        .environment("mixture", env_config=GAMES)
        .language_model(tiny=TINY)
        .generation(max_new_tokens=4)
        .rollouts(
            episodes_per_iteration=8, group_size=2 if config_class is GRPOConfig else 1
        )
        .training(**training)
        .env_runners(num_envs_per_env_runner=4)
        .evaluation(evaluation_interval=None)
    )
    algo = cfg.build_algo()
    result = algo.train()
    each = result["env_runners"]["environments"]
    assert {name: m["num_episodes"] for name, m in each.items()} == {
        "secret_sum-v0": 4,
        "team-v0": 2,
        "negotiation-v0": 2,
    }
    algo.stop()


def test_environments_in_processes():
    algo = config(LLMPPOConfig).rollouts(env_processes=True).build_algo()
    each = algo.train()["env_runners"]["environments"]
    assert {name: m["num_episodes"] for name, m in each.items()} == {GUESS: 8, LAKE: 4}
    algo.stop()


@pytest.mark.ray
def test_groups_sampled_ahead_keep_their_shares():
    algo = config(runners=2).env_runners(sample_ahead=1).build_algo()
    batches = watched(algo)
    for _ in range(3):
        algo.train()
    names = [task.environment for batch in batches for task, _ in batch]
    assert (names.count(GUESS), names.count(LAKE)) == (24, 12)
    algo.stop()


def test_the_commands_treat_each_environment_apart(tmp_path, capsys):
    from rllib_llm.cli.main import main

    def call(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main([str(a) for a in arguments])
        return exit_.value.code or 0, capsys.readouterr().out

    recipe = {
        "algo": "GRPO",
        "env": {"mixture": MIXTURE["environments"]},
        "language_model": {"tiny": TINY},
        "generation": {"max_new_tokens": 4},
        "rollouts": {"episodes_per_iteration": 12, "group_size": 2},
        "evaluation": {"evaluation_interval": 1, "evaluation_duration": 6},
        "stop": {"training_iteration": 1},
        "expect": {f"evaluation/env_runners/environments/{LAKE}/success_rate": 0.0},
    }
    path = tmp_path / "mixed.yaml"
    path.write_text(dump(recipe))
    status, _ = call("train", path, "--storage", tmp_path, "--as-test")
    assert status == 0
    (run,) = tmp_path.glob("mixed_*")
    status, out = call("evaluate", run, "--episodes", 3, "--json")
    evaluations = json.loads(out)["evaluations"]
    assert [(e["env"], e["tasks"]) for e in evaluations] == [(GUESS, 3), (LAKE, 3)]
    assert evaluations[1]["env_config"] == {"max_turns": 8}
    # The same tasks as without a mixture.
    status, out = call(
        "evaluate", run, "--episodes", 3, "--json", "--env", f"{LAKE}:max_turns=8"
    )
    assert json.loads(out)["evaluations"][0] == evaluations[1]
    status, out = call("play", run / "recipe.yaml", run, "--episodes", 2, "--greedy")
    assert status == 0 and "task 1" in out
    episodes = read_contents(run, run)["episodes"]
    assert {episode["environment"] for episode in episodes} == {GUESS, LAKE}
