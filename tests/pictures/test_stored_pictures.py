"""Episodes with pictures in files, in the replay buffer, and in SFT on files."""

from __future__ import annotations

import base64
import dataclasses
import json

import numpy as np
import pytest
import torch
from picture_helpers import make_vlm_module, picture, row_batch, row_scores
from picture_runs import config_of, learned, weights_of

from rllib_llm import GRPO, SFTConfig
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.envs.dataset.dataset_rows import RowError
from rllib_llm.errors import ConfigError
from rllib_llm.evaluation.outcomes import held_out_tasks
from rllib_llm.evaluation.runner import local_runner
from rllib_llm.offline.conversation_files import parse_row
from rllib_llm.offline.episode_store import EpisodeStore
from rllib_llm.offline.episode_units import stored_episode_unit
from rllib_llm.offline.export_rows import as_messages, write_rows
from rllib_llm.offline.row_file import RowFile
from rllib_llm.offline.stored_episodes import conversation_episode
from rllib_llm.pictures.contract import digest
from rllib_llm.pictures.png import png

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


@pytest.fixture(scope="module")
def saved(tmp_path_factory, ray_session):
    """Return a config with its prepared model, rows of a run, and its episodes."""
    folder = tmp_path_factory.mktemp("saved")
    config = config_of().rollouts(save_episodes=str(folder))
    config.training(lr=0.0)
    algo = config.build_algo()
    algo.train()
    runner = local_runner(algo)
    played = runner.sample(tasks=held_out_tasks(algo.config, 6), explore=True)
    for episode in played:
        episode_data(episode).advantage = 1.0
    used = algo.config.copy(copy_frozen=False)
    algo.stop()
    lines = [line for path in folder.glob("*.jsonl") for line in path.open("rb")]
    return used, lines, played, folder


def turns_of(episode):
    return list(episode.get_extra_model_outputs(columns.TURN))


def test_a_file_gives_ids_and_places_again_as_ids_or_as_texts(saved):
    config, lines, _, _ = saved
    renderer = config.chat_renderer()
    assert len(lines) == 8
    for line in lines:
        stored = parse_row(line)
        (agent,) = stored.agents
        assert len(agent.pictures) == 3
        assert all(digest(p) == name for name, p in agent.pictures.items())
        exact = stored_episode_unit(stored, renderer)
        bare = [
            dataclasses.replace(t, prompt_ids=None, action_ids=None, images=())
            for t in agent.turns
        ]
        texts = dataclasses.replace(
            stored, agents=[dataclasses.replace(agent, turns=bare, tokenizer=None)]
        )
        again = stored_episode_unit(texts, renderer)
        assert episode_data(again).pictures.keys() == agent.pictures.keys()
        assert [len(t.images) for t in turns_of(exact)] == [1, 0, 2]
        for one, two in zip(turns_of(exact), turns_of(again), strict=True):
            assert one.prompt_ids.tolist() == two.prompt_ids.tolist()
            assert one.images == two.images


def test_parquet_holds_the_same_pictures(saved, tmp_path):
    _, lines, _, _ = saved
    path = tmp_path / "rows.parquet"
    write_rows(path, [json.loads(line) for line in lines])
    rows = RowFile([str(path)], parse_row)
    assert rows.has_pictures
    for number, line in enumerate(lines):
        one, two = parse_row(line).agents[0], rows[number].agents[0]
        assert one.turns == two.turns
        assert one.pictures.keys() == two.pictures.keys()


def test_drawn_episodes_score_as_they_were_sampled(saved):
    config, _, played, _ = saved
    store = EpisodeStore(capacity_tokens=10**6)
    store.add(played, iteration=1)
    drawn, _ = store.draw(6, 2)
    folder = config.resolved_model
    module = make_vlm_module(folder)

    def batch_of(episodes, swapped=False):
        given = [(turns_of(e), episode_data(e).pictures) for e in episodes]
        if swapped:
            given = [(turns, {n: 255 - p for n, p in s.items()}) for turns, s in given]
        return row_batch(given, folder)

    batch = batch_of(drawn)
    gap = row_scores(module, batch) - batch[columns.BEHAVIOUR_LOGP]
    assert gap.abs().max() < 1e-5
    other = row_scores(module, batch_of(drawn, swapped=True))
    assert (other - row_scores(module, batch)).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a["pictures"].pop(), "which is not among"),
        (lambda a: a["pictures"][0].update(png="x"), "is no PNG file"),
        (
            lambda a: a["pictures"][0].update(png=a["pictures"][1]["png"]),
            "another digest",
        ),
        (lambda a: a["pictures"][0].pop("png"), "'digest' and 'png'"),
        (lambda a: a["turns"][0]["images"][0].pop("count"), "'start' and 'count'"),
        (
            lambda a: a["turns"][0]["messages"][-1].update(content="No mark."),
            "with 1 pictures and 0 times",
        ),
        (lambda a: a["turns"][0]["messages"][-1].update(images=[1]), "the digests"),
    ],
)
def test_damaged_rows_are_named(saved, change, message):
    row = json.loads(saved[1][0])
    change(row["agents"][0])
    with pytest.raises(RowError, match=message):
        parse_row(json.dumps(row).encode())


