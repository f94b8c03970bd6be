"""Batches of non-LLM RLModules: equal to RLlib's, and GAE by a slow loop."""

import numpy as np
import pytest
import torch
from non_llm_toys import Beside, Errand, NonLLMRun, non_llm_config
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.learner import (
    AddOneTsToEpisodesAndTruncate,
    GeneralAdvantageEstimation,
)
from ray.rllib.core.columns import Columns

from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.connectors.learner.non_llm_batches import stock_episode
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data, policy_episodes

GAMMA, LAMBDA = 0.9, 0.8
OWN = {"training": {"gamma": GAMMA, "lambda_": LAMBDA}}
RUNNER = {"rl_module": {"model_config": {"fcnet_hiddens": [8]}}, **OWN}


def batches(run, episodes):
    run.learner._choose_modules()
    data = LLMTrainingData(episodes=episodes)
    made = run.learner._make_batch_if_necessary(training_data=data)
    return {m: dict(b) for m, b in made.policy_batches.items()}


def parts_of(episodes):
    return [
        part
        for episode in episodes
        for part in policy_episodes(episode)
        if part.module_id == "run"
    ]


def stock_batch(run, parts):
    """Return the batch that a stock PPO's pipeline builds from the parts."""
    config = PPOConfig().multi_agent(policies={"run"}, policy_mapping_fn=lambda *_: 0)
    pipeline = config.build_learner_connector(None, None)
    pipeline.prepend(AddOneTsToEpisodesAndTruncate())
    pipeline.append(GeneralAdvantageEstimation(gamma=GAMMA, lambda_=LAMBDA))
    made = pipeline(
        rl_module=run.learner.module,
        batch={},
        episodes=[stock_episode(part) for part in parts],
        shared_data={},
    )
    return made["run"]


def slow_gae(run, part):
    """Advantages of an agent's part, not standardised, and its values. [H], [H]"""
    module = run.learner.module["run"].unwrapped()
    read = torch.as_tensor(np.stack(part.get_observations()))
    values = module.compute_values({"obs": read}).detach().double().numpy()
    policy = episode_data(part).stop_policy.value
    cut = part.is_truncated and policy == "bootstrap"
    advantages, trace = np.zeros(len(part)), 0.0
    for t in reversed(range(len(part))):
        is_last = t == len(part) - 1
        after = values[t + 1] if not is_last or cut else 0.0
        delta = part.get_rewards(t) + GAMMA * after - values[t]
        trace = delta + GAMMA * LAMBDA * (0.0 if is_last else trace)
        advantages[t] = trace
    return advantages, values[:-1]


def whatever_cuts(policy):
    return {"max_turns": policy, "max_tokens_turn": policy}


ENDS = {
    "terminated": (Errand, {}),
    "cut by the game": (Beside, {}),
    "cut while others act": (Errand, {"max_turns": 5}),
    "cut but final": (
        Errand,
        {"max_turns": 5, "stop_policies": whatever_cuts("train")},
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_batches_and_advantages_are_rllibs(end):
    env, rollouts = ENDS[end]
    run = NonLLMRun(non_llm_config(env, runner=RUNNER, rollouts=rollouts))
    episodes = run.sample(5)
    made, parts = batches(run, episodes)["run"], parts_of(episodes)
    stock = stock_batch(run, parts)
    assert set(made) == {*stock, columns.MULTI_AGENT_EPISODE_INDEX, columns.HOST}
    for key, value in stock.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(made[key], value), key
    mask = made[Columns.LOSS_MASK].numpy()
    found = [slow_gae(run, part) for part in parts]
    targets = np.concatenate([a + v for a, v in found])
    np.testing.assert_allclose(
        made[Columns.VALUE_TARGETS].numpy()[mask], targets, atol=1e-6
    )
    advantages = np.concatenate([a for a, _ in found])
    # RLlib standardises with its added time steps; the ratio of differences stays.
    ours = made[Columns.ADVANTAGES].double().numpy()[mask]
    spread = np.ptp(ours) / np.ptp(advantages)
    np.testing.assert_allclose(
        ours - ours[0], spread * (advantages - advantages[0]), atol=1e-5
    )
    assert spread > 0
    stop_policies = {episode_data(part).stop_policy.value for part in parts}
    assert (
        stop_policies == {"train"}
        if "final" in end
        else stop_policies <= {"train", "bootstrap"}
    )


def test_rows_name_their_game_and_leave_the_bootstrap_step_out():
    run = NonLLMRun(non_llm_config(Beside, runner=RUNNER))
    made = batches(run, run.sample(2))["run"]
    # Runners of a game act 4 and 2 times; each has one more step for the bootstrap.
    assert made[columns.MULTI_AGENT_EPISODE_INDEX].tolist() == [0] * 8 + [1] * 8
    per_game = [True] * 4 + [False] + [True] * 2 + [False]
    assert made[Columns.LOSS_MASK].tolist() == per_game * 2
    truncated = np.flatnonzero(made[Columns.TRUNCATEDS]).tolist()
    assert truncated == [3, 11]
    assert np.flatnonzero(made[Columns.TERMINATEDS]).tolist() == [6, 14]


def test_masked_games_are_left_out():
    rollouts = {"max_turns": 5, "stop_policies": whatever_cuts("mask")}
    run = NonLLMRun(non_llm_config(Errand, runner=RUNNER, rollouts=rollouts))
    assert "run" not in batches(run, run.sample(2))


def test_the_record_stays_as_it_was():
    run = NonLLMRun(non_llm_config(runner=RUNNER))
    episodes = run.sample(2)
    ids = [part.id_ for part in parts_of(episodes)]
    first = batches(run, episodes)["run"]
    again = batches(run, episodes)["run"]
    assert [part.id_ for part in parts_of(episodes)] == ids
    assert [len(part) for part in parts_of(episodes)] == [3, 3]
    assert first.pop(columns.HOST) is not again.pop(columns.HOST)
    for key, value in first.items():
        assert torch.equal(value, again[key]), key


def test_rows_of_language_models_do_not_change():
    run = NonLLMRun(non_llm_config(runner=RUNNER))
    alone = NonLLMRun(
        non_llm_config(policies={"talk": {}, "run": RUNNER}, train=["talk"])
    )
    alone.learner.module["talk"].unwrapped().load_state_dict(
        run.learner.module["talk"].unwrapped().state_dict()
    )
    episodes = run.sample(3)
    beside, without = batches(run, episodes), batches(alone, episodes)
    assert set(beside) == {"talk", "run"} and set(without) == {"talk"}
    for key, value in without["talk"].items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, beside["talk"][key]), key
