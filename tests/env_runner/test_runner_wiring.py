"""Inputs of LLMEnvRunner: splits, seeds, weights versions, prompts, limits."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from multi_toys import Together, made, over
from runner_helpers import Countdown, Endless, make_runner
from team_helpers import Run, team_config

from rllib_llm import LLMPPOConfig
from rllib_llm.data import columns
from rllib_llm.data.episode_data import EpisodeData, agent_episodes, episode_data
from rllib_llm.data.types import FinishReason, Prompt, StopReason, Task, Turn
from rllib_llm.env_runner.episode_limits import stop_reason
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.env_runner.recorder import AgentState
from rllib_llm.env_runner.slots import ActionSource
from rllib_llm.env_runner.turns import request_turn, turn_seed
from rllib_llm.offline.prepare_model import prepare_language_model


class Noting(Countdown):
    """Records the options of every reset."""

    resets: list[dict] = []

    def reset(self, *, seed=None, options=None):
        Noting.resets += [dict(options)] if options else []
        return super().reset(seed=seed, options=options)


def turns_of(episode):
    return episode.get_extra_model_outputs(columns.TURN)


def sampled(episodes):
    return [[t.action_ids.tolist() for t in turns_of(e)] for e in episodes]


def next_tasks(runner, count):
    return [episode_data(e).task for e in runner.sample(num_episodes=count)]


# Tasks --------------------------------------------------------------------------------


def evaluation_runner(seed=0):
    config = make_runner(Noting).config.copy(copy_frozen=False)
    config.debugging(seed=seed).evaluation(evaluation_interval=1).validate()
    return LLMEnvRunner(config=config.get_evaluation_config_object(), worker_index=0)


def test_evaluation_plays_held_out_tasks_and_training_does_not():
    Noting.resets.clear()
    training = next_tasks(make_runner(Noting), 6)
    assert {o["split"] for o in Noting.resets} == {"train"}
    Noting.resets.clear()
    evaluation = next_tasks(evaluation_runner(), 6)
    assert {o["split"] for o in Noting.resets} == {"test"}
    assert {t.options["split"] for t in evaluation} == {"test"}
    assert {t.seed for t in evaluation}.isdisjoint(t.seed for t in training)
    # The same tasks at every evaluation, with any seed of the run.
    assert next_tasks(evaluation_runner(seed=5), 6) == evaluation


def test_runners_draw_different_tasks():
    seeds = [
        {t.seed for t in next_tasks(make_runner(Countdown, worker_index=i), 8)}
        for i in range(3)
    ]
    assert all(len(of_runner) == 8 for of_runner in seeds)
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(seeds, 2))


def test_training_tasks_do_not_repeat():
    source = LLMPPOConfig().rollouts(group_size=2).build_task_source()
    first, second = source.next_groups(3), source.next_groups(2)
    assert [t.group_id for t in first] == [0, 0, 1, 1, 2, 2]
    assert [t.group_id for t in second] == [3, 3, 4, 4]
    assert {t.seed for t in first}.isdisjoint(t.seed for t in second)


def test_evaluation_runners_divide_the_tasks():
    source = LLMPPOConfig().build_task_source(in_evaluation=True)
    everything = source.fixed(6)
    parts = [source.fixed(3, first, 2) for first in (0, 1)]
    assert [t for pair in zip(*parts) for t in pair] == everything


def test_training_tasks_depend_on_the_seed():
    def seeds(seed):
        source = LLMPPOConfig().debugging(seed=seed).build_task_source()
        return [t.seed for t in source.next_groups(20)]

    assert seeds(1) == seeds(1)
    assert set(seeds(1)).isdisjoint(seeds(2))


# Sampling seeds -----------------------------------------------------------------------


def test_turn_seeds_are_distinct():
    def agent_state(turn, index):
        data = EpisodeData(num_turns=turn)
        return AgentState(f"agent_{index}", "policy", index=index, data=data)

    asked = list(itertools.product((3, 4), range(3), range(2), range(4), range(3)))
    seeds = {
        turn_seed(Task(0, rollout, seed), attempt, agent_state(turn, index))
        for seed, rollout, attempt, turn, index in asked
    }
    assert len(seeds) == len(asked)


def test_agents_with_equal_prompts_sample_different_tokens():
    class Alike(made(Together, [None, None, over()])):
        def prompt_for(self, agent):
            return "Say anything."

    config = team_config(
        Alike, LLMPPOConfig, policies=("a",), mapping={"*": "a"}, slots=1
    )
    (episode,) = Run(config, learner=False).runner.sample(tasks=[Task(0, 0, 3)])
    by_agent = sampled(agent_episodes(episode))
    assert len(by_agent) == 3
    # First turns have equal prompts; later turns of an agent have different seeds.
    firsts = [tuple(turns[0]) for turns in by_agent]
    assert len(set(firsts)) == 3
    assert all(len({tuple(t) for t in turns}) == len(turns) for turns in by_agent)


# Weights ------------------------------------------------------------------------------


def test_turns_record_the_weights_version():
    runner = make_runner(Countdown)
    runner.set_weights_version(7)
    first = runner.sample(num_episodes=2)
    runner.set_weights_version(8)
    second = runner.sample(num_episodes=2)
    versions = [
        {t.weights_seq_no for e in es for t in turns_of(e)} for es in (first, second)
    ]
    assert versions == [{7}, {8}]


def test_set_state_updates_the_engine():
    asked = [Task(g, 0, 100 + g) for g in range(4)]
    runner, other = make_runner(Countdown), make_runner(Countdown)
    before = sampled(runner.sample(tasks=asked))
    state = runner.get_state()
    moved = {
        name: array + np.random.default_rng(0).normal(0, 0.2, array.shape).astype("f4")
        for name, array in state["rl_module"].items()
    }
    synced = {"rl_module": moved, "weights_seq_no": 5}
    runner.set_state(synced)
    other.set_state(synced)
    assert runner.engine.weights_version == other.engine.weights_version == 5
    # The engine's cache of the old weights is not used again.
    after = runner.sample(tasks=asked)
    assert sampled(after) == sampled(other.sample(tasks=asked)) != before
    assert {t.weights_seq_no for e in after for t in turns_of(e)} == {5}
    late = {"rl_module": state["rl_module"], "weights_seq_no": 4}
    runner.set_state(late)
    assert runner.engine.weights_version == 5
    kept = runner.get_state()["rl_module"]
    assert all(np.array_equal(kept[name], moved[name]) for name in moved)


# Conversations ------------------------------------------------------------------------


def test_a_prompt_that_does_not_extend_replaces_the_ids():
    def turn(ids, extends):
        return Turn(
            prompt_ids=np.array(ids, np.int32),
            extends=extends,
            action_ids=np.array([9], np.int32),
            action_logps=np.zeros(1, np.float32),
            finish=FinishReason.STOP,
        )

    data = EpisodeData()
    data.record(turn([1, 2], True))
    data.record(turn([3], True))
    assert data.ids == [1, 2, 9, 3, 9]
    data.record(turn([4, 5], False))
    assert data.ids == [4, 5, 9]
    assert data.num_turns == data.num_sampled == 3


def test_latest_history_keeps_the_newest_prompt_only():
    runner = make_runner(Endless, max_turns=3)
    config = runner.config.copy(copy_frozen=False).language_model(history="latest")
    config.validate()
    config.resolved_model = prepare_language_model(config)
    latest = LLMEnvRunner(config=config, worker_index=0)
    (episode,) = latest.sample(num_episodes=1)
    last = turns_of(episode)[-1]
    whole = [*last.prompt_ids.tolist(), *last.action_ids.tolist()]
    assert episode_data(episode).ids == whole


def test_an_overflowing_prompt_is_not_shown_to_the_critic():
    runner = make_runner(
        Endless, generation={"max_new_tokens": 4, "max_context_tokens": 120}
    )
    (episode,) = runner.sample(num_episodes=1)
    data = episode_data(episode)
    assert data.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert data.prompt is None
    # With max_turns instead, the context has room for the next prompt.
    (episode,) = make_runner(Endless, max_turns=2).sample(num_episodes=1)
    assert episode_data(episode).prompt.ids


@pytest.mark.parametrize("limit", [90, 120])
def test_no_row_is_longer_than_the_context(limit):
    runner = make_runner(
        Endless, generation={"max_new_tokens": 4, "max_context_tokens": limit}
    )
    for episode in runner.sample(num_episodes=2):
        data = episode_data(episode)
        num_prompt = len(data.prompt.ids) if data.prompt is not None else 0
        assert len(data.ids) + num_prompt <= limit


class Telling(Countdown):
    """Succeeds after two turns; the first completion is not a valid action."""

    def parse(self, completion):
        return None if self.turn == 1 else super().parse(completion)

    def start(self, rng, length: int = 0) -> str:
        super().start(rng, length=2)
        return "Go."


def test_invalid_turns_and_success_are_recorded():
    (episode,) = make_runner(Telling).sample(num_episodes=1)
    assert [t.invalid for t in turns_of(episode)] == [True, False, False]
    assert episode_data(episode).success is True
    (episode,) = make_runner(Endless, max_turns=2).sample(num_episodes=1)
    assert episode_data(episode).success is None


@pytest.mark.parametrize(
    ("context", "per_episode", "sampled", "expected"),
    [
        (100, None, 0, 16),
        (20, None, 0, 7),
        (20, 90, 0, 7),
        (100, 30, 20, 10),
        (100, 30, 30, 1),
    ],
)
def test_turn_budget_follows_context_and_episode_limits(
    context, per_episode, sampled, expected
):
    asked = []
    engine = SimpleNamespace(
        submit=lambda session, ids, params, extends: asked.append(params) or 1
    )
    action_source = ActionSource(
        engine=engine,
        max_new_tokens=16,
        max_context_tokens=context,
        max_tokens_per_episode=per_episode,
    )
    data = EpisodeData(ids=list(range(10)), prompt=Prompt([1, 2, 3], extends=True))
    agent_state = AgentState("agent", "policy", data=data)
    request_turn(action_source, agent_state, "session", num_sampled=sampled, seed=5)
    assert [p.max_new_tokens for p in asked] == [expected]
    assert asked[0].seed == 5


def test_threads_are_in_force_while_a_runner_samples(monkeypatch):
    config = make_runner(Countdown).config.copy(copy_frozen=False)
    before, seen = torch.get_num_threads(), []
    config.resources(torch_num_threads=before + 1)
    runner = LLMEnvRunner(config=config, worker_index=0)
    play = runner._play

    def noted(*args, **kwargs):
        seen.append(torch.get_num_threads())
        return play(*args, **kwargs)

    monkeypatch.setattr(runner, "_play", noted)
    runner.sample(num_episodes=2)
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("finish", "turns", "bounds", "expected"),
    [
        (FinishReason.STOP, 3, (3, None), (True, StopReason.MAX_TURNS)),
        (FinishReason.LENGTH, 3, (3, None), (True, StopReason.MAX_TOKENS_TURN)),
        (FinishReason.STOP, 2, (3, 2), (True, StopReason.MAX_TURNS)),
        (FinishReason.LENGTH, 2, (3, None), (False, None)),
    ],
)
def test_stop_reason_of_limits(finish, turns, bounds, expected):
    limits = SimpleNamespace(max_turns=bounds[0], max_tokens_per_episode=None)
    ended = stop_reason(
        limits,
        Task(0, 0, 0, max_turns=bounds[1]),
        turns=turns,
        num_sampled=9,
        last_finish=finish,
        terminated=False,
        truncated=False,
        given=None,
    )
    assert ended == expected
