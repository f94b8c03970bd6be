"""Token annotations of transcripts equal the Learner's batch."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest
import torch
from learner_helpers import fake_episode, make_batch, make_config, make_learner, policy
from learner_helpers import update as update_learner
from ray.rllib.core import ALL_MODULES
from ray.rllib.core.columns import Columns
from team_helpers import Run, batches, team_config, turns_of, wake_critic

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import StopPolicy, StopReason
from rllib_llm.runs import token_column
from rllib_llm.transcripts.annotations import ANNOTATIONS, compact
from rllib_llm.transcripts.collector import read_result
from rllib_llm.transcripts.reader import schema

CLOSE = {"rtol": 2e-3, "atol": 1e-5}  # four significant digits


def made(count=5, **kwargs):
    """Return episodes with advantages; the second and the last are annotated."""
    episodes = [fake_episode(i, turns=1 + i % 3, **kwargs) for i in range(count)]
    for i, episode in enumerate(episodes):
        data = episode_data(episode)
        data.advantage = float(np.cos(i))
        data.annotates_tokens = i in (1, count - 1)
    return episodes


def annotations_of(result):
    """Notes by episode, turns by agent and number, a column at a time."""
    found = {}
    for text in result[ALL_MODULES][ANNOTATIONS].peek():
        note = json.loads(text)
        turns = {(t.pop("agent"), t.pop("index")): t for t in note["tokens"]}
        found[note["episode"]] = turns
    return found


def logps(learner, ids):
    """Log-probabilities of a row's tokens but the first, and entropies."""
    out = policy(learner).lm(input_ids=ids[None]).logits[0].double()
    scores = torch.log_softmax(out, -1)[:-1]
    entropy = -(scores.exp() * scores).sum(-1)
    return scores.gather(1, ids[1:, None])[:, 0].numpy(force=True), entropy.numpy(
        force=True
    )


def expected(learner, episodes):
    """Columns of every noted turn, from the batch and from a plain forward pass."""
    batch = make_batch(learner, episodes)
    found = {}
    for row in range(len(batch[columns.INPUT_IDS])):
        episode = episodes[int(batch[columns.MULTI_AGENT_EPISODE_INDEX][row])]
        if not episode_data(episode).annotates_tokens:
            continue
        n = int(batch[columns.ATTENTION_MASK][row].sum())
        logp, entropy = logps(learner, batch[columns.INPUT_IDS][row, :n])
        turn_ids = batch[columns.TURN_IDS][row, 1:n].numpy()
        for index in np.unique(turn_ids[turn_ids >= 0]):
            here = np.flatnonzero(turn_ids == index)
            turn = episode.get_extra_model_outputs(columns.TURN)[index]
            annotated = {
                "trained": batch[Columns.LOSS_MASK][row, here + 1],
                "advantage": batch[Columns.ADVANTAGES][row, here + 1],
                "old_logp": logp[here],
                "entropy": entropy[here],
                "gap": logp[here] - turn.action_logps,
            }
            if columns.VALUES in batch:
                annotated["value"] = batch[columns.VALUES][row, here + 1]
            found.setdefault(episode.id_, {})[0, int(index)] = annotated
    return found


def assert_annotated(notes, right, *, without=()):
    assert notes.keys() == right.keys()
    for episode, turns in right.items():
        assert notes[episode].keys() == turns.keys()
        for key, annotated in turns.items():
            assert notes[episode][key].keys() == {*annotated, "ratio"}
            for name in set(annotated) - set(without):
                values = np.asarray(annotated[name], float)
                given = np.broadcast_to(notes[episode][key][name], values.shape)
                np.testing.assert_allclose(given, values, err_msg=name, **CLOSE)


@pytest.mark.parametrize("config_class", [GRPOConfig, LLMPPOConfig])
@pytest.mark.parametrize(
    ("breaks", "row_per_turn", "epochs"),
    [(False, False, 1), (True, False, 2), (False, True, 1)],
)
def test_notes_are_what_the_batch_held(config_class, breaks, row_per_turn, epochs):
    config = make_config(config_class, micro_batch_tokens=40)
    config.rollouts(row_per_turn=row_per_turn)
    learner, reference = make_learner(config), make_learner(config)
    wake_critic(learner, "default_policy") if config.use_critic else None
    wake_critic(reference, "default_policy") if config.use_critic else None
    episodes = made(breaks=breaks)
    result = update_learner(
        learner, episodes, num_epochs=epochs, minibatch_size=2 if epochs > 1 else None
    )
    # Of several epochs the last one is reported, when entropy had changed.
    without = ("entropy",) if epochs > 1 else ()
    assert_annotated(
        annotations_of(result), expected(reference, episodes), without=without
    )


def test_ratio_is_that_of_the_last_epoch():
    config = make_config(GRPOConfig, lr=1e-2)
    once, twice = make_learner(config), make_learner(config)
    episodes = made()
    before = expected(once, episodes)
    first = annotations_of(update_learner(once, episodes))
    after = expected(once, episodes)
    second = annotations_of(update_learner(twice, episodes, num_epochs=2))
    moved = 0.0
    for episode, turns in before.items():
        for key, annotated in turns.items():
            assert set(np.ravel(first[episode][key]["ratio"])) == {1}
            ratio = np.exp(after[episode][key]["old_logp"] - annotated["old_logp"])
            given = second[episode][key]["ratio"]
            np.testing.assert_allclose(given, ratio, rtol=2e-3)
            moved = max(moved, np.abs(ratio - 1).max())
    assert moved > 0.01


