"""Episodes with several agents: turns, rewards, ends, bootstrapping, errors."""

import pytest
from multi_toys import Chaos, ChaosTogether, Scripted, made, over
from ray.rllib.core.columns import Columns
from team_helpers import (
    AloneTogether,
    Pair,
    PairTogether,
    Quiet,
    Run,
    batches,
    single_config,
    team_config,
    turns_of,
)

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.types import StopReason, Task
from rllib_llm.env_runner.task_groups import TaskSource
from rllib_llm.envs import Outcome
from rllib_llm.errors import EnvContractError

ALL = {"ann": "a", "ben": "b", "cid": "c"}


def trio(env, **sections):
    sections = {"policies": ("a", "b", "c"), "mapping": ALL, **sections}
    return Run(team_config(env, LLMPPOConfig, **sections), learner=False)


def play(env, *, seed=0, **sections):
    """Return one episode of ann, ben and cid, each with a separate policy."""
    (episode,) = trio(env, **sections).runner.sample(tasks=[Task(0, 0, seed)])
    return episode


def rewards(episode):
    parts = episode.agent_episodes.items()
    return {a: list(p.get_rewards()) for a, p in parts if len(p)}


def ends(episode):
    names = {(True, False): "terminated", (False, True): "truncated"}
    parts = episode.agent_episodes.items()
    return {a: names[p.is_terminated, p.is_truncated] for a, p in parts if len(p)}


# One agent ----------------------------------------------------------------------------


@pytest.mark.parametrize("config_class", [LLMPPOConfig, GRPOConfig])
def test_one_pettingzoo_agent_samples_as_in_gymnasium(config_class):
    # One slot: batches of different sizes round differently and could flip a sample.
    sections = {"rollouts": {"group_size": 2}, "slots": 1}
    single = Run(single_config(config_class, **sections), learner=False)
    team = Run(single_config(config_class, AloneTogether, **sections), learner=False)
    pairs = list(zip(single.sample(), team.sample(), strict=True))
    assert len(pairs) == 8
    for alone, joint in pairs:
        (part,) = agent_episodes(joint)
        assert part.agent_id == "ann_0" and len(part) == len(alone)
        assert list(part.get_rewards()) == list(alone.get_rewards())
        assert list(part.get_actions()) == list(alone.get_actions())
        assert part.is_truncated == alone.is_truncated == joint.is_truncated
        got, want = episode_data(part), episode_data(alone)
        assert got.ids == want.ids and got.messages[0] == want.messages[0]
        assert got.task == want.task and got.stop_reason == want.stop_reason
        for a, b in zip(turns(part), turns(alone), strict=True):
            assert a.action_ids.tolist() == b.action_ids.tolist()
            assert a.action_logps.tobytes() == b.action_logps.tobytes()
            assert a.prompt_ids.tolist() == b.prompt_ids.tolist()
    assert {e.is_truncated for e, _ in pairs} == {True, False}


def turns(part):
    return part.get_extra_model_outputs(columns.TURN)


# Rewards ------------------------------------------------------------------------------


def test_rewards_before_between_and_after_an_agents_turns():
    plan = [
        # To Ben and Cid before they ever act; Ann leaves after her first turn.
        Outcome({"ben_0": 1.0, "cid_0": 2.0}, terminated=["ann_0"]),
        Outcome({"ben_0": 0.5}),
        Outcome({"ann_0": 4.0, "ben_0": 8.0}),  # to one that left, one that waits
        over({"ann_0": 16.0, "ben_0": 32.0, "cid_0": 64.0}),
    ]
    episode = play(made(Scripted, plan))
    assert rewards(episode) == {
        "ann_0": [20.0],
        "ben_0": [1.0 + 0.5 + 8.0, 32.0],
        "cid_0": [2.0 + 64.0],
    }
    assert episode.get_return() == 20.0 + 41.5 + 66.0
    assert ends(episode) == dict.fromkeys(rewards(episode), "terminated")


def test_rewards_while_others_act_belong_to_the_last_turn():
    plan = [None, Outcome({"ann_0": 1.0}), Outcome({"ann_0": 2.0}), over({"ann_0": 4})]
    assert rewards(play(made(Scripted, plan)))["ann_0"] == [3.0, 4.0]


class Late(Scripted):
    """Cid joins after Ben's first turn and is not listed before."""

    late_agents = ("cid_0",)

    def apply(self, agent, action):
        if self.turn == 2:
            self.join("cid_0")
        return super().apply(agent, action)


