"""history="latest": prompts with the newest observation alone."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspiel")
pytest.importorskip("openskill")

from hf_folders import CHAT_FAMILIES, make_tokenizer
from self_play_helpers import LEARNER, kuhn

from rllib_llm.algorithms.selfplay.learner_calls import prompt_ids
from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.types import Message


@pytest.mark.filterwarnings("ignore:The chat template rewrites")
@pytest.mark.parametrize("family", CHAT_FAMILIES)
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_earlier_turns_are_left_out(family, system):
    renderer = ChatRenderer(make_tokenizer(family), "latest")
    head: list[Message] = [{"role": "system", "content": system}] if system else []
    question: Message = {"role": "user", "content": "Too low. Again?"}
    talk = [
        *head,
        {"role": "user", "content": "A number?"},
        {"role": "assistant", "content": "3"},
        question,
    ]
    ids = renderer.first(talk[:-2]) + renderer.encode_reply("3")
    prompt = renderer.next(talk, ids, last_sampled_id=ids[-1])
    assert prompt.ids == renderer.first([*head, question]) and not prompt.extends


@pytest.mark.ray
def test_kuhn_poker_trains_with_the_newest_prompt_only(ray_session):
    config = kuhn(episodes=32, league={"opponents": "mirror"})
    algo = config.language_model(history="latest").build_algo()
    renderer = algo.config.chat_renderer()
    later = 0
    for episode in algo.sample_groups(32):
        for part in agent_episodes(episode):
            turns = part.get_extra_model_outputs("turn")
            for i, turn in enumerate(turns):
                newest = [{"role": "user", "content": part.get_observations(i)}]
                expected = prompt_ids(renderer, newest, None)  # as in measurements
                assert turn.prompt_ids.tolist() == expected
                assert turn.extends == (i == 0)
                later += i > 0
            assert len(episode_data(part).messages) >= 2 * len(turns)  # all are kept
    assert later > 0
    before = algo.measure_exploitability()
    result = algo.train()
    assert result["env_runners"]["prefix_break_frac"] > 0
    update = result["learners"][LEARNER]
    assert update["num_rows"] > 64  # one row per turn
    assert update["train_inference_mismatch_mean"] < 1e-4
    after = algo.measure_exploitability()
    assert before.queries == after.queries == 12
    assert before.exploitability != after.exploitability
    algo.stop()
