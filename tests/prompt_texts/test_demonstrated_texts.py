"""Demonstrations of SFT that read texts, which earlier demonstrations wrote."""

from __future__ import annotations

import numpy as np
import pytest
from team_helpers import single_config

from rllib_llm import SFTConfig
from rllib_llm.data.episode_data import episode_data
from rllib_llm.errors import ConfigError

MEMORY = {"name": "memory", "text": "{replies}", "top_k": 1, "heading": "Example:"}
W = {"w": {"script": lambda question: "Go on.", "parse": {"text": "(.+)"}}}


def config(prompt_text=MEMORY, env="ui-v0", **rollouts):
    given = {"episodes_per_iteration": 6, "prompt_text": prompt_text, **rollouts}
    return single_config(SFTConfig, env=env, rollouts=given)


@pytest.fixture(scope="module")
def collected(ray_session):
    """An algorithm and its demonstrations of two iterations."""
    algo = config().build_algo()
    first, second = algo.collect(), algo.collect()
    yield algo, first, second
    algo.stop()


@pytest.mark.ray
def test_later_demonstrations_read_what_earlier_ones_did(collected):
    _, first, second = collected
    assert not any(episode_data(e).added_texts for e in first)
    written = {" ".join(e.get_actions()) for e in first}
    for episode in second:
        (added,) = episode_data(episode).added_texts
        assert added.text in written
        messages = episode_data(episode).messages
        first_message = next(m for m in messages if m["role"] == "user")
        shown = str(episode.get_observations(0))
        assert first_message["content"] == f"Example:\n- {added.text}\n\n{shown}"


@pytest.mark.ray
def test_what_is_read_is_context_and_not_in_the_loss(collected):
    algo, _, second = collected
    renderer = algo.config.chat_renderer()
    for episode in second:
        data = episode_data(episode)
        turns = episode.get_extra_model_outputs("turn")
        assert "Example:" in renderer.tokenizer.decode(turns[0].prompt_ids)
        for turn, reply in zip(turns, episode.get_actions(), strict=True):
            assert list(turn.action_ids) == list(renderer.encode_reply(str(reply)))
        assert data.num_sampled == sum(len(turn.action_ids) for turn in turns)


@pytest.mark.ray
def test_failed_demonstrations_write_nothing_and_the_bank_is_restored(
    ray_session, tmp_path
):
    algo = config().training(mistake_rate=1.0).build_algo()
    solved = [e for e in algo.collect() if episode_data(e).success]
    text = algo._driver_components.prompt_text_of(None)
    keys = {str(e.get_observations(0)) for e in solved}
    assert {entry.key for entry in text.bank.entries} <= keys
    algo.train()
    path = algo.save_to_path(tmp_path / "checkpoint")
    restored = type(algo).from_checkpoint(path)
    again = restored._driver_components.prompt_text_of(None)
    assert again.get_state() == text.get_state() and text.bank.entries
    algo.stop()
    restored.stop()


@pytest.mark.ray
def test_demonstrations_without_texts_are_as_before(ray_session):
    with_texts, without = config().build_algo(), config(None).build_algo()
    for plain, noted in zip(without.collect(), with_texts.collect(), strict=True):
        assert np.array_equal(episode_data(plain).ids, episode_data(noted).ids)
    for algo in (with_texts, without):
        algo.stop()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: config({**MEMORY, "text": None, "of": "w"}, assistants=W), "asks n"),
        (lambda f: config(env="secret_sum-v0"), "read no texts"),
        (lambda f: config().data(files=[f]), "stay as they are"),
    ],
)
def test_texts_that_demonstrations_cannot_read_are_refused(change, message, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "Go.", "completion": "back"}\n')
    with pytest.raises(ConfigError, match=message):
        change(str(rows)).validate()