def test_late_joiners_and_early_leavers():
    plan = [
        Outcome({"cid_0": 1.0}),
        Outcome(truncated=["ann_0"]),
        Outcome({"ann_0": 2.0, "cid_0": 4.0}),
        over({"cid_0": 8.0}),
    ]
    episode = play(made(Late, plan))
    assert rewards(episode) == {"ann_0": [2.0], "ben_0": [0.0, 0.0], "cid_0": [13.0]}
    assert ends(episode) == {
        "ann_0": "truncated",
        "ben_0": "terminated",
        "cid_0": "terminated",
    }


def test_rewards_of_an_agent_that_never_acts_stay_in_the_log():
    plan = [Outcome({"cid_0": 1.0}), over({"cid_0": 2.0, "ann_0": 4.0})]
    episode = play(made(Scripted, plan))
    assert [p.agent_id for p in agent_episodes(episode)] == ["ann_0", "ben_0"]
    assert rewards(episode) == {"ann_0": [4.0], "ben_0": [0.0]}
    reward_log = episode.custom_data[columns.REWARD_LOG]
    assert sorted(reward_log) == [
        (1, "cid_0", 1.0),
        (2, "ann_0", 4.0),
        (2, "cid_0", 2.0),
    ]


class Remembered:
    """Stores each agent's total reward by the episode's seed."""

    totals: dict

    def reset(self, seed=None, options=None):
        super().reset(seed=seed, options=options)
        type(self).totals[seed] = self.granted


@pytest.mark.parametrize("kind", [Chaos, ChaosTogether])
def test_returns_match_the_rewards_of_random_environments(kind):
    env = type(kind.__name__, (Remembered, kind), {"totals": {}, "max_turns": 12})
    run = trio(env)
    episodes = run.runner.sample(tasks=TaskSource(seed=11).next_groups(24))
    seen = set()
    for episode in episodes:
        totals = env.totals[episode_data(episode).task.seed]
        reward_log = episode.custom_data[columns.REWARD_LOG]
        assert sum(r for _, _, r in reward_log) == sum(totals.values())
        acted = {p.agent_id: p for p in agent_episodes(episode)}
        for agent, part in acted.items():
            assert part.get_return() == totals.get(agent, 0.0)
            of_agent = [(t, r) for t, a, r in reward_log if a == agent]
            assert list(part.get_rewards()) == slow_turn_rewards(turns(part), of_agent)
            assert part.is_terminated != part.is_truncated
        unassigned = sum(r for a, r in totals.items() if a not in acted)
        assert episode.get_return() + unassigned == sum(totals.values())
        seen |= {*ends(episode).values(), len(acted)}
        seen |= {"mixed"} if len(set(ends(episode).values())) == 2 else set()
    assert {"mixed", "terminated", "truncated", 2, 3} <= seen


def slow_turn_rewards(agent_turns, log):
    turn_rewards = [0.0] * len(agent_turns)
    for env_t, reward in log:
        owner = 0
        for index, turn in enumerate(agent_turns):
            if turn.env_t < env_t:
                owner = index
        turn_rewards[owner] += reward
    return turn_rewards


# Ends ---------------------------------------------------------------------------------


def bootstrapped(run, episodes):
    """Return ids and "acts next" of every (episode, agent) that bootstraps."""
    bootstraps = {}
    for data in batches(run.learner, episodes).values():
        for row, column in enumerate(data[columns.BOOTSTRAP_COLUMN].tolist()):
            if column >= 0:
                key = int(data[columns.MULTI_AGENT_EPISODE_INDEX][row])
                agent = int(data[columns.AGENT_INDEX][row])
                length = int(data[columns.ATTENTION_MASK][row].sum())
                assert column == length
                ids = data[columns.INPUT_IDS][row, :length].tolist()
                bootstraps[key, agent] = (
                    ids,
                    bool(data[columns.BOOTSTRAPS_AGENT_TURN][row]),
                )
    return bootstraps


def test_only_truncated_agents_bootstrap():
    plan = [None, None, Outcome(terminated=["cid_0"]), Outcome(truncated=True)]
    config = team_config(
        made(Scripted, plan), LLMPPOConfig, policies=("a", "b", "c"), mapping=ALL
    )
    run = Run(config)
    (episode,) = run.runner.sample(tasks=[Task(0, 0, 5)])
    assert ends(episode) == {
        "ann_0": "truncated",
        "ben_0": "truncated",
        "cid_0": "terminated",
    }
    bootstraps = bootstrapped(run, [episode])
    assert set(bootstraps) == {(0, 0), (0, 1)}
    decode = config.chat_renderers()["a"].tokenizer.decode
    assert "hello ann_0, turn 4" in decode(bootstraps[0, 0][0])
    assert "hello ben_0, turn 4" in decode(bootstraps[0, 1][0])


