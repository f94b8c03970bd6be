"""Replayed episodes: their part of the gradient, and which of them come back."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from learner_helpers import (
    assert_close,
    fake_episode,
    gradients,
    make_config,
    moved,
    update,
)
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from team_helpers import set_group_advantages

from rllib_llm import GRPO, GRPOConfig
from rllib_llm.algorithms.driver.mixed_files import MixesFiles
from rllib_llm.algorithms.driver.replay import ReplayBuffer
from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.data import columns
from rllib_llm.data.episode_data import FILE, REPLAY, episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.types import StopPolicy, StopReason
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import parse_conversation
from rllib_llm.recipes import load_recipe

MODULE = "default_policy"


def config_of(replay=None, **training):
    config = make_config(GRPOConfig, **{"micro_batch_tokens": 64, **training})
    return config.replay(**{"episodes_per_iteration": 4, **(replay or {})})


def episodes_of(first, count=4, source="sampled"):
    episodes = [fake_episode(n, turns=1 + n % 3) for n in range(first, first + count)]
    for n, episode in enumerate(episodes):
        data = episode_data(episode)
        data.advantage, data.source = (-1.0) ** n * (1 + 0.3 * n), source
        # Near the policy, so that neither clip nor truncation hides a difference.
        for turn in episode.get_extra_model_outputs(columns.TURN):
            turn.action_logps = turn.action_logps - 5.0
    return episodes


def joint(replay=None, **training):
    """The gradient of four sampled and four replayed episodes."""
    learner = moved(config_of(replay, **training))
    return gradients(learner, [*episodes_of(0), *episodes_of(4, source=REPLAY)])


def alone(first, **training):
    """The gradient of four episodes that count as sampled."""
    plain = make_config(GRPOConfig, **{"micro_batch_tokens": 64, **training})
    return gradients(moved(plain), episodes_of(first))


def summed(sampled, replayed, coeff=1.0):
    return {n: sampled[n] + coeff * replayed[n] for n in sampled}


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_sources_have_means_of_their_own(mode):
    expected = summed(
        alone(0, loss_agg_mode=mode),
        alone(4, loss_agg_mode=mode, old_logps="engine"),
        coeff=0.25,
    )
    assert_close(joint({"coeff": 0.25}, loss_agg_mode=mode), expected)
    # Neither micro-batches nor the order of the pass change it.
    assert_close(
        joint({"coeff": 0.25}, loss_agg_mode=mode, micro_batch_tokens=None), expected
    )


def test_ratios_of_replayed_tokens_are_to_the_policy_that_sampled():
    recorded, recomputed = joint(), summed(alone(0), alone(4))
    assert any(not torch.allclose(recorded[n], recomputed[n]) for n in recorded)
    assert_close(recorded, summed(alone(0), alone(4, old_logps="engine")))


def test_the_decoupled_objective_truncates_the_ratio_before_the_update():
    clip = {"tis": "token", "tis_clip": 1.5}
    decoupled = joint({"old_logps": "learner"}, tis_clip=1.5)
    assert_close(decoupled, summed(alone(0), alone(4, **clip)))


def test_replayed_tokens_may_have_a_loss_of_their_own():
    loss = {"name": "nll", "above": 0.0}
    expected = summed(alone(0), alone(4, policy_loss=loss))
    assert_close(joint({"loss": loss}), expected)


def test_terms_and_the_reference_act_on_sampled_tokens_alone():
    more = {"entropy_coeff": 0.3, "loss_terms": ["entropy"], "ref_kl_coeff": 0.5}
    expected = summed(alone(0, **more), alone(4, old_logps="engine"))
    assert_close(joint(**more), expected)


def test_transforms_see_sampled_tokens_alone():
    more = {"token_advantage_transforms": ["top_entropy"]}
    expected = summed(alone(0, **more), alone(4, old_logps="engine"))
    assert_close(joint(**more), expected)


def test_a_schedule_of_the_coefficient_begins_at_the_first_update():
    none = joint({"coeff": [[0, 0.0], [10, 1.0]]})
    assert_close(none, alone(0))


def test_an_update_may_have_replayed_episodes_alone():
    learner = moved(config_of())
    only = gradients(learner, episodes_of(4, source=REPLAY))
    assert_close(only, alone(4, old_logps="engine"))


def test_replayed_episodes_are_spread_over_the_steps_of_sampled_ones():
    learner = moved(config_of())
    seen = []
    backward = learner._backward

    def watch(module_id, data):
        sources = data[columns.HOST].arrays.get(columns.SOURCE)
        episodes = data[columns.HOST].arrays[columns.MULTI_AGENT_EPISODE_INDEX]
        seen.append(sorted(dict(zip(episodes, sources, strict=True)).values()))
        return backward(module_id, data)

    learner._backward = watch
    mixed = [*episodes_of(0), *episodes_of(4, 8, source=REPLAY)]
    update(learner, mixed, minibatch_size=2)
    assert seen == [[0, 0, 1, 1, 1, 1]] * 2


def test_metrics_keep_sources_apart():
    learner = moved(config_of())
    mixed = [*episodes_of(0), *episodes_of(4, source=REPLAY)]
    results = update(learner, mixed)[MODULE]
    plain = moved(make_config(GRPOConfig, micro_batch_tokens=64))
    sampled = update(plain, episodes_of(0))[MODULE]
    seen = {k: results[k].peek() for k in results if k != "histograms"}
    tokens = [
        sum(len(t.action_ids) for t in e.get_extra_model_outputs(columns.TURN))
        for e in mixed
    ]
    share = sum(tokens[4:]) / sum(tokens)
    assert seen["replay_token_frac"] == pytest.approx(share)
    assert seen["replay_ratio_mean"] > 0
    assert 0 < seen["replay_effective_sample_frac"] <= 1
    for name in ("policy_loss", "ratio_mean", "advantage_abs_mean"):
        assert seen[name] == pytest.approx(float(sampled[name].peek()), rel=1e-5)
    assert seen["train_inference_mismatch_mean"] == pytest.approx(
        float(sampled["train_inference_mismatch_mean"].peek()), rel=1e-5
    )


def test_rows_of_files_have_a_mean_of_their_own():
    config = config_of({}, token_advantage_transforms=["top_entropy"])
    config.data(episodes_per_iteration=4, coeff=0.5, files="unread.jsonl")
    mixed = [
        *episodes_of(0),
        *episodes_of(4, source=REPLAY),
        *episodes_of(8, source=FILE),
    ]
    likelihood = {"policy_loss": {"name": "nll", "above": None}}
    expected = summed(
        alone(0, token_advantage_transforms=["top_entropy"]),
        summed(alone(4, old_logps="engine"), alone(8, **likelihood), coeff=0.5),
    )
    assert_close(gradients(moved(config), mixed), expected)


# On the driver ------------------------------------------------------------------------


def buffer_of(**replay):
    given = {"episodes_per_iteration": 16, "capacity_tokens": 10**6, **replay}
    config = make_config(GRPOConfig).replay(**given)
    config.validate()
    return ReplayBuffer(config)


def group(first, rewards, iteration=0):
    episodes = [
        fake_episode(first + i, reward=r, group=first) for i, r in enumerate(rewards)
    ]
    for episode, reward in zip(episodes, rewards, strict=True):
        episode_data(episode).advantage = reward - float(np.mean(rewards))
        episode_data(episode).success = reward >= 1
    return SampledEpisodes(episodes)


def drawn(buffer, iteration):
    episodes, _ = buffer.draw(iteration)
    return {episode_data(e).task.rollout: episode_data(e).advantage for e in episodes}


def test_advantages_are_those_of_the_group_that_sampled():
    buffer = buffer_of()
    buffer.add(group(0, [0.0, 1.0, 2.0]), 0)
    assert drawn(buffer, 1) == {0: -1.0, 1: 0.0, 2: 1.0}


def test_filters_choose_what_is_kept():
    buffer = buffer_of(keep="success")
    buffer.add(group(0, [0.0, 1.0, 2.0]), 0)
    assert drawn(buffer, 1) == {1: 0.0, 2: 1.0}


def test_episodes_join_within_bounds_of_the_current_perplexity():
    learner = moved(make_config(GRPOConfig))
    buffer = buffer_of(min_perplexity=1e-9)
    buffer.add(group(0, [0.0, 1.0, 2.0]), 0)
    episodes, metrics = buffer.draw(1, learner.text_logps)
    assert metrics["perplexity_kept_frac"] == 1.0
    # Those of the policy as it is, not of the one that sampled.
    now = {
        episode_data(e).task.rollout: float(np.exp(-np.mean(logps)))
        for e, logps in zip(episodes, learner.text_logps(episodes), strict=True)
    }
    recorded = [
        np.exp(-np.mean(np.concatenate([t.action_logps for t in turns])))
        for turns in (e.get_extra_model_outputs(columns.TURN) for e in episodes)
    ]
    assert not np.allclose(sorted(now.values()), sorted(recorded), rtol=0.1)
    low, middle, high = sorted(now, key=now.get)
    bounds = {
        "min_perplexity": (now[low] + now[middle]) / 2,
        "max_perplexity": (now[middle] + now[high]) / 2,
    }
    for chosen, expected in (
        (("min_perplexity",), {middle, high}),
        (("max_perplexity",), {low, middle}),
        (tuple(bounds), {middle}),
    ):
        bounded = buffer_of(**{name: bounds[name] for name in chosen})
        bounded.add(group(0, [0.0, 1.0, 2.0]), 0)
        episodes, metrics = bounded.draw(1, learner.text_logps)
        assert {episode_data(e).task.rollout for e in episodes} == expected
        kept = metrics["perplexity_kept_frac"]
        assert kept == pytest.approx(len(expected) / 3)
        assert metrics["num_episodes_drawn"] == len(expected)
        assert metrics["num_episodes_stored"] == 3  # others stay in the store


def test_bounds_of_the_perplexity_that_exclude_all_are_refused():
    for bounds in ({"max_perplexity": 1.0}, {"min_perplexity": 3, "max_perplexity": 2}):
        with pytest.raises(ConfigError, match="lets no episode join"):
            buffer_of(**bounds)
    config = make_config(GRPOConfig).replay(episodes_per_iteration=4, min_perplexity=2)
    config.environment("secret_sum-v0")
    config.multi_agent(
        policies=["a", "b"], policy_mapping_fn={"alice": "a", "bob": "b"}
    )
    with pytest.raises(ConfigError, match="one policy"):
        config.validate()


def test_rebased_advantages_fall_as_the_policy_improves():
    buffer = buffer_of(advantages="rebased", positive_only=True, window=2)
    for iteration, rewards in enumerate(([0.0, 1.0], [0.4, 0.6], [0.9, 0.9])):
        sampled = group(10 * iteration, rewards)
        buffer.observe(sampled)
        buffer.add(sampled, iteration)
    # The two newest groups' means are 0.5 and 0.9; the median of two is 0.7. An equal
    # group has no positive advantage, so it is not kept.
    assert drawn(buffer, 3) == pytest.approx({1: 0.3})
    buffer.observe(group(50, [2.0, 2.0]))
    assert drawn(buffer, 4) == {}


def test_masked_episodes_are_not_kept():
    buffer = buffer_of()
    sampled = group(0, [0.0, 1.0])
    sampled.mask([1])
    buffer.add(sampled, 0)
    assert list(drawn(buffer, 1)) == [0]


MASKING = {"filters": [{"name": "priority", "effect": "mask"}]}


def buffer_of_masked(**replay):
    config = make_config(GRPOConfig)
    config.rollouts(**MASKING, stop_policies={"max_turns": "mask"})
    config.replay(**{"episodes_per_iteration": 16, "keep_masked": True, **replay})
    config.validate()
    return ReplayBuffer(config)


def test_what_filters_mask_can_be_kept_in_place_of_what_is_trained():
    buffer = buffer_of_masked()
    sampled = group(0, [0.0, 1.0, 2.0, 3.0])
    sampled.mask([1, 3])
    # Masked by the reason of its end, not by a filter: it is never trained.
    never = episode_data(sampled[2])
    never.stop_policy, never.stop_reason = StopPolicy.MASK, StopReason.MAX_TURNS
    buffer.add(sampled, 0)
    episodes, _ = buffer.draw(1)
    assert [episode_data(e).advantage for e in episodes] == [-0.5, 1.5]
    assert {episode_data(e).stop_policy for e in episodes} == {StopPolicy.TRAIN}
    only = buffer_of_masked(positive_only=True)
    only.add(sampled, 0)
    assert drawn(only, 1) == {3: 1.5}


def test_rorecomp_compensates_with_the_other_rollouts_of_earlier_iterations():
    config = load_recipe("rorecomp").config
    config.replay(probability=1.0, episodes_per_iteration=4)
    buffer, components = ReplayBuffer(config), DriverComponents(config)
    lengths = [3, 9, 5, 7]
    episodes = []
    for number, reward in enumerate([1.0] * 4 + [0.0] * 4):
        episode = fake_episode(number, turns=1, reward=reward)
        episode_data(episode).success = bool(reward)
        (turn,) = episode.get_extra_model_outputs(columns.TURN)
        tokens = lengths[number % 4]
        turn.action_ids = np.arange(20, 20 + tokens, dtype=np.int32)
        turn.action_logps = np.full(tokens, -1.0, np.float32)
        episodes.append(episode)
    sampled, _ = components.select(SampledEpisodes(episodes))
    set_group_advantages(config, sampled)
    # Masked, not dropped: advantages compare all eight, also those of the split.
    spread = np.std([1.0] * 4 + [0.0] * 4, ddof=1)
    found = [episode_data(e).advantage for e in sampled]
    assert found == pytest.approx([0.5 / spread] * 4 + [-0.5 / spread] * 4, rel=1e-4)
    masked = [episode_data(e).stop_policy is StopPolicy.MASK for e in sampled]
    assert masked == [False, True, False, True, True, False, True, False]
    buffer.add(sampled, 0)
    drawn, metrics = buffer.draw(1)
    assert metrics["num_episodes_stored"] == 4
    assert [episode_data(e).task.rollout for e in drawn] == [1, 3, 4, 6]
    for episode in drawn:
        data = episode_data(episode)
        assert (data.stop_policy, data.source) == (StopPolicy.TRAIN, REPLAY)
        assert data.advantage == found[data.task.rollout]


def test_replay_has_a_probability_with_a_schedule():
    def iterations(probability, first, count=400):
        buffer = buffer_of(probability=probability, max_age=None)
        buffer.add(group(0, [0.0, 1.0]), 0)
        return [bool(drawn(buffer, i)) for i in range(first, first + count)]

    often = iterations(0.3, 1)
    assert 0.2 < np.mean(often) < 0.4
    assert often == iterations(0.3, 1)  # resumed runs draw alike
    schedule = [[0, 0.0], [1000, 1.0]]
    assert np.mean(iterations(schedule, 1)) < np.mean(iterations(schedule, 600))
    assert all(iterations(schedule, 1000, 20)) and not any(iterations(0.0001, 1, 20))


@pytest.mark.parametrize("alone", [True, False])
def test_replayed_episodes_may_stand_in_place_of_sampled_ones(alone, monkeypatch):
    (row,) = group(500, [0.0])
    episode_data(row).source = FILE
    monkeypatch.setattr(MixesFiles, "with_stored", lambda self, given: [*given, row])
    config = make_config(GRPOConfig)
    config.replay(episodes_per_iteration=16, alone=alone, probability=0.5)
    config.validate()
    algo = GRPO.__new__(GRPO)
    algo.config, algo.metrics, algo._rows = config, MetricsLogger(), None
    algo._buffer, seen = ReplayBuffer(config), set()
    for iteration in range(12):
        algo._iteration = iteration
        joined = algo.with_stored(group(10 * iteration, [0.0, 1.0], iteration))
        sources = [episode_data(e).source for e in joined]
        replays = REPLAY in sources
        assert sources.count("sampled") == (0 if alone and replays else 2)
        assert sources.count(FILE) == 1  # in place of sampled ones, not of files
        seen.add(replays)
    assert seen == {True, False}


def test_episodes_leave_by_age_and_metrics_say_so():
    buffer = buffer_of(max_age=2)
    for iteration in range(3):
        buffer.add(group(10 * iteration, [0.0, 1.0]), iteration)
    _, metrics = buffer.draw(3)
    assert metrics["num_episodes_drawn"] == metrics["num_episodes_stored"] == 4
    assert metrics["age_mean"] == 1.5


def test_a_buffer_on_disk_continues_as_the_one_that_wrote_it(tmp_path):
    written, read = (buffer_of(advantages="rebased", draw="priority") for _ in "ab")
    for iteration in range(3):
        sampled = group(10 * iteration, [0.0, 1.0, iteration])
        written.observe(sampled)
        written.add(sampled, iteration)
    written.save_to_path(tmp_path)
    read.add(group(90, [5.0, 6.0]), 0)  # replaced
    read.restore_from_path(tmp_path)
    assert drawn(read, 3) == drawn(written, 3) != {}
    copy = buffer_of(advantages="rebased", draw="priority")
    copy.set_state(written.get_state())
    assert drawn(copy, 4) == drawn(written, 4)


@pytest.mark.parametrize(
    ("replay", "message"),
    [
        ({"episodes_per_iteration": 0, "keep": "success"}, "nothing is replayed"),
        ({"alpha": 2.0}, "replay.draw='priority'"),
        ({"window": 3}, "replay.advantages='rebased'"),
        ({"keep": "succes"}, "Did you mean 'success'"),
        ({"draw": "newest"}, "recency"),
        ({"coeff": [[5, 1.0], [0, 0.0]]}, "coeff"),
        ({"old_logps": "learner", "loss": "nll"}, "not linear"),
        ({"capacity_tokens": 0}, "capacity_tokens"),
        ({"keep_masked": True}, "rollouts.filters has none that does"),
        ({"probability": 1.5}, "probability"),
        ({"probability": [[0, 0.5], [9, 2.0]]}, "values must be in"),
        ({"probability": 0.0}, "never replays"),
        ({"alone": True}, "would never be learned from"),
    ],
)
def test_bad_settings_are_named(replay, message):
    config = make_config(GRPOConfig)
    with pytest.raises(ConfigError, match=message):
        config.replay(**{"episodes_per_iteration": 4, **replay}).validate()


# Files --------------------------------------------------------------------------------


def test_files_go_on_where_the_checkpoint_was_written(tmp_path):
    rows = [{"prompt": f"Guess {n}.", "completion": str(n)} for n in range(5)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = make_config(GRPOConfig).data(files=str(path), episodes_per_iteration=2)
    config.validate()

    def algo():
        made = GRPO.__new__(GRPO)
        made.config, made._rows = config, config.stored_rows(parse_conversation)
        made.metrics = MetricsLogger()
        return made

    def texts(of):
        return [episode_data(e).messages[-1]["content"] for e in of.with_stored([])]

    first = algo()
    whole = [text for _ in range(5) for text in texts(first)]
    assert sorted(whole[:5]) == sorted(whole[5:]) == list("01234")
    second = algo()
    second.next_row = 6
    assert texts(second) == whole[6:8]
    assert all(episode_data(e).source == FILE for e in second.with_stored([]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"files": "rows.jsonl"}, "Set data.episodes_per_iteration"),
        ({"coeff": 0.5}, "Set data.episodes_per_iteration"),
        ({"episodes_per_iteration": 2}, "needs data.files"),
        ({"files": "no.jsonl", "episodes_per_iteration": 2}, "does not exist"),
    ],
)
def test_bad_settings_of_files_are_named(data, message):
    with pytest.raises(ConfigError, match=message):
        make_config(GRPOConfig).data(**data).validate()
