"""Policies of several agents: scripts, mappings, settings, transcripts, metrics."""

import numpy as np
import pytest
from team_helpers import (
    Pair,
    PairTogether,
    Quiet,
    Run,
    batches,
    by_seed,
    random_script,
    team_config,
    tiny_model,
    turns_of,
)

from rllib_llm import LLMPPOConfig
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.types import Task
from rllib_llm.env_runner.task_groups import TaskSource
from rllib_llm.errors import ConfigError, EnvContractError
from rllib_llm.transcripts.collector import transcript_record

# Policies of agents -------------------------------------------------------------------


def test_only_the_agents_that_must_act_take_turns():
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
    policies = {"a": None, "b": {"scripted_policy": script}}
    return team_config(env, LLMPPOConfig, policies=policies, **sections)


def test_a_scripted_policy_is_seeded_and_not_trained():
    run = Run(scripted(random_script))
    first = run.runner.sample(tasks=[Task(0, 0, 7), Task(0, 1, 7), Task(1, 0, 8)])
    again = run.runner.sample(tasks=[Task(0, 0, 7)])
    replies = [list(e.agent_episodes["ben_0"].get_actions()) for e in first + again]
    assert all(text.startswith("ben_0 ") for texts in replies for text in texts)
    assert replies[0] == replies[3]
    assert len({text for texts in replies[:3] for text in texts}) == 6
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
        Run(scripted(lambda turn: 3), learner=False).sample(1)
    with pytest.raises(ConfigError, match="no_such_script"):
        scripted("team_helpers:no_such_script").validate()


def test_settings_of_a_policy_apply_to_it_alone():
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
    assert result["a"]["train_inference_mismatch_max"].peek() < 1e-4
    assert result["b"]["train_inference_mismatch_max"].peek() < 1e-4
    rates = {m: result[m]["policy_learning_rate"].peek() for m in "ab"}
    assert rates == {"a": 1e-2, "b": 1e-3}


def test_temperature_of_one_policy_changes_its_samples_only():
    plain = Run(team_config(PairTogether, LLMPPOConfig), learner=False).sample()
    cold = {"a": {"generation": {"temperature": 0.1}}, "b": None}
    config = team_config(PairTogether, LLMPPOConfig, policies=cold)
    changed = Run(config, learner=False).sample()

    def actions(episodes, agent):
        return [e.agent_episodes[agent].get_actions(0) for e in episodes]

    assert actions(plain, "ben_0") == actions(changed, "ben_0")
    assert actions(plain, "ann_0") != actions(changed, "ann_0")


def test_role_prompts_come_from_the_environment():
    class Roles(Pair):
        def system_prompt_for(self, agent):
            return f"Play {agent}."

    (episode,) = Run(team_config(Roles, LLMPPOConfig), learner=False).sample(1)
    for part in agent_episodes(episode):
        assert episode_data(part).messages[0]["content"] == f"Play {part.agent_id}."


def test_a_mapping_may_depend_on_the_episode():
    run = Run(team_config(Pair, LLMPPOConfig, mapping=by_seed), learner=False)
    seen = set()
    for episode in run.sample(8):
        swapped = episode_data(episode).task.seed % 2
        by = {a: t.module_id for a, t in turns_of(episode)}
        assert by == {"ann_0": "ab"[swapped], "ben_0": "ba"[swapped]}
        assert {p.module_id for p in agent_episodes(episode)} == {"a", "b"}
        seen.add(swapped)
    assert seen == {0, 1}


def test_a_mapping_to_an_unknown_policy_is_refused_in_sampling():
    def mapping(agent_id, episode, **kwargs):
        return "c" if episode_data(episode).task.seed == 99 else "a"

    run = Run(team_config(Pair, LLMPPOConfig, mapping=mapping), learner=False)
    with pytest.raises(ConfigError, match=r"maps 'ann_0' to 'c'; policies are a, b"):
        run.runner.sample(tasks=[Task(0, 0, 99)])


def test_episodes_do_not_depend_on_concurrent_episodes():
    run = Run(team_config(PairTogether, LLMPPOConfig), learner=False)
    tasks = TaskSource(seed=2).next_groups(6)

    def sampled_ids(episodes):
        return [[t.action_ids.tolist() for _, t in turns_of(e)] for e in episodes]

    together = sampled_ids(run.runner.sample(tasks=tasks))
    alone = [sampled_ids(run.runner.sample(tasks=[task]))[0] for task in tasks]
    assert together == alone
    assert all(len(set(map(tuple, e))) == 4 for e in together)  # agents differ, too


def test_policies_with_different_models():
    other = {"language_model": {"model": tiny_model(1)}}
    config = team_config(Pair, LLMPPOConfig, policies={"a": None, "b": other})
    run = Run(config)
    episodes = run.sample()
    a, b = run.weights("a"), run.weights("b")
    assert any((a[n] != b[n]).any() for n in a)
    assert run.update(episodes)["b"]["train_inference_mismatch_max"].peek() < 1e-4


# Transcripts and metrics --------------------------------------------------------------


def test_agent_episodes_are_in_declared_order():
    class BenFirst(Pair):
        def next_agent(self):
            return "ben_0" if self.turn % 2 == 0 else "ann_0"

    (episode,) = Run(team_config(BenFirst, LLMPPOConfig), learner=False).sample(1)
    assert [p.agent_id for p in agent_episodes(episode)] == ["ann_0", "ben_0"]
    episode.agent_episodes = dict(reversed(episode.agent_episodes.items()))
    assert [p.agent_id for p in agent_episodes(episode)] == ["ann_0", "ben_0"]


def test_a_transcript_lists_turns_in_order_with_agent_and_policy():
    run = Run(scripted(random_script, PairTogether), learner=False)
    (episode,) = run.sample(1)
    items = list(episode.agent_episodes.items())
    both = [("ann_0", "a"), ("ben_0", "b")]
    for parts in (items, items[::-1]):
        episode.agent_episodes = dict(parts)
        record = transcript_record(
            episode, split="train", selected_as="best", max_chars=99, max_turns=9
        )
        turns = [(t["turn"], t["agent"], t["policy"]) for t in record["turns"]]
        assert turns == [(t, *who) for t in (0, 1) for who in both]
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
    metrics = run.runner.get_metrics()

    def peek(*keys):
        value = metrics
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
