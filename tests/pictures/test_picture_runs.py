"""Whole iterations with pictures: sampling, update, checkpoints, demonstrations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from family_folders import WRITERS
from picture_runs import MISMATCH, config_of, learned, weights_of

from rllib_llm import GRPO, LLMPPO, GRPOConfig, LLMPPOConfig, SFTConfig
from rllib_llm.callbacks.result_keys import POLICY_STALENESS
from rllib_llm.data.episode_data import episode_data
from rllib_llm.pictures.contract import digest
from rllib_llm.transcripts.collector import read_result

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


def test_sampler_and_learner_agree_and_the_tower_learns():
    algo = config_of(minibatch_size=4, num_epochs=2).build_algo()
    before = weights_of(algo)
    results = [algo.train() for _ in range(2)]
    after = weights_of(algo)
    algo.stop()
    for result in results:
        assert learned(result)[MISMATCH] < 1e-5
        assert learned(result)["grad_norm"] > 0
    for part in ("vision_model", "connector", "text_model"):
        names = [n for n in before if part in n]
        assert any(not torch.equal(before[n], after[n]) for n in names)


@pytest.mark.parametrize("name", ["llava", "internvl", "qwen2_vl", "qwen3_vl"])
def test_folders_of_other_families_train(tmp_path, name):
    model = {"model": WRITERS[name](tmp_path), "freeze": []}
    algo = config_of(model=model).build_algo()
    before = weights_of(algo)
    result = algo.train()
    after = weights_of(algo)
    algo.stop()
    assert learned(result)[MISMATCH] < 1e-5
    parts = ("vision_tower", "multi_modal_projector", "language_model")
    if name.startswith("qwen"):
        parts = ("visual.blocks", "visual.merger", "language_model")
    for part in parts:
        names = [n for n in before if part in n]
        assert any(not torch.equal(before[n], after[n]) for n in names)


def test_a_frozen_tower_stays_as_it_is():
    config = config_of().language_model(freeze=["vision"])
    algo = config.build_algo()
    before = weights_of(algo)
    result = algo.train()
    after = weights_of(algo)
    assert learned(result)[MISMATCH] < 1e-5
    algo.stop()
    for name in before:
        same = torch.equal(before[name], after[name])
        assert same if "vision_model" in name else True
    assert not all(torch.equal(before[n], after[n]) for n in before)


def test_episodes_hold_pixels_once_and_digests_in_their_turns():
    algo = config_of().build_algo()
    tasks = algo.config.build_task_source().next_groups(4)
    episode = algo.env_runner.sample(tasks=tasks)[0]
    algo.stop()
    data = episode_data(episode)
    turns = episode.get_extra_model_outputs("turn")
    assert [len(turn.images) for turn in turns] == [1, 0, 2]
    names = [ref.digest for turn in turns for ref in turn.images]
    assert list(data.pictures) == names
    assert all(digest(data.pictures[n]) == n for n in names)
    assert all(p.dtype == np.uint8 for p in data.pictures.values())
    # RLlib's own record holds digests, and the conversation names them.
    assert episode.get_infos(0)["images"] == names[:1]
    users = [m for m in data.messages if m["role"] == "user"]
    assert [m.get("images", "") for m in users] == [names[0], "", " ".join(names[1:])]
    places = [(ref.start, ref.count) for ref in data.images]
    token = algo.config.chat_renderer().pictures.token_id
    for start, count in places:
        assert data.ids[start : start + count] == [token] * count


@pytest.mark.parametrize(
    ("name", "kind"), [("qwen2_vl", GRPOConfig), ("qwen3_vl", LLMPPOConfig)]
)
def test_three_dimensions_train_on_colours_and_resume_to_the_bit(tmp_path, name, kind):
    model = {"model": WRITERS[name](tmp_path / "model"), "freeze": []}
    # All answers are wrong at first: groups of equal rewards are kept, and the entropy
    # alone gives a gradient.
    training = {"entropy_coeff": 0.1}
    if kind is LLMPPOConfig:
        model["value_model"] = "own"
    else:
        training["drop_zero_variance_groups"] = False
    config = config_of(kind, "colour_grid-v0", model, **training)
    algo = config.build_algo()
    results = [learned(algo.train())]
    before = weights_of(algo)
    algo.save_to_path(tmp_path / "one")
    results.append(learned(algo.train()))
    expected = weights_of(algo)
    algo.stop()
    assert all(r[MISMATCH] < 1e-5 for r in results)
    tower = [n for n in before if "visual" in n]
    assert any(not torch.equal(before[n], expected[n]) for n in tower)
    again = (GRPO if kind is GRPOConfig else LLMPPO).from_checkpoint(tmp_path / "one")
    again.train()
    resumed = weights_of(again)
    again.stop()
    assert all(torch.equal(expected[n], resumed[n]) for n in expected)


@pytest.mark.parametrize("history", ["append", "latest"])
def test_a_resumed_run_continues_to_the_bit(tmp_path, history):
    config = config_of().language_model(history=history)
    algo = config.build_algo()
    first = algo.train()
    assert learned(first)[MISMATCH] < 1e-5
    algo.save_to_path(tmp_path / "one")
    algo.train()
    expected = weights_of(algo)
    algo.stop()
    again = GRPO.from_checkpoint(tmp_path / "one")
    again.train()
    resumed = weights_of(again)
    again.stop()
    assert all(torch.equal(expected[n], resumed[n]) for n in expected)


def test_demonstrations_show_pictures():
    algo = config_of(SFTConfig, "colour_grid-v0").build_algo()
    nll = [learned(algo.train())["nll"] for _ in range(3)]
    episode = algo.collect()[0]
    algo.stop()
    assert nll[-1] < nll[0]
    (turn,) = episode.get_extra_model_outputs("turn")
    assert len(turn.images) == 1
    assert set(episode_data(episode).pictures) == {turn.images[0].digest}


def test_a_reference_policy_reads_the_pictures():
    algo = config_of(ref_kl_coeff=0.1).build_algo()
    first, second = (learned(algo.train()) for _ in range(2))
    algo.stop()
    assert abs(first["ref_kl"]) < 1e-6
    assert second["ref_kl"] > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "processes"),
    [
        ("env_runners", {"num_env_runners": 1}),
        ("learners", {"num_learners": 2}),
        ("learners", {"num_learners": 2, "sharding": "fsdp2"}),
    ],
)
def test_processes_of_their_own_get_the_pictures(section, processes):
    # All answers are wrong at first, and groups of equal rewards are kept.
    config = config_of(env="colour_grid-v0", drop_zero_variance_groups=False)
    getattr(config, section)(**processes)
    algo = config.build_algo()
    results = [learned(algo.train()) for _ in range(2)]
    algo.stop()
    assert all(r[MISMATCH] < 1e-5 for r in results)


@pytest.mark.slow
def test_pictures_are_sampled_ahead():
    config = config_of(env="colour_grid-v0", drop_zero_variance_groups=False)
    config.env_runners(num_env_runners=1, sample_ahead=1)
    algo = config.build_algo()
    results = [learned(algo.train()) for _ in range(3)]
    algo.stop()
    assert results[-1][POLICY_STALENESS] == 1
    assert 0.5 < results[-1]["is_weight_mean"] < 2  # tis="auto" corrects
    assert all(np.isfinite(r["grad_norm"]) for r in results)


def test_transcripts_show_the_pictures_of_each_turn():
    algo = config_of().build_algo()
    records = read_result(algo.train())
    algo.stop()
    shown = [[len(t.get("images", ())) for t in r["turns"]] for r in records]
    assert shown and all(each == [1, 0, 2] for each in shown)
    assert "images" not in records[0]["turns"][1]
    first = records[0]["turns"][0]["images"][0]
    assert len(first["digest"]) == 32
    assert first["png"].startswith("iVBOR")
