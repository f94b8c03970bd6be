"""Several agents in one episode: turns, rewards, ends, voices, transcripts."""

import numpy as np
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
    by_seed,
    random_script,
    single_config,
    team_config,
    tiny_model,
    turns_of,
)

from rllib_llm import GRPOConfig, LLMPPOConfig, columns
from rllib_llm.callbacks.transcripts import transcript_record
from rllib_llm.connectors.episode_data import agent_episodes, episode_data
from rllib_llm.env_runner.tasks import TaskSource
from rllib_llm.envs import Outcome
from rllib_llm.errors import ConfigError, EnvContractError
from rllib_llm.types import StopReason, Task

ALL = {"ann": "a", "ben": "b", "cid": "c"}


def trio(env, **sections):
    sections = {"policies": ("a", "b", "c"), "mapping": ALL, **sections}
    return Run(team_config(env, LLMPPOConfig, **sections), learner=False)


def play(env, *, seed=0, **sections):
    """One episode of a game of ann, ben and cid, each with a policy of its own."""
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
def test_one_agent_of_pettingzoo_samples_what_gymnasium_does(config_class):
    # One slot: what is decoded together differs by rounding, and by chance.
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
        mine, theirs = episode_data(part), episode_data(alone)
        assert mine.ids == theirs.ids and mine.messages[0] == theirs.messages[0]
        assert mine.task == theirs.task and mine.stop_reason == theirs.stop_reason
        for a, b in zip(turns(part), turns(alone), strict=True):
            assert a.action_ids.tolist() == b.action_ids.tolist()
            assert a.action_logps.tobytes() == b.action_logps.tobytes()
            assert a.prompt_ids.tolist() == b.prompt_ids.tolist()
    assert {e.is_truncated for e, _ in pairs} == {True, False}


def turns(part):
    return part.get_extra_model_outputs(columns.TURN)


# Rewards ------------------------------------------------------------------------------


def test_rewards_before_while_and_after_an_agents_turns():
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


def test_rewards_while_others_act_belong_to_the_turn_before():
    plan = [None, Outcome({"ann_0": 1.0}), Outcome({"ann_0": 2.0}), over({"ann_0": 4})]
    assert rewards(play(made(Scripted, plan)))["ann_0"] == [3.0, 4.0]


class Late(Scripted):
    """Cid joins after Ben's first turn; nobody has heard of him before."""

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


def test_an_agent_that_never_acts_has_no_part_but_its_pay_is_kept():
    plan = [Outcome({"cid_0": 1.0}), over({"cid_0": 2.0, "ann_0": 4.0})]
    episode = play(made(Scripted, plan))
    assert [p.agent_id for p in agent_episodes(episode)] == ["ann_0", "ben_0"]
    assert rewards(episode) == {"ann_0": [4.0], "ben_0": [0.0]}
    ledger = episode.custom_data[columns.REWARD_LEDGER]
    assert sorted(ledger) == [(1, "cid_0", 1.0), (2, "ann_0", 4.0), (2, "cid_0", 2.0)]


class Remembered:
    """Lets a test read what an environment paid, by the episode's seed."""

    paid: dict

    def reset(self, seed=None, options=None):
        super().reset(seed=seed, options=options)
        type(self).paid[seed] = self.granted


@pytest.mark.parametrize("kind", [Chaos, ChaosTogether])
def test_whatever_happens_agents_earn_what_the_environment_pays(kind):
    env = type(kind.__name__, (Remembered, kind), {"paid": {}, "max_turns": 12})
    run = trio(env)
    episodes = run.runner.sample(tasks=TaskSource(seed=11).next_groups(24))
    seen = set()
    for episode in episodes:
        paid = env.paid[episode_data(episode).task.seed]
        ledger = episode.custom_data[columns.REWARD_LEDGER]
        assert sum(r for _, _, r in ledger) == sum(paid.values())
        acted = {p.agent_id: p for p in agent_episodes(episode)}
        for agent, part in acted.items():
            assert part.get_return() == paid.get(agent, 0.0)
            own = [(t, r) for t, a, r in ledger if a == agent]
            assert list(part.get_rewards()) == slow_credit(turns(part), own)
            assert part.is_terminated != part.is_truncated
        silent = sum(r for a, r in paid.items() if a not in acted)
        assert episode.get_return() + silent == sum(paid.values())
        seen |= {*ends(episode).values(), len(acted)}
        seen |= {"mixed"} if len(set(ends(episode).values())) == 2 else set()
    assert {"mixed", "terminated", "truncated", 2, 3} <= seen


