"""Training with the action head: advantages per turn, agreement, errors, learning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learner_helpers import TINY, make_learner
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from rllib_llm import GRPO, LLMPPO, GRPOConfig, LLMPPOConfig, MARFTConfig
from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import Task
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.errors import ConfigError, EnvContractError
from rllib_llm.offline.prepare_model import prepare_language_model


def config_of(kind=LLMPPOConfig, env="guess_number-v0", env_config=None, **generation):
    return (
        kind()
        .environment(env, env_config=env_config or {})
        .language_model(tiny=TINY)
        .generation(**{"head": "score", "temperature": 5.0, **generation})
        .rollouts(episodes_per_iteration=16)
    )


class Run:
    """A runner and a Learner with the same weights, without Ray."""

    def __init__(self, config):
        config.validate()
        config.resolved_model = prepare_language_model(config)
        self.learner = make_learner(config)
        self.runner = LLMEnvRunner(config=config)
        self.runner.share_weights_of(
            {DEFAULT_MODULE_ID: self.learner.module[DEFAULT_MODULE_ID].unwrapped()}
        )

    def sample(self, count: int = 6):
        return self.runner.sample(tasks=[Task(i, 0, i) for i in range(count)])

    def batch(self, episodes):
        made = self.learner._make_batch_if_necessary(
            training_data=LLMTrainingData(episodes=episodes)
        )
        return dict(made.policy_batches[DEFAULT_MODULE_ID])

    def update(self, episodes, **kwargs):
        results = self.learner.update(
            training_data=LLMTrainingData(episodes=episodes), timesteps={}, **kwargs
        )
        return results[DEFAULT_MODULE_ID]


@pytest.mark.parametrize("norm", ["sum", "token", "word"])
@pytest.mark.parametrize("model", [{}, {"lora": {"rank": 4, "alpha": 8}}])
def test_learner_and_sampler_agree(norm, model):
    config = config_of(score_norm=norm).language_model(**model)
    config.training(ref_kl_coeff=0.1, micro_batch_tokens=600)
    run = Run(config)
    found = run.update(run.sample(), num_epochs=2, minibatch_size=3)
    assert found["train_inference_mismatch_max"].peek() < 1e-4
    assert found["ref_kl"].peek() >= 0.0
    batch = run.batch(run.sample())
    mask = batch[Columns.LOSS_MASK]
    old, recorded = batch[Columns.ACTION_LOGP], batch[columns.BEHAVIOUR_LOGP]
    torch.testing.assert_close(old[mask], recorded[mask], atol=1e-4, rtol=1e-4)
    reference = batch[columns.REF_LOGP]
    assert (reference[mask] != old[mask]).any()  # the policy has moved
    assert (reference[mask] <= 0).all() and not reference[~mask].any()


def test_a_turn_is_one_step_of_gamma_and_lambda():
    config = config_of(env_config={"max_turns": 4, "invalid_action_reward": -0.5})
    config.training(gamma=0.9, lambda_=0.7, whiten_advantages=False)
    run = Run(config)
    episodes = run.sample(8)
    batch = run.batch(episodes)
    checked = 0
    for row, episode in enumerate(episodes):
        mask = batch[Columns.LOSS_MASK][row]
        values = batch[columns.VALUES][row][mask].double().tolist()
        rewards = list(episode.get_rewards())
        assert len(values) == len(rewards)
        column = int(batch[columns.BOOTSTRAP_COLUMN][row])
        assert (column >= 0) == episode.is_truncated
        after = float(batch[columns.VALUES][row, column]) if column >= 0 else 0.0
        expected, advantage = [], 0.0
        for reward, value in zip(rewards[::-1], values[::-1], strict=True):
            advantage = reward + 0.9 * after - value + 0.9 * 0.7 * advantage
            after = value
            expected.append(advantage)
            checked += 1
        found = batch[Columns.ADVANTAGES][row][mask].numpy()
        np.testing.assert_allclose(found, expected[::-1], atol=1e-5)
    assert checked > 16 and any(e.is_truncated for e in episodes)


def test_values_stand_at_the_last_prompt_token():
    """Neither rejected actions nor taken ones change an earlier value."""
    run = Run(config_of())
    episodes = run.sample(2)
    before = run.batch(episodes)[columns.VALUES]
    mask = run.batch(episodes)[Columns.LOSS_MASK]
    first = mask & (mask.cumsum(1) == 1)
    for episode in episodes:
        for turn in episode.get_extra_model_outputs("turn"):
            turn.choice.others[:] = [ids + 1 for ids in turn.choice.others]
            turn.action_ids = turn.action_ids + 1
    after = run.batch(episodes)[columns.VALUES]
    torch.testing.assert_close(before[first], after[first], atol=1e-6, rtol=1e-5)


def test_entropy_is_that_of_the_categorical():
    run = Run(config_of(temperature=1e6))
    found = run.update(run.sample())
    assert found["entropy"].peek() == pytest.approx(np.log(31), abs=1e-3)


def test_group_advantages_apply_to_whole_turns():
    run = Run(config_of(GRPOConfig).rollouts(group_size=2))
    episodes = run.sample(4)
    for i, episode in enumerate(episodes):
        episode_data(episode).advantage = float(i + 1)
    batch = run.batch(episodes)
    for row in range(4):
        mask = batch[Columns.LOSS_MASK][row]
        assert int(mask.sum()) == len(episodes[row])
        assert (batch[Columns.ADVANTAGES][row][mask] == row + 1).all()
    assert run.update(episodes)["train_inference_mismatch_max"].peek() < 1e-4


def test_rows_hold_the_experts_choices():
    """At the first token of each action of a turn, also after it was not taken."""
    config = config_of(env_config={"upper": 5, "report_expert": True})
    config.training(loss_terms=[{"name": "distill_actions", "teacher": "expert"}])
    run = Run(config)
    episodes = run.sample()
    batch = run.batch(episodes)
    decode, untaken = config.chat_renderer().decode, 0
    for row, episode in enumerate(episodes):
        starts = batch[columns.CHOICE_STARTS][row]
        probs, ids = (
            batch[name][row] for name in (columns.EXPERT_PROBS, columns.INPUT_IDS)
        )
        turns = episode.get_extra_model_outputs(columns.TURN)
        assert float(probs.sum()) == len(turns)
        for column in probs.nonzero()[:, 0].tolist():
            number = int(batch[columns.CANDIDATES][row, column])
            turn = turns[int(batch[columns.TURN_IDS][row, starts[column]])]
            every = [turn.action_ids, *turn.choice.others]
            best = every[int(turn.choice.expert_probs.argmax())]
            assert ids[column : column + len(best)].tolist() == list(best)
            assert decode(best).startswith("guess")
            untaken += number > 0
    assert untaken
    turns[0].choice.expert_probs = None
    with pytest.raises(EnvContractError, match="teacher='expert'"):
        run.batch(episodes)


@pytest.mark.ray
def test_a_run_goes_on_from_its_checkpoint(ray_session, tmp_path):
    config = config_of(env="copy_probe-v0").training(lr=1e-3)
    algo = config.build_algo()
    algo.train()
    algo.save_to_path(tmp_path / "checkpoint")
    again = LLMPPO.from_checkpoint(tmp_path / "checkpoint")
    tasks = [Task(i, 0, 100 + i) for i in range(8)]
    turns = [
        [
            turn
            for episode in each.env_runner.sample(tasks=tasks)
            for turn in episode.get_extra_model_outputs("turn")
        ]
        for each in (algo, again)
    ]
    assert len(turns[0]) == len(turns[1]) == 16
    for one, other in zip(*turns, strict=True):
        np.testing.assert_array_equal(one.action_ids, other.action_ids)
        np.testing.assert_allclose(one.action_logps, other.action_logps, atol=1e-6)
    algo.stop()
    again.stop()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize(
    ("kind", "settings", "env"),
    [
        (LLMPPOConfig, {"minibatch_size": 8, "critic_lr": 1e-2}, "bandit_probe-v0"),
        (LLMPPOConfig, {"minibatch_size": 8, "critic_lr": 1e-2}, "copy_probe-v0"),
        (GRPOConfig, {"minibatch_size": 8}, "copy_probe-v0"),
    ],
)
def test_probes_are_learned(ray_session, kind, settings, env):
    config = config_of(kind, env, temperature=1.0)
    config.training(lr=2e-3, entropy_coeff=0.02, **settings)
    config.rollouts(episodes_per_iteration=64)
    algo = config.build_algo()
    returns = [algo.train()["env_runners"]["episode_return_mean"] for _ in range(20)]
    algo.stop()
    assert returns[0] < 0.6 and max(returns[12:]) > 0.9


def refusals():
    score = config_of
    yield score(engine="vllm"), r"engine='vllm' samples tokens.*Leave engine out"
    yield score(stop_strings=["."]), r"stop_strings=\['.'\] would have no effect"
    yield (
        score(max_new_tokens=8),
        r"max_new_tokens=8 would have no effect: head='score'",
    )
    yield (
        score(kv_cache_gib=1.0),
        r"kv_cache_gib=1.0 would have no effect: head='score'",
    )
    yield (
        score(head="generate", score_norm="word"),
        r"score_norm='word' would have no effect: head='generate'",
    )
    for name, value in (
        ("gae_level", "turn"),
        ("gamma_token", 0.9),
        ("lambda_length_alpha", 0.05),
    ):
        yield score().training(**{name: value}), f"{name}=.*a turn is one step"
    yield (
        score(env="countdown-v0"),
        r"'countdown-v0' after reset returned info\['admissible_actions'\] = None.*"
        r"TextEnv.admissible_actions.*head='generate'",
    )
    yield score(env_config={"upper": 1000}), r"'guess_number-v0' after reset returned"
    yield (
        score().env_runners(env_runner_cls=SingleAgentEnvRunner),
        "head='score' needs LLMEnvRunner",
    )
    team = {"policies": ["a"], "policy_mapping_fn": {"*": "a"}}
    yield (
        score(MARFTConfig, "secret_sum-v0").multi_agent(**team),
        r"'secret_sum-v0' after reset \(\w+\) returned",
    )
    yield (
        score(MARFTConfig, "open_spiel/kuhn_poker-v0").multi_agent(**team),
        "MARFT's advantages need sampled messages",
    )
    exact = {"name": "distill_actions", "weight": 1.0}
    yield (
        score(head="generate").training(loss_terms=[exact]),
        "head='generate' writes tokens and has no such list.*loss term distill,",
    )
    expert = {**exact, "teacher": "expert"}
    yield (
        score().training(loss_terms=[expert]),
        r"'guess_number-v0' after reset has no info\['expert_probs'\].*"
        "env_config.report_expert",
    )


@pytest.mark.parametrize(("config", "message"), refusals())
def test_what_cannot_work_is_refused(config, message):
    if "open_spiel" in str(config.env):
        pytest.importorskip("pyspiel")
    with pytest.raises(ConfigError, match=message):
        config.validate()


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"score_norm": "mean"}, "score_norm='mean' must be one of sum, token, word"),
        ({"head": "scores"}, "head='scores' must be one of.*Did you mean 'score'"),
    ],
)
def test_unknown_choices_are_refused(generation, message):
    with pytest.raises(ConfigError, match=message):
        config_of(**generation)


def test_algorithms_that_have_it():
    for algorithm in (LLMPPO, GRPO):
        settings = algorithm.get_default_config()
        assert settings.action_head == "generate"
        config_of(type(settings)).validate()
