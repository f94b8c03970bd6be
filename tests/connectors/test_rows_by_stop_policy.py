"""Rows of episodes by end, stop policy and masks."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from multi_toys import Scripted, made, over
from team_helpers import Run, team_config

from rllib_llm import LLMPPOConfig
from rllib_llm.connectors.learner.central_rows import central_columns
from rllib_llm.connectors.learner.token_gae import GAESettings, TokenGAE, episode_gae
from rllib_llm.connectors.learner.token_rows import RowSettings, TokenRows
from rllib_llm.data import columns
from rllib_llm.data.episode_data import EpisodeData, episode_data
from rllib_llm.data.types import FinishReason, Prompt, StopPolicy, TurnResult
from rllib_llm.engines.base import Generation
from rllib_llm.env_runner.task_groups import TaskSource
from rllib_llm.env_runner.turns import sampled_turn
from rllib_llm.envs.text_env import TextEnv


class Rewarded(TextEnv):
    """Three turns; ends where ``ends`` says so, else goes on for ever."""

    max_turns = 50

    def start(self, rng, ends: bool = True):
        self.ends = ends
        return "Go."

    def parse(self, completion):
        return completion or "-"

    def reply(self, action):
        over = self.ends and self.turn == 3
        return TurnResult("On.", float(self.turn), terminated=over)


@pytest.fixture(scope="module")
def played():
    """One episode that ended after three turns, one that was cut there."""
    config = team_config(Rewarded, LLMPPOConfig, policies=None, slots=1)
    config.rollouts(max_turns=3)
    run = Run(config, learner=False)
    tasks = TaskSource(seed=0).next_groups(2)
    ended = run.runner.sample(tasks=tasks[:1])[0]
    tasks[1].options["ends"] = False
    return ended, run.runner.sample(tasks=tasks[1:])[0]


def rows_of(episode, **settings):
    components = TokenRows({"default_policy": RowSettings(pad_id=0, **settings)})
    batch = components(rl_module=None, batch={}, episodes=[episode])
    return batch["default_policy"]


def test_only_truncated_episodes_bootstrap(played):
    ended, cut = played
    assert ended.is_terminated and cut.is_truncated
    for policy in (StopPolicy.TRAIN, StopPolicy.BOOTSTRAP):
        episode_data(ended).stop_policy = episode_data(cut).stop_policy = policy
        last = {
            name: rows_of(e)[columns.BOOTSTRAP_COLUMN][-1]
            for name, e in (("ended", ended), ("cut", cut))
        }
        assert last["ended"] == -1, policy
        assert (last["cut"] >= 0) == (policy is StopPolicy.BOOTSTRAP)
    assert rows_of(cut, has_critic=False)[columns.BOOTSTRAP_COLUMN][-1] == -1


def test_only_truncated_episodes_get_the_final_prompt(played):
    ended, cut = played
    episode_data(cut).stop_policy = StopPolicy.BOOTSTRAP
    # A prompt that was left behind, as a custom connector might.
    episode_data(ended).prompt = Prompt([5, 6, 7], extends=True)
    shown = [rows_of(e)[columns.ATTENTION_MASK].sum() for e in played]
    assert shown[0] == len(episode_data(ended).ids)
    assert shown[1] == len(episode_data(cut).ids) + len(episode_data(cut).prompt.ids)
    episode_data(ended).prompt = Prompt([], extends=True)


def test_masked_turns_and_advantages_are_at_their_turns_tokens(played):
    ended, _ = played
    data = episode_data(ended)
    data.stop_policy = StopPolicy.TRAIN
    data.advantage, data.masked_turns = [1.0, 2.0, 3.0], frozenset({1})
    rows = rows_of(ended, row_per_turn=True)
    found = {}
    for row, turns in enumerate(rows[columns.TURN_IDS]):
        for turn in set(turns[turns >= 0].tolist()):
            here = turns == turn
            mask, advantages = (
                rows["loss_mask"][row][here],
                rows["advantages"][row][here],
            )
            found[turn] = (bool(mask.all()), bool(mask.any()), set(advantages.tolist()))
    assert found == {
        0: (True, True, {1.0}),
        1: (False, False, {0.0}),
        2: (True, True, {3.0}),
    }
    assert len(rows["loss_mask"]) == 3  # one row per turn
    assert len(rows_of(ended)["loss_mask"]) == 1
    data.advantage, data.masked_turns = None, frozenset()


def test_a_central_critic_bootstraps_only_truncated_episodes():
    settings = RowSettings(pad_id=0)
    plans = {"ended": [None, over()], "cut": [None] * 9}
    ends = {}
    for name, plan in plans.items():
        config = team_config(
            made(Scripted, plan, possible_agents=["ann_0", "ben_0"]),
            LLMPPOConfig,
            policies=("a",),
            mapping={"*": "a"},
            rollouts={"max_turns": 2, "stop_policies": {"terminated": "bootstrap"}},
        )
        (episode,) = Run(config, learner=False).sample(1)
        episode_data(episode).stop_policy = StopPolicy.BOOTSTRAP
        found = central_columns([episode], ["a"], settings)
        ends[name] = int(found[columns.BOOTSTRAP_COLUMN][0])
    assert ends["ended"] == -1 and ends["cut"] >= 0


# GAE ----------------------------------------------------------------------------------


def slow_gae(rewards, values, ends, s, bootstrap):
    """The definition, from the last token to the first."""
    out, following, after = np.zeros(len(rewards)), 0.0, bootstrap
    for i in reversed(range(len(rewards))):
        gamma = s.gamma if ends[i] else s.gamma_token
        lambda_ = s.lambda_ if ends[i] else s.lambda_token
        error = rewards[i] + gamma * after - values[i]
        following = out[i] = error + gamma * lambda_ * following
        after = values[i]
    return out


def test_discounts_apply_where_turns_end():
    rng = np.random.default_rng(0)
    for numbers in itertools.permutations([0.5, 0.7, 0.9, 0.95], 4):
        settings = GAESettings(*numbers, whiten=False)
        rewards, values = rng.normal(size=(2, 9))
        ends = np.isin(np.arange(9), [2, 3, 8])
        found, targets = episode_gae(
            rewards, values, ends, settings, bootstrap_value=0.3
        )
        expected = slow_gae(rewards, values, ends, settings, 0.3)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        np.testing.assert_allclose(targets, values + expected, rtol=1e-12)


@pytest.mark.parametrize("whiten", [True, False])
def test_rows_get_the_advantages_of_their_episode(played, whiten):

    _, cut = played
    episode_data(cut).stop_policy = StopPolicy.BOOTSTRAP
    rows = rows_of(cut)
    data = {k: torch.as_tensor(v) for k, v in rows.items()}
    generator = torch.Generator().manual_seed(1)
    shape = data["loss_mask"].shape
    data[columns.VALUES] = torch.randn(shape, generator=generator)
    settings = GAESettings(0.9, 0.8, 0.7, 0.6, whiten=whiten)
    TokenGAE({"p": settings})(rl_module=None, batch={"p": data}, episodes=[])
    mask, turns = rows["loss_mask"][0], rows[columns.TURN_IDS][0]
    last = rows[columns.BOOTSTRAP_COLUMN][0]
    values = data[columns.VALUES][0].double().numpy()
    expected = slow_gae(
        rows[columns.TOKEN_REWARDS][0][mask],
        values[mask],
        np.diff(turns[mask], append=-1) != 0,
        settings,
        values[last],
    )
    if whiten:
        expected = (expected - expected.mean()) / expected.std(ddof=1)
    found = data["advantages"][0].numpy()
    np.testing.assert_allclose(found[mask], expected, rtol=1e-5, atol=1e-6)
    assert not found[~mask].any()


def test_a_recorded_turn_is_the_engines_generation():

    result = Generation(
        request_id=7,
        session_id="s",
        token_ids=np.array([3, 4]),
        logps=np.array([-0.5, -0.25]),
        finish=FinishReason.LENGTH,
        weights_version=9,
        seconds=0.5,
        version_changes=((1, 12),),
    )
    data = EpisodeData(prompt=Prompt([1, 2], extends=False))
    agent = SimpleNamespace(data=data, request_id=7, module_id="a")
    turn = sampled_turn(result, agent)
    assert turn.prompt_ids.tolist() == [1, 2] and not turn.extends
    assert turn.action_ids.tolist() == [3, 4]
    assert turn.action_logps.tolist() == [-0.5, -0.25]
    assert turn.finish is FinishReason.LENGTH and turn.weights_seq_no == 9
    assert turn.token_versions.tolist() == [9, 12]
    assert turn.module_id == "a" and turn.seconds == 0.5 and agent.request_id is None
