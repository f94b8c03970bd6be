"""The evaluation before training, and its advice on failed imitation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.driver.first_evaluation import imitation_advice
from rllib_llm.evaluation.outcomes import held_out_tasks
from rllib_llm.evaluation.summary import evaluate_algorithm
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.offline.random_policy import RandomPolicyResult, is_below


def game(**sft):
    sft = {"demonstrations": 40, "epochs": 1, "lr": 3e-3, **sft}
    return (
        GRPOConfig()
        .environment("guess_number-v0", env_config={"upper": 7, "max_turns": 3})
        .language_model(tiny={"hidden_size": 32})
        .generation(max_new_tokens=8)
        .rollouts(episodes_per_iteration=8, group_size=4)
        .sft(**sft)
        .training(lr=1e-3)
        .evaluation(evaluation_interval=2, evaluation_duration=16)
    )


def test_the_first_result_has_the_evaluation_of_the_imitated_policy(ray_session):
    algo = game().evaluation(evaluation_config={"explore": False}).build_algo()
    before, _ = evaluate_algorithm(algo, 16, greedy=True)
    first, second = algo.train(), algo.train()
    algo.stop()
    found = first["evaluation_before_training"]
    assert found["env_runners"]["success_rate"] == before.success.mean
    assert found["env_runners"]["num_episodes"] == 16
    assert "transcripts" not in found["env_runners"]
    assert "evaluation" not in first  # evaluation_interval is 2
    assert second["evaluation"]["env_runners"]["num_episodes"] == 16
    assert "evaluation_before_training" not in second
    assert 0.0 < found["random_success_rate"] < 1.0


@pytest.mark.parametrize(
    "setting",
    [
        {"evaluation_before_training": False},
        {"evaluation_interval": None},
        {"evaluation_duration": "auto", "evaluation_parallel_to_training": True},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_runs_without_it(setting):
    assert game().evaluates_first
    assert not game().evaluation(**setting).evaluates_first


def test_a_resumed_run_has_none(ray_session, tmp_path):
    algo = game().build_algo()
    algo.train()
    checkpoint = algo.save_to_path(str(tmp_path))
    algo.stop()
    again = type(algo).from_checkpoint(checkpoint)
    assert "evaluation_before_training" not in again.train()
    again.stop()


def first_of(success, episodes):
    return {"env_runners": {"success_rate": success, "num_episodes": episodes}}


def test_an_imitation_worse_than_random_play_gets_advice():
    chance = RandomPolicyResult(successes=26, episodes=128)
    advice = imitation_advice(game(), first_of(0.02, 100), chance)
    for part in ("2% (n=100)", "20% (n=128)", "vocab_size=320", "observation_weight"):
        assert part in advice
    folder = game().language_model(model="/models/mine")
    assert "vocab_size" not in imitation_advice(folder, first_of(0.02, 100), chance)
    for good in (0.18, 0.2, 0.9):
        assert imitation_advice(game(), first_of(good, 100), chance) is None
    assert imitation_advice(game(), {"env_runners": {}}, chance) is None


def test_below_means_more_than_chance_explains():
    assert is_below(0, 100, RandomPolicyResult(3, 128))
    assert not is_below(0, 100, RandomPolicyResult(0, 128))
    assert not is_below(33, 64, RandomPolicyResult(72, 128))
    assert not is_below(64, 64, RandomPolicyResult(72, 128))


def played_by_hand(config, count):
    """Random actions on held-out tasks, one after the other."""
    env = config.make_text_env()
    for task in held_out_tasks(config, count):
        rng = np.random.default_rng([task.seed, 1])
        env.reset(seed=task.seed, options={"split": "test"})
        over = False
        while not over:
            rng.random()  # whether the script errs: always
            *_, ended, cut, info = env.step(env.unwrapped.random_action(rng))
            over = ended or cut
        yield info["success"]


def test_random_play_is_stored_beside_the_imitated_model():
    config = game()
    config.resolved_model = prepare_language_model(config)
    stored = Path(config.resolved_model, "random_play.json").read_text()
    chance = RandomPolicyResult.of_model(config)
    assert 0 < chance.successes < chance.episodes
    assert chance == RandomPolicyResult(**json.loads(stored))
    assert chance.episodes == 40  # as many as demonstrations
    assert chance.successes == sum(played_by_hand(config, 40))
    other = game().evaluation(evaluation_config={"env_config": {"upper": 63}})
    other.resolved_model = config.resolved_model
    assert RandomPolicyResult.of_model(other) is None
