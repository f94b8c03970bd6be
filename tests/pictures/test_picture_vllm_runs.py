"""Runs that sample pictures with vLLM: GRPO, LoRA, forks, searches, wrong folders."""

from __future__ import annotations

import json

import pytest
import torch
from picture_helpers import (
    make_renderer,
    make_vlm_module,
    picture,
    row_batch,
    row_scores,
)
from picture_runs import MISMATCH, config_of, learned
from test_picture_vllm import KWARGS, gap, make_vllm, sent, submit
from vllm_folders import write_for_vllm

from rllib_llm.data import columns
from rllib_llm.data.candidates import candidate_episodes
from rllib_llm.data.episode_data import episode_data
from rllib_llm.errors import ModelError
from rllib_llm.evaluation.outcomes import held_out_tasks
from rllib_llm.evaluation.runner import local_runner
from rllib_llm.evaluation.tree_search import MctsSettings, search_tasks

pytest.importorskip("vllm")
pytestmark = [pytest.mark.slow, pytest.mark.ray]
FAMILIES = ("idefics3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")


@pytest.fixture(scope="module", params=["idefics3", "qwen2_5_vl"])
def folder(request, tmp_path_factory):
    """Write an Idefics3, whose processor needs no further package, and a Qwen."""
    if request.param != "idefics3":
        pytest.importorskip("torchvision")
    return write_for_vllm(request.param, tmp_path_factory.mktemp(request.param))


def vllm_config(folder, engine="vllm", model=None, **settings):
    config = config_of(model={"model": folder, **(model or {"freeze": []})}, **settings)
    return config.generation(
        engine=engine, engine_kwargs=KWARGS, max_context_tokens=256
    )


def trained(config):
    algo = config.build_algo()
    results = [algo.train() for _ in range(2)]
    algo.stop()
    return results


@pytest.mark.parametrize("engine", ["vllm", "vllm_actor"])
def test_runs_sample_with_the_learners_weights(folder, ray_session, engine):
    for result in trained(vllm_config(folder, engine)):
        assert learned(result)[MISMATCH] < 1e-3
        assert learned(result)["grad_norm"] > 0


def test_adapters_are_sent_alone(folder, ray_session):
    model = {"lora": {"rank": 4}, "freeze": ["vision", "projector"]}
    results = trained(vllm_config(folder, model=model))
    assert max(learned(result)[MISMATCH] for result in results) < 1e-3


def episode_gap(episodes, folder):
    """Return the largest difference between the sampler's and a row's scores."""
    given = [
        (list(e.get_extra_model_outputs(columns.TURN)), episode_data(e).pictures)
        for e in episodes
    ]
    batch = row_batch(given, folder)
    scores = row_scores(make_vlm_module(folder), batch)
    mask = scores != 0
    return (scores - batch[columns.BEHAVIOUR_LOGP])[mask].abs().max()


def test_forks_show_the_pictures_before_their_place(folder, ray_session):
    config = vllm_config(folder, drop_zero_variance_groups=False)
    config.rollouts(fork={"name": "every_turn", "roots": 2, "first": 1})
    algo = config.build_algo()
    tasks = algo.config.build_task_source().next_groups(2)
    episodes = algo.env_runner.sample(tasks=tasks)
    algo.env_runner.get_metrics()
    forks = [e for e in episodes if episode_data(e).inherited_tokens]
    gap = episode_gap(episodes, folder)
    result = algo.train()
    algo.stop()
    assert forks
    assert gap < 1e-4
    assert result["env_runners"]["num_forks"] == 4
    assert learned(result)[MISMATCH] < 1e-3


def test_candidates_answer_the_same_pictures(folder, ray_session, tmp_path):
    config = vllm_config(folder)
    config.rollouts(
        candidates=3,
        candidate_scores="logp",
        save_episodes=str(tmp_path),
        save_as="best_candidates",
    )
    algo = config.build_algo()
    tasks = algo.config.build_task_source().next_groups(1)
    episodes = algo.env_runner.sample(tasks=tasks)
    algo.stop()
    for turn in range(3):
        replies = candidate_episodes(episodes[0], turn)
        assert len(replies) == 3
        assert episode_gap(replies, folder) < 1e-4


def test_a_search_plays_on_from_places_with_pictures(folder, ray_session):
    algo = vllm_config(folder).build_algo()
    settings = MctsSettings(simulations=6, width=2, exploration=0.5)
    tasks = held_out_tasks(algo.config, 2)
    searches = search_tasks(local_runner(algo), tasks, settings)
    outcomes = [search.outcome(number) for number, search in enumerate(searches)]
    algo.stop()
    assert [(o.success, o.turns) for o in outcomes] == [(True, 3)] * 2


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_adapters_of_the_text_part_change_vllm_as_the_learner(name, tmp_path):
    if name != "idefics3":
        pytest.importorskip("torchvision")
    path, lora = write_for_vllm(name, tmp_path), {"rank": 4, "alpha": 16}
    module = make_vlm_module(
        path,
        lora={**lora, "target_modules": "all-linear", "parts": ["text"]},
        freeze=["vision", "projector"],
    )
    engine = make_vllm(path, module, lora=lora)
    assert gap(engine, module, path, "base") < 1e-4
    torch.manual_seed(2)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn_like(parameter) * 0.2)
    old = gap(engine, module, path, "old")
    engine.update_weights(sent(module), 1)
    assert gap(engine, module, path, "new") < 1e-4
    assert old > 1e-2


@pytest.mark.parametrize(
    "wrong", [{"rescale_factor": 0.01}, {"merge_size": 1}], ids=["pixels", "ids"]
)
def test_the_probe_finds_a_processor_of_another_model(wrong, tmp_path):
    pytest.importorskip("torchvision")
    path = write_for_vllm("qwen2_vl", tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **wrong}))
    engine = make_vllm(path, make_vlm_module(path))
    message = "writes the ids" if "merge_size" in wrong else "values of a picture"
    with pytest.raises(ModelError, match=message):
        submit(engine, make_renderer(path), picture(1), "s")