def test_models_of_text_and_exports_refuse_them(saved):
    stored = parse_row(saved[1][0])
    text = config_of(model={"model": "tiny"}).language_model(tiny={})
    text.resolved_model = None
    from rllib_llm.offline.prepare_model import prepare_language_model

    text.resolved_model = prepare_language_model(text)
    with pytest.raises(ConfigError, match="shows pictures, but the policy's model"):
        stored_episode_unit(stored, text.chat_renderer())
    with pytest.raises(ConfigError, match="Export the run as 'episodes'"):
        list(as_messages(stored))
    with pytest.raises(ConfigError, match=r"rollouts.save_as='corrections'"):
        config_of().rollouts(save_episodes=True, save_as="corrections").validate()


REPLY = {"role": "assistant", "content": "red"}


@pytest.fixture
def shots(tmp_path):
    """Return a folder with two pictures, and the pixels of both."""
    pixels = [picture(1, 32, 32), picture(2, 20, 40)]
    for number, each in enumerate(pixels):
        (tmp_path / f"{number}.png").write_bytes(png(each))
    return tmp_path, pixels


def in_parts(*parts):
    """Return parts of a content: texts, and pictures by their source (or None)."""
    return [
        {"type": "text", "text": part}
        if isinstance(part, str) and not part.endswith(("png", "=="))
        else {"type": "image", **({"image": part} if part else {})}
        for part in parts
    ]


def written(folder, *rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def forms(folder, pixels):
    """Return one conversation in the forms that other libraries write."""
    url = "data:image/png;base64," + base64.b64encode(png(pixels[0])).decode()
    system = {"role": "system", "content": "You see."}

    def row(content, **columns):
        return {
            "messages": [system, {"role": "user", "content": content}, REPLY],
            **columns,
        }

    encoded = [{"bytes": base64.b64encode(png(p)).decode()} for p in pixels]
    return [
        row(in_parts("0.png", "Which?", "1.png")),
        row(in_parts(None, "Which?", None), images=["0.png", "1.png"]),
        row("<image>Which?<image>", images=encoded),
        row(
            [
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "text", "text": "Which?"},
                {"type": "image", "path": str(folder / "1.png")},
            ]
        ),
    ]


def test_conversations_of_other_libraries_show_their_pictures(saved, shots):
    folder, pixels = shots
    rows = RowFile([written(folder, *forms(folder, pixels))], parse_row)
    assert rows.has_pictures
    renderer = saved[0].chat_renderer()
    units = [conversation_episode(rows[i], renderer) for i in range(len(rows))]
    names = [digest(p) for p in pixels]
    for unit in units:
        (turn,) = turns_of(unit)
        (first,) = turns_of(units[0])
        assert [ref.digest for ref in turn.images] == names
        assert turn.prompt_ids.tolist() == first.prompt_ids.tolist()
        assert episode_data(unit).pictures.keys() == set(names)
        for name, pixel in zip(names, pixels, strict=True):
            assert np.array_equal(episode_data(unit).pictures[name], pixel)


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        (in_parts("9.png", "Which?"), {}, "9.png' does not exist"),
        (in_parts(None, "Which?"), {}, "no column of pictures"),
        ("<image> Which?", {"images": ["0.png", "1.png"]}, "images has 2 pictures"),
        ([{"type": "video"}], {}, "must have the type 'text'"),
    ],
)
def test_conversations_whose_pictures_cannot_be_read(shots, content, columns, message):
    folder, _ = shots
    user = {"role": "user", "content": content}
    with pytest.raises(ConfigError, match=message):
        RowFile([written(folder, {"messages": [user, REPLY], **columns})], parse_row)


def test_files_with_pictures_need_a_model_that_reads_them(shots):
    folder, pixels = shots
    path = written(folder, *forms(folder, pixels))
    config = SFTConfig().environment("countdown-v0").language_model(model="tiny")
    with pytest.raises(ConfigError, match="'tiny' reads text alone"):
        config.data(files=path).validate()


def sft_of(saved, **training):
    config, _, _, folder = saved
    return (
        SFTConfig()
        .environment(config.env)
        .language_model(model=config.resolved_model, freeze=[])
        .rollouts(episodes_per_iteration=8)
        .data(files=str(folder / "*.jsonl"))
        .training(**{"lr": 3e-3, **training})
        .debugging(seed=1)
    )


def test_sft_on_a_file_trains_tower_and_text(saved):
    algo = sft_of(saved).build_algo()
    before = weights_of(algo)
    losses = [learned(algo.train())["total_loss"] for _ in range(6)]
    after = weights_of(algo)
    algo.stop()
    assert losses[-1] < losses[0] - 0.05
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    assert any("vision_model" in n for n in changed)
    assert any("text_model" in n for n in changed)


def test_replayed_pictures_join_updates_and_resume_to_the_bit(tmp_path):
    config = config_of().replay(episodes_per_iteration=4)
    algo = config.build_algo()
    algo.train()
    algo.save_to_path(tmp_path / "one")
    result = algo.train()
    assert result["replay"]["num_episodes_drawn"] == 4
    expected = weights_of(algo)
    algo.stop()
    again = GRPO.from_checkpoint(tmp_path / "one")
    again.train()
    resumed = weights_of(again)
    again.stop()
    assert all(torch.equal(expected[n], resumed[n]) for n in expected)


def test_perplexity_of_replayed_pictures_is_the_policys(tmp_path):
    config = config_of().replay(episodes_per_iteration=4, max_perplexity=1e9)
    algo = config.build_algo()
    algo.train()
    found = algo.train()["replay"]
    algo.stop()
    assert found["perplexity_kept_frac"] == 1.0
    assert np.isfinite(found["num_episodes_drawn"])