def slow_credit(told, paid):
    earned = [0.0] * len(told)
    for env_t, reward in paid:
        owner = 0
        for index, turn in enumerate(told):
            if turn.env_t < env_t:
                owner = index
        earned[owner] += reward
    return earned


# Ends ---------------------------------------------------------------------------------


def bootstrapped(run, episodes):
    """Ids and whether it speaks next, of every (episode, agent) that bootstraps."""
    found = {}
    for data in batches(run.learner, episodes).values():
        for row, column in enumerate(data[columns.BOOTSTRAP_COLUMN].tolist()):
            if column >= 0:
                key = int(data[columns.JOINT_INDEX][row])
                agent = int(data[columns.AGENT_INDEX][row])
                length = int(data[columns.ATTENTION_MASK][row].sum())
                assert column == length
                ids = data[columns.INPUT_IDS][row, :length].tolist()
                found[key, agent] = (ids, bool(data[columns.SPEAKS_NEXT][row]))
    return found


def test_only_truncated_agents_bootstrap_from_what_they_would_have_read():
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
    found = bootstrapped(run, [episode])
    assert set(found) == {(0, 0), (0, 1)}
    decode = config.chat_renderers()["a"].tokenizer.decode
    assert "hello ann_0, turn 4" in decode(found[0, 0][0])
    assert "hello ben_0, turn 4" in decode(found[0, 1][0])


def test_an_agent_cut_early_bootstraps_though_the_others_finish():
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


def test_a_terminated_episode_bootstraps_nobody():
    run = Run(team_config(Pair, LLMPPOConfig))
    assert bootstrapped(run, run.sample()) == {}


def test_the_runners_limit_cuts_all_and_the_next_speaker_reads_on():
    run = Run(team_config(Pair, LLMPPOConfig, rollouts={"max_turns": 3}))
    (episode,) = run.sample(1)
    assert len(episode) == 3
    assert ends(episode) == {"ann_0": "truncated", "ben_0": "truncated"}
    found = bootstrapped(run, [episode])
    decode = run.config.chat_renderers()["a"].tokenizer.decode
    assert found[0, 1][1] and "turn 3" in decode(found[0, 1][0])
    assert not found[0, 0][1] and "turn 3" not in decode(found[0, 0][0])


def test_simultaneous_agents_that_are_cut_all_read_on():
    run = Run(team_config(PairTogether, LLMPPOConfig, rollouts={"max_turns": 1}))
    found = bootstrapped(run, run.sample(1))
    assert [speaks for _, speaks in found.values()] == [True, True]


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


def test_a_broken_episode_may_be_kept_and_masked():
    config = team_config(
        Failing,
        LLMPPOConfig,
        env_config={"at": 1},
        rollouts={"stop_policies": {"env_error": "mask"}},
    )
    run = Run(config)
    (episode,) = run.sample(1)
    # Ben's turn was never answered, so it is not in the record.
    assert {p.agent_id: len(p) for p in agent_episodes(episode)} == {"ann_0": 1}
    (data,) = batches(run.learner, [episode]).values()
    assert not data[Columns.LOSS_MASK].any()
    other = Run(config.copy(copy_frozen=False).environment(env_config={"at": 0}))
    with pytest.raises(EnvContractError, match="out of order"):
        other.sample(1)  # nothing to keep


def test_an_agent_that_outgrows_the_context_ends_the_episode():
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


def test_bad_environments_are_named():
    with pytest.raises(EnvContractError, match="'dan_0'"):
        play(made(Scripted, [Outcome({"dan_0": 1.0})]))
    with pytest.raises(EnvContractError, match="nobody"):
        play(OverAtOnce)


class OverAtOnce(Quiet):
    """Nobody takes part."""

    possible_agents = ["ann_0", "ben_0", "cid_0"]

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.agents = []
        return {}, {}


# Who speaks, and how ------------------------------------------------------------------


def test_silent_agents_are_not_asked():
    run = Run(team_config(Quiet, LLMPPOConfig))
    (episode,) = run.sample(1)
    when = {"ann_0": [], "ben_0": []}
    for agent, turn in turns_of(episode):
        when[agent].append(turn.env_t)
    assert when == {"ann_0": [0, 1, 2, 3], "ben_0": [1, 3]}
    result = run.update([episode])
    assert result["a"]["num_trained_tokens"].peek() == sum(
        len(t.action_ids) for a, t in turns_of(episode) if a == "ann_0"
    )


