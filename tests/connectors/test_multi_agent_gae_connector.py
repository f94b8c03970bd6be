"""GAE from agent to agent, against loops over the episodes themselves."""

import numpy as np
import pytest
import torch
from chain_reference import (
    central_values,
    chain,
    conversation,
    shared_values,
    value_at,
)
from ray.rllib.core.columns import Columns
from team_helpers import (
    Pair,
    PairTogether,
    Quiet,
    Run,
    batches,
    random_script,
    team_config,
    turns_of,
    wake_critic,
)

from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import StopReason

PLAIN = {"gamma": 0.9, "lambda_": 0.8, "whiten_advantages": False}
VIEWS = {"shared": shared_values, "central": central_values}


def team(env=Pair, **sections):
    training = PLAIN | sections.pop("training", {})
    run = Run(team_config(env, training=training, **sections))
    awake = ["critic"] if run.config.critic_view else run.config.trained_module_ids
    for module_id in awake:
        wake_critic(run.learner, module_id)
    return run


def messages(data, key):
    """{(episode, step, agent): entries of its tokens}."""
    found = {}
    rows, cols = np.nonzero(data[Columns.LOSS_MASK].numpy())
    for row, col in zip(rows, cols, strict=True):
        name = (
            int(data[columns.MULTI_AGENT_EPISODE_INDEX][row]),
            int(data[columns.TURN_STEPS][row, col]),
            int(data[columns.AGENT_INDEX][row]),
        )
        found.setdefault(name, []).append(float(data[key][row, col]))
    return found


def expected(run, episode, **how):
    """Advantages and targets by step."""
    critic = run.learner.module["critic"].unwrapped()
    value_of = VIEWS[run.config.critic](critic, episode)
    settings = {"gamma": PLAIN["gamma"], "lambda_": PLAIN["lambda_"], **how}
    return chain(episode, value_of, **settings)


def check(run, episodes, **how):
    made = batches(run.learner, episodes)
    found = {}
    for module_id in run.config.trained_module_ids:
        found |= messages(made[module_id], Columns.ADVANTAGES)
    wanted = [expected(run, e, **how) for e in episodes]
    assert found
    for (joint, step, _), got in found.items():
        assert got == pytest.approx([wanted[joint][0][step]] * len(got), abs=2e-5)
    for (joint, step, _), got in messages(
        made["critic"], Columns.VALUE_TARGETS
    ).items():
        assert got == pytest.approx([wanted[joint][1][step]] * len(got), abs=2e-5)
    assert len({round(x[0], 4) for x in found.values()}) > len(found) // 4
    return made


@pytest.mark.parametrize("critic", ["shared", "central"])
@pytest.mark.parametrize("env", [Pair, PairTogether, Quiet])
def test_gae_runs_through_the_messages_of_all_agents(env, critic):
    run = team(env, training={"critic": critic})
    check(run, run.sample(2))


@pytest.mark.parametrize("critic", ["shared", "central"])
def test_a_truncated_episode_bootstraps_from_the_next_agent(critic):
    run = team(training={"critic": critic}, rollouts={"max_turns": 3})
    episodes = run.sample(2)
    assert all(e.is_truncated for e in episodes)
    check(run, episodes)


def test_an_agent_truncated_early_does_not_bootstrap_a_finished_episode():
    class Leaving(Pair):
        def apply(self, agent, action):
            outcome = super().apply(agent, action)
            outcome.truncated = ["ann_0"] if self.turn == 3 else False
            outcome.terminated = self.turn == 4
            return outcome

    run = team(Leaving)
    (episode,) = run.sample(1)
    assert episode.agent_episodes["ann_0"].is_truncated
    assert episode.agent_episodes["ben_0"].is_terminated
    critic = run.learner.module["critic"].unwrapped()
    inner = shared_values(critic, episode)
    wanted, _ = chain(
        episode,
        lambda agent, step: inner(agent, step) if agent else 0.0,
        gamma=0.9,
        lambda_=0.8,
    )
    made = batches(run.learner, [episode])
    # On her own, Ann would be bootstrapped: her row says so.
    assert (made["a"][columns.BOOTSTRAP_COLUMN] >= 0).all()
    for module_id in "ab":
        for (_, step, _), got in messages(made[module_id], Columns.ADVANTAGES).items():
            assert got == pytest.approx([wanted[step]] * len(got), abs=2e-5)


