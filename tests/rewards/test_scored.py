"""The reward of a reward model: folders, turns, normalisation, length."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from component_helpers import trajectory
from hf_folders import write_folder
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from rllib_llm.components.registry import bind
from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.errors import ConfigError
from rllib_llm.modules.classifiers import Classifier
from rllib_llm.modules.loading import load_tokenizer
from rllib_llm.rewards.combine import Rewards

CHAT = [
    {"role": "system", "content": "Play."},
    {"role": "user", "content": "Guess."},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "Higher."},
    {"role": "assistant", "content": "6"},
]


def classifier_folder(folder, family="qwen2", labels=1, **more):
    """A folder as TRL's RewardTrainer writes it: head and tokenizer."""
    base = write_folder(folder / "base", family)
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(base, num_labels=labels, **more)
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        model.score.weight.mul_(2)
    model.save_pretrained(folder / "rm")
    AutoTokenizer.from_pretrained(base).save_pretrained(folder / "rm")
    return folder / "rm"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return classifier_folder(tmp_path_factory.mktemp("scored"))


def plain_score(folder, messages):
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_tensors="pt"
    )
    with torch.no_grad():
        return float(model(**ids).logits[0, 0])


def played(messages=CHAT, turns=2, **fields):
    return trajectory(rewards=[0.0] * turns, messages=messages, **fields)


def scored(folder, **settings):
    return bind("reward", {"name": "scored", "model": str(folder), **settings})


def test_the_score_of_a_conversation_is_that_of_transformers(folder):
    others = [[*CHAT[:1], *CHAT[1:3]], CHAT, CHAT[1:]]
    found = scored(folder).call.of_all([played(m, turns=1) for m in others])
    expected = [plain_score(folder, messages) for messages in others]
    np.testing.assert_allclose(np.ravel(found), expected, atol=1e-4)
    assert len(set(np.round(expected, 3))) == 3


def test_the_last_observation_of_a_cut_episode_is_not_scored(folder):
    later = [*CHAT, {"role": "user", "content": "Lower."}]
    part = scored(folder).call
    assert part(played(later)) == part(played())


def test_rewards_of_turns_are_differences_and_sum_to_the_whole(folder):
    rewards = scored(folder, per="turn").call(played())
    first, whole = plain_score(folder, CHAT[:3]), plain_score(folder, CHAT)
    assert rewards == pytest.approx([first, whole - first], abs=1e-4)
    assert scored(folder).call(played()) == pytest.approx([0.0, whole], abs=1e-4)


def test_scores_are_normalized_and_clipped(folder):
    whole = plain_score(folder, CHAT)
    given = {"normalize": True, "mean": whole - 3.0, "std": 2.0}
    assert scored(folder, **given).call(played())[1] == pytest.approx(1.5, abs=1e-4)
    assert scored(folder, **given, clip=0.5).call(played())[1] == 0.5


def test_batches_change_nothing(folder):
    many = [played(CHAT[: 3 + 2 * (i % 2)], turns=1) for i in range(6)]
    one = scored(folder).call.of_all(many)
    small = scored(folder, batch_tokens=1).call.of_all(many)
    np.testing.assert_allclose(one, small, atol=1e-4)


def test_long_conversations_are_refused_or_cut_with_a_warning(folder, caplog):
    with pytest.raises(ConfigError, match="more than the 8 that .* Set too_long='cut'"):
        scored(folder, max_tokens=8).call(played())
    found = scored(folder, max_tokens=8, too_long="cut").call(played())[1]
    ids = ChatRenderer(load_tokenizer(str(folder))).conversation(CHAT)
    expected = Classifier(str(folder)).scores([ids[-8:]], 64)[0]
    assert found == pytest.approx(expected, abs=1e-4)
    assert "tokens of a conversation are cut" in caplog.text


def test_no_turns_have_no_reward(folder):
    assert scored(folder).call(played(messages=[], turns=0)) == []


def test_turns_need_one_conversation(folder):
    with pytest.raises(ConfigError, match="3 turns have 2"):
        scored(folder, per="turn").call(played(turns=3))


def test_it_is_part_of_a_runs_rewards(folder):
    rewards = Rewards([{"name": "scored", "model": str(folder), "weight": 0.5}])
    rewards.try_out()  # without messages, and without loading the weights
    one = played()
    parts = rewards([one])
    whole = plain_score(folder, CHAT)
    assert parts["scored"].tolist() == pytest.approx([0.0, 0.5 * whole], abs=1e-4)
    assert one.rewards == pytest.approx([0.0, 0.5 * whole], abs=1e-4)


# Folders ------------------------------------------------------------------------------


def test_folders_that_are_no_reward_model_are_refused(tmp_path, folder):
    two = classifier_folder(tmp_path / "two", labels=2)
    lm = write_folder(tmp_path / "lm", "qwen2")
    empty = tmp_path / "empty"
    empty.mkdir()
    text = (folder / "config.json").read_text()
    (empty / "config.json").write_text(text)
    for path, message in (
        (two, "has 2 labels; a reward is one number"),
        (lm, "not a sequence classifier"),
        (tmp_path / "nowhere", "does not exist"),
        (empty, "holds a config but no weights"),
    ):
        with pytest.raises(ConfigError, match=message):
            scored(path)


def test_normalize_needs_numbers(tmp_path, folder):
    with pytest.raises(ConfigError, match="no score_mean and score_std"):
        scored(folder, normalize=True)
    with pytest.raises(ConfigError, match="have no effect without normalize"):
        scored(folder, mean=1.0)
    config = json.loads((folder / "config.json").read_text())
    own = classifier_folder(tmp_path)
    config |= {"score_mean": 1.0, "score_std": 2.0}
    (own / "config.json").write_text(json.dumps(config))
    expected = (plain_score(own, CHAT) - 1.0) / 2.0
    found = scored(own, normalize=True).call(played())[1]
    assert found == pytest.approx(expected, abs=1e-4)


def test_missing_weights_are_not_random(tmp_path):
    from safetensors.torch import load_file, save_file

    path = classifier_folder(tmp_path)
    tensors = load_file(path / "model.safetensors")
    del tensors["score.weight"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Exception, match=r"lack score.weight"):
        scored(path).call(played())