def scripted(script, env=Pair, **sections):
    policies = {"a": None, "b": {"script": script}}
    return team_config(env, LLMPPOConfig, policies=policies, **sections)


def test_a_script_plays_with_seeded_dice_and_is_never_trained():
    run = Run(scripted(random_script))
    first = run.runner.sample(tasks=[Task(0, 0, 7), Task(0, 1, 7), Task(1, 0, 8)])
    again = run.runner.sample(tasks=[Task(0, 0, 7)])
    said = [list(e.agent_episodes["ben_0"].get_actions()) for e in first + again]
    assert all(text.startswith("ben_0 ") for texts in said for text in texts)
    assert said[0] == said[3]
    assert len({text for texts in said[:3] for text in texts}) == 6
    assert [p.agent_id for p in agent_episodes(first[0])] == ["ann_0"]
    assert first[0].agent_episodes["ben_0"].get_return() > 0
    assert set(batches(run.learner, first)) == {"a"}
    result = run.update(first)
    assert "policy_loss" in result["a"] and "policy_loss" not in result.get("b", {})


def test_a_script_may_be_named_and_sees_its_conversation():
    run = Run(scripted("team_helpers:parrot"), learner=False)
    (episode,) = run.sample(1)
    ben = episode.agent_episodes["ben_0"]
    assert list(ben.get_actions()) == [o.upper() for o in ben.get_observations()[:-1]]
    roles = [m["role"] for m in episode_data(ben).messages]
    assert roles == ["user", "assistant"] * 2


def test_a_script_must_return_text():
    with pytest.raises(EnvContractError, match=r"script of 'b' returned 3"):
        Run(scripted(lambda told: 3), learner=False).sample(1)
    with pytest.raises(ConfigError, match="no_such_script"):
        scripted("team_helpers:no_such_script").validate()


def test_settings_of_a_policy_are_its_own():
    policies = {
        "a": {"generation": {"max_new_tokens": 2, "temperature": 0.5}},
        "b": {
            "generation": {"stop_strings": list("0123456789")},
            "language_model": {"system_prompt": "You are Ben."},
            "training": {"lr": 1e-3},
        },
    }
    config = team_config(
        Pair, LLMPPOConfig, policies=policies, generation={"max_new_tokens": 40}
    )
    run = Run(config)
    episodes = run.sample(12)
    lengths = {"ann_0": [], "ben_0": []}
    for agent, turn in (each for e in episodes for each in turns_of(e)):
        lengths[agent].append(len(turn.action_ids))
    assert max(lengths["ann_0"]) == 2
    texts = [t for e in episodes for t in e.agent_episodes["ben_0"].get_actions()]
    assert any(t[-1:].isdigit() for t in texts)
    assert not any(c in "0123456789" for t in texts for c in t[:-1])
    parts = agent_episodes(episodes[0])
    first = {p.agent_id: episode_data(p).messages[0] for p in parts}
    assert first["ben_0"] == {"role": "system", "content": "You are Ben."}
    assert first["ann_0"]["role"] == "user"
    # The recorded log-probabilities are those of the policy's own temperature.
    result = run.update(episodes)
    assert result["a"]["sampler_gap_max"].peek() < 1e-4
    assert result["b"]["sampler_gap_max"].peek() < 1e-4
    rates = {m: result[m]["policy_learning_rate"].peek() for m in "ab"}
    assert rates == {"a": 1e-2, "b": 1e-3}


def test_temperature_of_one_policy_changes_its_samples_only():
    plain = Run(team_config(PairTogether, LLMPPOConfig), learner=False).sample()
    cold = {"a": {"generation": {"temperature": 0.1}}, "b": None}
    config = team_config(PairTogether, LLMPPOConfig, policies=cold)
    changed = Run(config, learner=False).sample()

    def said(episodes, agent):
        return [e.agent_episodes[agent].get_actions(0) for e in episodes]

    assert said(plain, "ben_0") == said(changed, "ben_0")
    assert said(plain, "ann_0") != said(changed, "ann_0")


def test_role_prompts_come_from_the_environment():
    class Roles(Pair):
        def system_prompt_for(self, agent):
            return f"Play {agent}."

    (episode,) = Run(team_config(Roles, LLMPPOConfig), learner=False).sample(1)
    for part in agent_episodes(episode):
        assert episode_data(part).messages[0]["content"] == f"Play {part.agent_id}."


