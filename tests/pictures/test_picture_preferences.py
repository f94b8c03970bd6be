"""Preferences with pictures: pairs and labels, sampled or from files."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from picture_helpers import picture, row_batch, row_scores, write_vlm
from picture_runs import TINY, config_of, learned, weights_of
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_llm import PrefConfig
from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.algorithms.pref.pairs import PreferencePair, common_turns
from rllib_llm.algorithms.pref.stored_pairs import stored_labelled, stored_pair
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.envs.dataset.dataset_rows import RowError
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import parse_labelled, parse_pair
from rllib_llm.offline.row_file import RowFile
from rllib_llm.pictures.contract import digest
from rllib_llm.pictures.png import png

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
BETA = 0.1


@pytest.fixture(scope="module")
def played(ray_session):
    """Return a resolved config and episodes with 1, 0 and 2 pictures in their turns."""
    algo = config_of(PrefConfig).rollouts(group_size=4).build_algo()
    episodes = algo.env_runner.sample(tasks=algo.next_tasks(8))
    algo.stop()
    return algo.config.resolved_model, episodes


def turns_of(episode):
    return list(episode.get_extra_model_outputs(columns.TURN))


def config_on(model, **training):
    config = config_of(PrefConfig, model={"model": model, "freeze": []}, **training)
    config.validate()
    config.resolved_model = model
    return config


def build(config):
    spaces = {DEFAULT_MODULE_ID: (UnicodeText(), UnicodeText())}
    learner = config.build_learner(spaces=spaces)
    learner.build()
    return learner, learner.module[DEFAULT_MODULE_ID].unwrapped()


def gradients(learner, module, units):
    """Return the gradient of one step, which is not taken, by name."""
    names = {p: n for n, p in module.named_parameters()}
    taken = {}
    learner.apply_gradients = lambda grads: taken.update(
        {names[p]: g.clone() for p, g in grads.items()}
    )
    learner.config.grad_clip = None
    learner.update(training_data=LLMTrainingData(episodes=units), timesteps={})
    return taken


@pytest.mark.parametrize("micro_batch_tokens", [None, 150])
def test_the_gradient_of_dpo_is_that_of_its_formula(played, micro_batch_tokens):
    model, episodes = played
    config = config_on(
        model,
        preference_loss={"name": "dpo", "beta": BETA},
        micro_batch_tokens=micro_batch_tokens,
    )
    learner, module = build(config)
    pairs = [PreferencePair(episodes[i], episodes[i + 1]) for i in (0, 4)]
    found = gradients(learner, module, pairs)

    def logp(episode):
        given = [(turns_of(episode), episode_data(episode).pictures)]
        return row_scores(module, row_batch(given, model)).sum()

    # The reference is the policy: both margins are 0, and -log sigmoid has slope 1/2.
    differences = [logp(episodes[i]) - logp(episodes[i + 1]) for i in (0, 4)]
    loss = -BETA / 2 * torch.stack(differences).mean()
    parameters = dict(module.named_parameters())
    expected = torch.autograd.grad(loss, parameters.values(), allow_unused=True)
    assert found
    for name, gradient in zip(parameters, expected, strict=True):
        assert (gradient is None) == (name not in found), name
        if gradient is not None:
            torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-4)
    assert any(
        "vision_model" in name and g.abs().max() > 1e-8 for name, g in found.items()
    )


@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_runs_train_tower_and_text(loss):
    config = config_of(PrefConfig, preference_loss=loss).rollouts(group_size=4)
    algo = config.build_algo()
    before = weights_of(algo)
    results = [algo.train() for _ in range(2)]
    after = weights_of(algo)
    algo.stop()
    count = "num_pairs" if loss == "dpo" else "num_desirable"
    assert all(r[count] > 0 for r in results)
    assert learned(results[0])["preference_loss"] == pytest.approx(
        0.693 if loss == "dpo" else 0.5, abs=0.01
    )
    for part in ("vision_model", "connector", "text_model"):
        names = [n for n in before if part in n]
        assert any(not torch.equal(before[n], after[n]) for n in names)


TREES = {"fork": {"name": "mcts"}, "episodes_per_iteration": 16, "group_size": 8}
WAYS = {
    "expert": ({"expert_episodes": True, "match": "best_worst"}, {}),
    "steps": ({"match": "step"}, TREES),
    "influence": ({"match": "step", "influence": {}}, TREES),
    "candidates": (
        {"match": "candidates"},
        {"candidates": 3, "candidate_scores": ["logp"]},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_comparing_keeps_the_pictures(way):
    training, rollouts = WAYS[way]
    config = config_of(PrefConfig, **training)
    algo = config.rollouts(**{"group_size": 4, **rollouts}).build_algo()
    before = weights_of(algo)
    units = algo.collect()
    for side in (side for unit in units for side in unit.agent_episodes.values()):
        shown = {ref.digest for turn in turns_of(side) for ref in turn.images}
        assert shown
        assert shown <= episode_data(side).pictures.keys()
    algo.train()
    after = weights_of(algo)
    algo.stop()
    assert units
    names = [n for n in before if "vision_model" in n]
    assert any(not torch.equal(before[n], after[n]) for n in names)


def test_turns_with_other_pictures_are_not_common(played):
    episode = played[1][0]
    turns = turns_of(episode)

    class Other:
        """The same ids with another picture in the first turn."""

        def get_extra_model_outputs(self, key):
            first = turns[0]
            refs = [
                dataclasses.replace(ref, digest=digest(picture(99)))
                for ref in first.images
            ]
            return [dataclasses.replace(first, images=tuple(refs)), *turns[1:]]

    assert common_turns(episode, episode) == len(turns) - 1
    assert common_turns(episode, Other()) == 0


@pytest.fixture
def rows(tmp_path):
    """Return a folder with pictures, and pairs of them in the forms of TRL."""
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(png(picture(number, 32, 32)))
    parts = [{"type": "image"}, {"type": "text", "text": "What colour?"}]
    prompt = [{"role": "user", "content": parts}]

    def side(text):
        return [{"role": "assistant", "content": text}]

    def row(number):
        return {
            "images": [f"{number}.png"],
            "prompt": prompt,
            "chosen": side("red"),
            "rejected": side("blue"),
        }

    return tmp_path, [row(number) for number in range(3)]


def write(folder, rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_pairs_of_files_show_their_pictures_on_both_sides(played, rows):
    folder, given = rows
    file = RowFile([write(folder, given)], parse_pair)
    assert file.has_pictures
    renderer = config_on(played[0]).chat_renderer()
    for number in range(3):
        pair = stored_pair(file[number], renderer)
        image = picture(number, 32, 32)
        for side in pair.agent_episodes.values():
            (turn,) = turns_of(side)
            assert [ref.digest for ref in turn.images] == [digest(image)]
            (stored,) = episode_data(side).pictures.values()
            assert np.array_equal(stored, image)


def test_a_mismatched_reply_follows_the_pictures_of_its_prompt(played, rows):
    folder, given = rows
    labelled = [
        {
            "images": r["images"],
            "prompt": r["prompt"],
            "completion": r[side],
            "label": label,
        }
        for r, side, label in zip(
            given, ("chosen", "rejected"), (True, False), strict=False
        )
    ]
    file = RowFile([write(folder, labelled)], parse_labelled)
    renderer = config_on(played[0]).chat_renderer()
    unit = stored_labelled((file[0], file[1]), renderer, max_tokens=999)
    own, other = unit.agent_episodes["episode"], unit.agent_episodes["mismatched"]
    for part in (own, other):
        (turn,) = turns_of(part)
        assert [r.digest for r in turn.images] == [digest(picture(0, 32, 32))]
    assert (
        turns_of(own)[0].action_ids.tolist() != turns_of(other)[0].action_ids.tolist()
    )


def test_pairs_differ_by_their_pictures_alone():
    def side(name):
        content = [{"type": "image", "image": name}, {"type": "text", "text": "Which?"}]
        user = {"role": "user", "content": content}
        return [user, {"role": "assistant", "content": "red"}]

    row = {"chosen": side("0.png"), "rejected": side("1.png")}
    assert parse_pair(json.dumps(row).encode()).has_pictures
    with pytest.raises(RowError, match="are equal"):
        parse_pair(json.dumps({**row, "rejected": side("0.png")}).encode())


def test_a_run_on_a_file_of_pairs(tmp_path, rows):
    folder, given = rows
    model = write_vlm(tmp_path / "model", **TINY)
    config = config_of(PrefConfig, model={"model": model, "freeze": []})
    config.data(files=write(folder, given))
    algo = config.build_algo()
    before = weights_of(algo)
    losses = [learned(algo.train())["preference_loss"] for _ in range(4)]
    after = weights_of(algo)
    algo.stop()
    assert losses[-1] < losses[0] - 0.05
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    assert any("vision_model" in n for n in changed)


def test_what_cannot_be_read_is_refused_before_training(rows):
    folder, given = rows
    missing = write(folder, [{**given[0], "images": ["9.png"]}])
    with pytest.raises(ConfigError, match="9.png' does not exist"):
        RowFile([missing], parse_pair)
    path = write(folder, given)
    config = PrefConfig().environment("countdown-v0").language_model(model="tiny")
    with pytest.raises(ConfigError, match="'tiny' reads text alone"):
        config.data(files=path).validate()