@pytest.mark.parametrize("critic", ["shared", "central"])
def test_without_the_next_agents_row_the_mean_last_value_bootstraps(
    critic,
):
    generation = {"max_new_tokens": 4, "max_context_tokens": 160}
    run = team(
        env_config={"rounds": 9}, training={"critic": critic}, generation=generation
    )
    (episode,) = run.sample(1)
    assert episode_data(episode).stop_reason is StopReason.CONTEXT_OVERFLOW
    assert not any(episode_data(p).prompt for p in episode.agent_episodes.values())
    module = run.learner.module["critic"].unwrapped()
    inner = VIEWS[critic](module, episode)

    def value_of(agent, step):
        if agent or critic == "central":
            return inner(agent, step)
        ends = [value_at(module, conversation(episode, a), None) for a in AGENTS]
        return sum(ends) / 2

    wanted, _ = chain(episode, value_of, gamma=0.9, lambda_=0.8)
    assert abs(value_of(None, None)) > 1e-3
    made = batches(run.learner, [episode])
    for module_id in "ab":
        for (_, step, _), got in messages(made[module_id], Columns.ADVANTAGES).items():
            assert got == pytest.approx([wanted[step]] * len(got), abs=2e-5)


def test_the_team_reward_may_be_the_sum():
    run = team(training={"team_reward": "sum"})
    check(run, run.sample(2), how="sum")


def test_values_of_each_policys_critic():
    run = team(training={"critic": "own"})
    (episode,) = run.sample(1)
    modules = {a: run.learner.module[m].unwrapped() for a, m in AGENTS.items()}
    views = {a: shared_values(m, episode) for a, m in modules.items()}

    def value_of(agent, step):
        return views[agent](agent, step) if agent else 0.0

    wanted, _ = chain(episode, value_of, gamma=0.9, lambda_=0.8)
    made = batches(run.learner, [episode])
    for module_id in "ab":
        for (_, step, _), got in messages(made[module_id], Columns.ADVANTAGES).items():
            assert got == pytest.approx([wanted[step]] * len(got), abs=2e-5)


AGENTS = {"ann_0": "a", "ben_0": "b"}


def test_rewards_after_scripted_turns_belong_to_the_message_before():
    policies = {"a": None, "b": {"scripted_policy": random_script}}
    run = team(policies=policies)
    check(run, run.sample(2), trained={"ann_0"})


def test_rewards_of_an_agent_that_never_acts_count_for_the_team():
    class Generous(Pair):
        possible_agents = ["ann_0", "ben_0", "cid_0"]

        def next_agent(self):
            return self.possible_agents[self.turn % 2]

        def apply(self, agent, action):
            outcome = super().apply(agent, action)
            outcome.rewards["cid_0"] = 3.0
            return outcome

    run = team(Generous, mapping={"ann": "a", "*": "b"})
    (episode,) = run.sample(1)
    run.learner.module["critic"].unwrapped().value_head.out.weight.data.zero_()
    run.learner.module["critic"].unwrapped().value_head.out.bias.data.zero_()
    made = batches(run.learner, [episode])
    last = messages(made["b"], Columns.ADVANTAGES)[0, 3, 1]
    reward_log = episode.custom_data[columns.REWARD_LOG]
    team_mean = sum(r for t, _, r in reward_log if t == 4) / 3
    assert last == pytest.approx([team_mean] * len(last), abs=1e-6)


def test_token_level_starts_with_the_messages_advantage():
    action, token = (team(training={"level": level}) for level in ("action", "token"))
    episodes = action.sample(2)
    plain, fine = (batches(r.learner, episodes) for r in (action, token))
    for module_id in "ab":
        whole = messages(plain[module_id], Columns.ADVANTAGES)
        parts = messages(fine[module_id], Columns.ADVANTAGES)
        assert whole.keys() == parts.keys()
        values = {
            k: v
            for k, v in messages(fine["critic"], columns.VALUES).items()
            if k in parts
        }
        for key, got in parts.items():
            # B2: A[k, j] = A[k] + V[k, 1] - V[k, j] without discounts inside.
            head = values[key][0]
            wanted = [whole[key][0] + head - v for v in values[key]]
            assert got == pytest.approx(wanted, abs=2e-5)
            assert len(set(got)) > 1