def test_a_mapping_may_depend_on_the_episode():
    run = Run(team_config(Pair, LLMPPOConfig, mapping=by_seed), learner=False)
    found = set()
    for episode in run.sample(8):
        swapped = episode_data(episode).task.seed % 2
        by = {a: t.module_id for a, t in turns_of(episode)}
        assert by == {"ann_0": "ab"[swapped], "ben_0": "ba"[swapped]}
        assert {p.module_id for p in agent_episodes(episode)} == {"a", "b"}
        found.add(swapped)
    assert found == {0, 1}


def test_a_mapping_to_no_policy_is_named_while_playing():
    def mapping(agent_id, episode, **kwargs):
        return "c" if episode_data(episode).task.seed == 99 else "a"

    run = Run(team_config(Pair, LLMPPOConfig, mapping=mapping), learner=False)
    with pytest.raises(ConfigError, match=r"maps 'ann_0' to 'c'; policies are a, b"):
        run.runner.sample(tasks=[Task(0, 0, 99)])


def test_same_tasks_same_episodes_whatever_runs_beside():
    run = Run(team_config(PairTogether, LLMPPOConfig), learner=False)
    tasks = TaskSource(seed=2).next_groups(6)

    def said(episodes):
        return [[t.action_ids.tolist() for _, t in turns_of(e)] for e in episodes]

    together = said(run.runner.sample(tasks=tasks))
    alone = [said(run.runner.sample(tasks=[task]))[0] for task in tasks]
    assert together == alone
    assert all(len(set(map(tuple, e))) == 4 for e in together)  # agents differ, too


def test_policies_with_models_of_their_own():
    other = {"language_model": {"model": tiny_model(1)}}
    config = team_config(Pair, LLMPPOConfig, policies={"a": None, "b": other})
    run = Run(config)
    episodes = run.sample()
    a, b = run.weights("a"), run.weights("b")
    assert any((a[n] != b[n]).any() for n in a)
    assert run.update(episodes)["b"]["sampler_gap_max"].peek() < 1e-4


# What is told -------------------------------------------------------------------------


def test_agents_come_in_declared_order_not_in_that_of_a_set():
    class BenFirst(Pair):
        def next_agent(self):
            return "ben_0" if self.turn % 2 == 0 else "ann_0"

    (episode,) = Run(team_config(BenFirst, LLMPPOConfig), learner=False).sample(1)
    assert [p.agent_id for p in agent_episodes(episode)] == ["ann_0", "ben_0"]
    episode.agent_episodes = dict(reversed(episode.agent_episodes.items()))
    assert [p.agent_id for p in agent_episodes(episode)] == ["ann_0", "ben_0"]


def test_a_transcript_tells_turns_in_order_with_agent_and_policy():
    run = Run(scripted(random_script, PairTogether), learner=False)
    (episode,) = run.sample(1)
    items = list(episode.agent_episodes.items())
    both = [("ann_0", "a"), ("ben_0", "b")]
    for parts in (items, items[::-1]):
        episode.agent_episodes = dict(parts)
        record = transcript_record(
            episode, split="train", picked="best", max_chars=99, max_turns=9
        )
        told = [(t["turn"], t["agent"], t["policy"]) for t in record["turns"]]
        assert told == [(t, *who) for t in (0, 1) for who in both]
    assert record["agents"] == ["ann_0", "ben_0"]
    assert record["return"] == pytest.approx(episode.get_return(), abs=1e-6)
    assert record["num_turns"] == 4
    assert record["num_tokens"] == sum(len(t.action_ids) for _, t in turns_of(episode))
    assert record["turns"][1]["completion"].startswith("ben_0 ")
    assert record["turns"][1]["tokens"] == 0


def test_metrics_by_agent_and_by_policy():
    config = team_config(Pair, LLMPPOConfig, policies=["a"], mapping="a")
    run = Run(config, learner=False)
    episodes = run.sample(6)
    found = run.runner.get_metrics()

    def peek(*keys):
        value = found
        for key in keys:
            value = value[key]
        return value.peek()

    def mean(agent):
        return np.mean([e.agent_episodes[agent].get_return() for e in episodes])

    for agent in ("ann_0", "ben_0"):
        assert peek("agent_episode_return_mean", agent) == pytest.approx(mean(agent))
        assert peek("num_agent_steps_sampled", agent) == 12
    total = mean("ann_0") + mean("ben_0")
    assert peek("module_episode_return_mean", "a") == pytest.approx(total)
    assert peek("episode_return_mean") == pytest.approx(total)
    assert peek("num_module_steps_sampled", "a") == 24
    assert peek("num_env_steps_sampled") == 24
    assert peek("turns_mean") == 4
    assert peek("success_rate") == 1.0