def test_masked_turns_are_annotated_as_not_trained():
    learner = make_learner(make_config(GRPOConfig))
    episodes = made()
    episode_data(episodes[1]).masked_turns = frozenset({0})
    notes = annotations_of(update_learner(learner, episodes))[episodes[1].id_]
    assert [notes[0, i]["trained"] for i in range(2)] == [0, 1]
    assert notes[0, 0]["advantage"] == 0


def test_an_episode_that_is_all_masked_may_have_no_notes():
    learner = make_learner(make_config(GRPOConfig, micro_batch_tokens=1))
    episodes = [*made(), fake_episode(9, stop=StopReason.ABORTED)]
    data = episode_data(episodes[-1])
    data.annotates_tokens, data.stop_policy = True, StopPolicy.MASK
    notes = annotations_of(update_learner(learner, episodes))
    assert notes.keys() == {episodes[1].id_, episodes[4].id_}


def test_nothing_is_kept_without_annotations():
    learner = make_learner(make_config(GRPOConfig))
    episodes = made()
    for episode in episodes:
        episode_data(episode).annotates_tokens = False
    assert ANNOTATIONS not in update_learner(learner, episodes)[ALL_MODULES]


def test_numbers_are_short_and_equal_ones_stand_once():
    assert compact([0.123456, 2.0, float("nan")]) == [0.1235, 2, None]
    assert compact([1.00000001, 1.0]) == 1 and compact([0.5]) == [0.5]


# Teams -------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["shared", "central"])
def test_values_of_a_common_critic_reach_the_agents_turns(view):
    config = team_config(training={"critic": view})
    run = Run(config)
    wake_critic(run.learner)
    episodes = run.sample(3)
    for episode in episodes:
        episode_data(episode).annotates_tokens = episode is episodes[1]
    read = batches(run.learner, episodes)["critic"]
    (notes,) = annotations_of(run.update(episodes)).values()
    annotated = turns_of(episodes[1])
    assert len(notes) == len(annotated) == 4
    seen = {}
    for place, (agent, _) in enumerate(annotated):
        index = seen[agent] = seen.get(agent, -1) + 1
        number = ["ann_0", "ben_0"].index(agent)
        of_agent = (read[columns.AGENT_INDEX] == number) | (view == "central")
        (row,) = np.flatnonzero(
            (read[columns.MULTI_AGENT_EPISODE_INDEX] == 1) & of_agent
        )
        here = read[columns.TURN_IDS][row] == (place if view == "central" else index)
        right = read[columns.VALUES][row][here].numpy()
        note = notes[number, index]
        np.testing.assert_allclose(
            np.broadcast_to(note["value"], right.shape), right, **CLOSE
        )
        assert {"advantage", "old_logp", "entropy", "ratio", "gap"} < note.keys()


# Runs --------------------------------------------------------------------------------


def small(config_class, **rollouts):
    return make_config(config_class, lr=1e-3).rollouts(
        episodes_per_iteration=8, **rollouts
    )


def check_records(records):
    for record in records:
        jsonschema.validate(record, schema())
        for turn in record["turns"]:
            assert len(turn["columns"]["text"]) == turn["tokens"]


@pytest.mark.ray
def test_groups_and_parts_of_rewards_in_a_run(ray_session):
    config = small(
        GRPOConfig,
        group_size=4,
        rewards=["environment", {"name": "format", "weight": 0.5}],
    )
    algo = config.training(drop_zero_variance_groups=False).build_algo()
    result = algo.train()
    algo.stop()
    records = read_result(result)
    check_records(records)
    assert (
        ANNOTATIONS not in result and ANNOTATIONS not in result["learners"][ALL_MODULES]
    )
    groups = [r["group_id"] for r in records]
    assert len(records) == 8 and groups == sorted(groups, key=groups.index)
    picked = [r["selected_as"] for r in records]
    assert sorted(set(picked)) == ["best", "group", "worst"]
    assert picked.count("group") == 6
    for record in records:
        assert record["trained"] is True and record["advantage"] is not None
        total_reward = 0.0
        for turn in record["turns"]:
            assert list(turn["reward_parts"]) == ["environment", "format"]
            assert turn["reward"] == pytest.approx(sum(turn["reward_parts"].values()))
            total_reward += turn["reward"]
            advantage_estimator = token_column(turn, "advantage")
            np.testing.assert_allclose(
                advantage_estimator, record["advantage"], **CLOSE
            )
        assert record["return"] == pytest.approx(total_reward, abs=1e-5)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("config_class", [LLMPPOConfig, GRPOConfig])
def test_several_learners_and_runners_annotate_equally(ray_session, config_class):
    annotated = []
    for learners, runners in ((0, 0), (1, 0), (2, 2)):
        group = 4 if config_class is GRPOConfig else 1
        config = small(config_class, group_size=group).learners(num_learners=learners)
        if config_class is GRPOConfig:
            config.training(drop_zero_variance_groups=False)
        config.env_runners(num_env_runners=runners, num_envs_per_env_runner=1)
        algo = config.build_algo()
        records = read_result(algo.train())
        algo.stop()
        check_records(records)
        annotated.append({(r["group_id"], r["rollout"]): r for r in records})
    for other in annotated[1:]:
        both = annotated[0].keys() & other.keys()
        assert len(both) >= 2
        for key in both:
            for a, b in zip(
                annotated[0][key]["turns"], other[key]["turns"], strict=True
            ):
                assert a["columns"].keys() == b["columns"].keys()
                assert a["columns"]["text"] == b["columns"]["text"]
                for name in ("old_logp", "entropy", "advantage"):
                    np.testing.assert_allclose(
                        token_column(a, name), token_column(b, name), rtol=1e-2
                    )