def test_token_discounts_act_inside_messages_only():
    runs = [
        team(training={"level": "token", "gamma_token": g, "lambda_": 1.0})
        for g in (1.0, 0.5)
    ]
    for run in runs:
        run.learner.module["critic"].unwrapped().value_head.out.weight.data.zero_()
        run.learner.module["critic"].unwrapped().value_head.out.bias.data.zero_()
    episodes = runs[0].sample(1)
    one, half = (
        messages(batches(r.learner, episodes)["b"], Columns.ADVANTAGES) for r in runs
    )
    last = max(one)
    n = len(one[last])
    wanted = [one[last][-1] * 0.5 ** (n - 1 - j) for j in range(n)]
    assert half[last] == pytest.approx(wanted, abs=1e-6)
    assert one[last] == pytest.approx([one[last][-1]] * n, abs=1e-6)


@pytest.mark.parametrize("level", ["action", "token"])
def test_whitening_by_agent_or_over_the_batch(level):
    raw = team(training={"level": level})
    episodes = raw.sample(4)

    def entries(run):
        made = batches(run.learner, episodes)
        return {
            agent: [
                v for m in messages(made[p], Columns.ADVANTAGES).values() for v in m
            ]
            if level == "token"
            else [m[0] for m in messages(made[p], Columns.ADVANTAGES).values()]
            for agent, p in AGENTS.items()
        }

    plain = entries(raw)
    on = {"level": level, "whiten_advantages": True}
    by_agent = entries(team(training={**on, "whiten_by": "agent"}))
    together = entries(team(training={**on, "whiten_by": "batch"}))
    everyone = np.concatenate([plain[a] for a in AGENTS])
    for agent in AGENTS:
        own = np.array(plain[agent])
        own = (own - own.mean()) / own.std(ddof=1)
        assert by_agent[agent] == pytest.approx(own, abs=1e-4)
        mixed = (np.array(plain[agent]) - everyone.mean()) / everyone.std(ddof=1)
        assert together[agent] == pytest.approx(mixed, abs=1e-4)
    assert np.abs(np.mean(together["ann_0"])) > 1e-3  # the two ways do differ


def test_reference_penalties_reach_the_message_they_belong_to():
    training = {"ref_kl_coeff": 0.5, "ref_kl_in": "reward", "ref_kl_estimator": "k1"}
    run = team(training={**training, "lambda_": 0.0, "gamma": 0.0})
    plain = team(training={"lambda_": 0.0, "gamma": 0.0})
    episodes = run.sample(1)
    for each in (run, plain):
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in each.learner.module["a"].unwrapped().lm.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
    made, bare = (batches(r.learner, episodes) for r in (run, plain))
    data = made["a"]
    kl = data[Columns.ACTION_LOGP] - data[columns.REF_LOGP]
    data["kl"] = kl
    costs = {k: sum(v) for k, v in messages(data, "kl").items()}
    unpaid = messages(bare["a"], Columns.ADVANTAGES)
    for key, got in messages(data, Columns.ADVANTAGES).items():
        assert got[0] == pytest.approx(unpaid[key][0] - 0.5 * costs[key], abs=1e-4)
        assert abs(costs[key]) > 1e-3
    other = messages(made["b"], Columns.ADVANTAGES)
    for key, got in messages(bare["b"], Columns.ADVANTAGES).items():
        assert got == pytest.approx(other[key], abs=1e-5)


def test_turns_are_counted_once_whatever_the_row_order():
    run = team()
    episodes = run.sample(3)
    forward = batches(run.learner, episodes)
    for episode in episodes:
        episode.agent_episodes = dict(reversed(episode.agent_episodes.items()))
    backward = batches(run.learner, episodes)
    for module_id in ("a", "b"):
        for key in (Columns.ADVANTAGES, columns.INPUT_IDS):
            assert torch.equal(forward[module_id][key], backward[module_id][key])
    assert sum(len(turns_of(e)) for e in episodes) == 12