def test_an_agent_truncated_early_bootstraps_in_a_terminated_episode():
    plan = [None, Outcome(truncated=["ann_0"]), None, over()]
    config = team_config(
        made(Scripted, plan), LLMPPOConfig, policies=("a", "b", "c"), mapping=ALL
    )
    run = Run(config)
    (episode,) = run.runner.sample(tasks=[Task(0, 0, 5)])
    assert ends(episode)["ann_0"] == "truncated"
    assert set(bootstrapped(run, [episode])) == {(0, 0)}
    by_agent = {p.agent_id: episode_data(p) for p in agent_episodes(episode)}
    assert by_agent["ann_0"].stop_reason is StopReason.MAX_TURNS
    assert by_agent["ben_0"].stop_reason is StopReason.TERMINATED
    assert episode_data(episode).stop_reason is StopReason.TERMINATED


def test_a_terminated_episode_does_not_bootstrap():
    run = Run(team_config(Pair, LLMPPOConfig))
    assert bootstrapped(run, run.sample()) == {}


def test_max_turns_truncates_all_agents_and_the_next_one_bootstraps():
    run = Run(team_config(Pair, LLMPPOConfig, rollouts={"max_turns": 3}))
    (episode,) = run.sample(1)
    assert len(episode) == 3
    assert ends(episode) == {"ann_0": "truncated", "ben_0": "truncated"}
    bootstraps = bootstrapped(run, [episode])
    decode = run.config.chat_renderers()["a"].tokenizer.decode
    assert bootstraps[0, 1][1] and "turn 3" in decode(bootstraps[0, 1][0])
    assert not bootstraps[0, 0][1] and "turn 3" not in decode(bootstraps[0, 0][0])


def test_simultaneous_truncated_agents_all_bootstrap():
    run = Run(team_config(PairTogether, LLMPPOConfig, rollouts={"max_turns": 1}))
    bootstraps = bootstrapped(run, run.sample(1))
    assert [acts_next for _, acts_next in bootstraps.values()] == [True, True]


def test_the_token_limit_counts_all_agents():
    limit = 10
    rollouts = {"max_tokens_per_episode": limit}
    run = Run(team_config(Pair, LLMPPOConfig, rollouts=rollouts), learner=False)
    for episode in run.sample():
        data = episode_data(episode)
        assert data.stop_reason is StopReason.MAX_TOKENS_EPISODE
        assert data.num_sampled == limit
        assert data.num_sampled == sum(len(t.action_ids) for _, t in turns_of(episode))


class Failing(Pair):
    """Breaks in the step ``at``."""

    def start(self, rng, rounds: int = 2, at: int = 0):
        super().start(rng, rounds)
        self.at = at

    def apply(self, agent, action):
        if self.turn > self.at:
            raise RuntimeError("out of order")
        return super().apply(agent, action)


def test_a_failed_episode_may_be_masked():
    config = team_config(
        Failing,
        LLMPPOConfig,
        env_config={"at": 1},
        rollouts={"stop_policies": {"env_error": "mask"}},
    )
    run = Run(config)
    (episode,) = run.sample(1)
    # The environment did not reply to Ben's turn, so it is not recorded.
    assert {p.agent_id: len(p) for p in agent_episodes(episode)} == {"ann_0": 1}
    (data,) = batches(run.learner, [episode]).values()
    assert not data[Columns.LOSS_MASK].any()
    other = Run(config.copy(copy_frozen=False).environment(env_config={"at": 0}))
    with pytest.raises(EnvContractError, match="out of order"):
        other.sample(1)  # nothing to keep


def test_context_overflow_of_one_agent_ends_the_episode():
    config = team_config(
        Pair,
        LLMPPOConfig,
        env_config={"rounds": 20},
        generation={"max_new_tokens": 4, "max_context_tokens": 160},
    )
    run = Run(config)
    (episode,) = run.sample(1)
    assert episode_data(episode).stop_reason is StopReason.CONTEXT_OVERFLOW
    assert all(len(episode_data(p).ids) <= 160 for p in agent_episodes(episode))
    assert set(ends(episode).values()) == {"truncated"}
    assert set(bootstrapped(run, [episode])) == {(0, 0), (0, 1)}


def test_undeclared_agents_and_an_empty_reset_are_refused():
    with pytest.raises(EnvContractError, match="'dan_0'"):
        play(made(Scripted, [Outcome({"dan_0": 1.0})]))
    with pytest.raises(EnvContractError, match="returned no active agents"):
        play(OverAtOnce)


class OverAtOnce(Quiet):
    """Has no agent after reset()."""

    possible_agents = ["ann_0", "ben_0", "cid_0"]

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.agents = []
        return {}, {}
