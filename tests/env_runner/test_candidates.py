"""Replies that are sampled beside the one that is played (rollouts(candidates=...))."""

import numpy as np
import pytest
import torch
from fork_toys import Diary, group
from runner_helpers import make_runner

from rllib_llm import PrefConfig
from rllib_llm.data import columns
from rllib_llm.data.candidates import candidate_episodes
from rllib_llm.data.episode_data import episode_data

MANY = {
    "candidates": 4,
    "candidate_scores": "logp",
    "save_episodes": "unused",
    "save_as": "best_candidates",
}


class Counting(Diary):
    """Counts its steps."""

    steps = 0

    def reply(self, action):
        Counting.steps += 1
        return super().reply(action)


@pytest.fixture(scope="module")
def played():
    runner = make_runner(Counting, **MANY)
    Counting.steps = 0
    episodes = runner.sample(tasks=group(4))
    yield runner, episodes
    runner.stop()


def turns(episode):
    return episode.get_extra_model_outputs(columns.TURN)


def test_each_turn_has_replies_that_the_environment_never_receives(played):
    _, episodes = played
    assert Counting.steps == sum(map(len, episodes)) == 16
    for episode in episodes:
        data = episode_data(episode)
        assert sorted(data.candidates) == list(range(len(episode)))
        for turn, candidates in data.candidates.items():
            texts = [each.text for each in candidates]
            assert len(candidates) == 3 and len(set(texts)) > 1
            assert {each.turn.env_t for each in candidates} == {turn}


def test_the_played_replies_do_not_depend_on_the_others(played):
    _, episodes = played
    runner = make_runner(Counting)
    alone = runner.sample(tasks=group(4))
    runner.stop()
    for one, other in zip(episodes, alone, strict=True):
        assert list(one.get_actions()) == list(other.get_actions())
        assert list(one.get_observations()) == list(other.get_observations())
        assert not episode_data(other).candidates
        for ours, theirs in zip(turns(one), turns(other), strict=True):
            np.testing.assert_array_equal(ours.prompt_ids, theirs.prompt_ids)
            np.testing.assert_allclose(
                ours.action_logps, theirs.action_logps, atol=1e-4
            )


def test_candidates_are_sampled_after_the_conversation_before_them(played):
    runner, episodes = played
    for episode in episodes:
        ids = []
        for number, turn in enumerate(turns(episode)):
            ids += turn.prompt_ids.tolist()
            for candidate in episode_data(episode).candidates[number]:
                record = candidate.turn
                np.testing.assert_array_equal(record.prompt_ids, turn.prompt_ids)
                row = torch.as_tensor([[*ids, *record.action_ids.tolist()]])
                with torch.no_grad():
                    logps = runner.module.lm(row).logits[0].log_softmax(-1)
                own = logps[len(ids) - 1 : -1].gather(1, row[0, len(ids) :, None])[:, 0]
                np.testing.assert_allclose(record.action_logps, own, atol=1e-4)
            ids += turn.action_ids.tolist()


def test_a_candidate_is_an_episode_that_ends_with_it(played):
    runner, episodes = played
    decode = runner.config.chat_renderer().decode
    for episode in episodes:
        for turn in range(len(episode)):
            replies = candidate_episodes(episode, turn)
            assert replies[-1].get_actions() == list(episode.get_actions()[: turn + 1])
            for reply in replies:
                data, records = episode_data(reply), turns(reply)
                assert len(reply) == len(records) == turn + 1
                assert records[:-1] == list(turns(episode)[:turn])
                last = decode(records[-1].action_ids.tolist())
                assert data.messages[-1] == {"role": "assistant", "content": last}
                roles = [message["role"] for message in data.messages]
                assert roles == ["user", "assistant"] * (turn + 1)
                assert data.masked_turns == frozenset(range(turn))
                assert reply.get_rewards()[-1] == 0
                ids = [i for r in records for i in (*r.prompt_ids, *r.action_ids)]
                assert data.ids == ids
            assert len({reply.id_ for reply in replies}) == 4


def test_their_tokens_are_counted_apart(played):
    runner, _ = played
    runner.get_metrics()
    episodes = runner.sample(tasks=group(4, number=1))
    metrics = runner.get_metrics()
    tokens = sum(
        len(each.turn.action_ids)
        for episode in episodes
        for candidates in episode_data(episode).candidates.values()
        for each in candidates
    )
    assert metrics["candidate_tokens"].peek() == tokens > 0
    own = sum(episode_data(episode).num_sampled for episode in episodes)
    assert metrics["num_completion_tokens"].peek() == own


def test_greedy_replies_and_those_of_evaluation_have_no_others(played):
    runner, _ = played
    for episode in runner.sample(tasks=group(2), explore=False):
        assert not episode_data(episode).candidates
    config = PrefConfig().rollouts(candidates=4).training(match="candidates")
    config.environment("guess_number-v0").rollouts(candidate_scores="logp")
    config.validate()
    from rllib_llm.env_runner import build

    engines = {"default_policy": None}
    for in_evaluation, count in ((False, 4), (True, 1)):
        config.in_evaluation = in_evaluation
        sources = build.action_sources(config, engines, {}, {}, None)
        assert sources["default_policy"].candidates == count
