"""SFT on conversations in data files."""

from __future__ import annotations

import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from learner_helpers import make_learner
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from test_sft import sft

from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.envs.dataset.dataset_rows import RowError
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import parse_conversation
from rllib_llm.offline.demonstrations import demonstrate
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.offline.row_file import RowFile, open_rows
from rllib_llm.offline.sft_before_rl import demonstration_episode
from rllib_llm.offline.stored_episodes import conversation_episode


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def chat(*contents):
    roles = ("user", "assistant")
    return [say(roles[i % 2], text) for i, text in enumerate(contents)]


def line(**row):
    return json.dumps(row).encode()


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


# Rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [
        {"messages": chat("Guess.", "4")},
        {"prompt": "Guess.", "completion": "4"},
        {
            "prompt": [say("user", "Guess.")],
            "completion": [say("assistant", "4")],
        },
    ],
)
def test_forms_of_one_conversation(row):
    stored = parse_conversation(line(**row))
    assert stored.messages == chat("Guess.", "4")
    assert stored.trained == (True,)


def test_replies_of_a_prompt_are_context():
    prompt = chat("Guess.", "4", "higher")
    stored = parse_conversation(line(prompt=prompt, completion="6"))
    assert stored.trained == (False, True)


@pytest.mark.parametrize(
    "row, message",
    [
        (b"{", "not JSON"),
        (b"[1]", "must be a JSON object"),
        (line(text="a"), "columns 'text': a row needs 'messages', or 'prompt'"),
        (line(messages=[]), "must be a list of messages"),
        (line(messages=chat("a")), "last one has the role 'user'"),
        (line(messages=[say("robot", "a")]), "must be an object with 'role'"),
        (line(messages=[say("user", " ")]), "content=' ' must be a text"),
        (line(messages=[say("user", ["a"])]), "must have the type .text."),
        (
            line(messages=[say("user", "a"), say("assistant", "b", tool_calls=[{}])]),
            "tool_calls is not supported",
        ),
        (
            line(messages=[*chat("a", "b"), say("assistant", "c")]),
            r"messages\[2\]: a reply must follow",
        ),
        (line(messages=[say("assistant", "c")]), r"messages\[0\]: a reply must follow"),
        (
            line(messages=[*chat("a", "b", "c"), say("system", "d")]),
            "only the first one",
        ),
        (
            line(messages=[say("user", "a"), say("assistant", "b", train=False)]),
            "nothing is imitated",
        ),
        (
            line(messages=[say("user", "a"), say("assistant", "b", train=1)]),
            "train=1 must be true or false",
        ),
        (line(messages=chat("a", "b"), tools="x"), "tools='x' must be a list"),
        (line(prompt="a", completion=3), "completion=3 must be a text or a list"),
    ],
)
def test_what_is_wrong_with_a_row(row, message):
    with pytest.raises(RowError, match=message):
        parse_conversation(row)


def test_all_rows_are_checked_before_anything_is_trained(tmp_path):
    good = {"messages": chat("a", "b")}
    path = write(tmp_path / "a.jsonl", [good, {"x": 1}, good, {"messages": []}])
    with pytest.raises(ConfigError, match=r"2 of 4 rows") as error:
        sft().data(files=path).validate()
    assert "a.jsonl, line 2" in str(error.value)
    assert "a.jsonl, line 4" in str(error.value)


@pytest.mark.parametrize(
    "name, message",
    [("none.jsonl", "does not exist"), ("a.txt", "unknown format")],
)
def test_files_that_cannot_be_read(tmp_path, name, message):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ConfigError, match=message):
        sft().data(files=str(tmp_path / name)).validate()


def test_a_line_of_ten_gigabytes_is_not_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as opened:
        opened.truncate(10 * 2**30)  # takes no space on the disk
    with pytest.raises(ConfigError, match="line 1: longer than 16,777,216 bytes"):
        RowFile([str(path)], parse_conversation)


def test_a_parquet_file_without_its_end(tmp_path):
    path = tmp_path / "rows.parquet"
    table = pyarrow.table({"prompt": ["Guess."] * 50, "completion": ["4"] * 50})
    pyarrow.parquet.write_table(table, path)
    assert len(RowFile([str(path)], parse_conversation)) == 50
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ConfigError, match="cannot be read as Parquet.*again"):
        RowFile([str(path)], parse_conversation)


def test_a_file_without_rows(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="no rows"):
        sft().data(files=str(tmp_path / "a.jsonl")).validate()


def test_the_experts_mistakes_have_no_effect(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"messages": chat("a", "b")}])
    with pytest.raises(ConfigError, match=r"mistake_rate=0.5.*no effect"):
        sft(mistake_rate=0.5).data(files=path).validate()


def test_passes_have_every_row_once_in_other_orders(tmp_path):
    rows = [{"messages": chat(str(i), "b")} for i in range(7)]
    file = RowFile([write(tmp_path / "a.jsonl", rows)], parse_conversation)
    seen = [c.messages[0]["content"] for c in file.in_passes(3, 0, 14)]
    assert sorted(seen[:7]) == sorted(seen[7:]) == [str(i) for i in range(7)]
    assert seen[:7] != seen[7:]
    # From anywhere: a restored run continues.
    assert [c.messages[0]["content"] for c in file.in_passes(3, 5, 6)] == seen[5:11]
    other = [c.messages[0]["content"] for c in file.in_passes(4, 0, 14)]
    assert other != seen


def test_a_file_that_is_cut_while_in_use(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"messages": chat("a", "b" * 50)}])
    file = open_rows(path, parse_conversation)
    with open(path, "r+") as opened:
        opened.truncate(20)
    with pytest.raises(ConfigError, match="has changed while it is in use"):
        file[0]


# Tokens -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ready():
    config = sft()
    config.validate()
    config.resolved_model = prepare_language_model(config)
    return config


def test_a_stored_demonstration_has_the_tokens_of_the_demonstration(ready):
    env = ready.make_text_env()
    renderer = ready.chat_renderer()
    demo = demonstrate(env, seed=3, mistake_rate=0.5)
    live = demonstration_episode(demo, renderer, ready.system_prompt)
    stored = parse_conversation(line(messages=episode_data(live).messages))
    read = conversation_episode(stored, renderer)
    assert episode_data(read).ids == episode_data(live).ids
    assert episode_data(read).num_turns == len(demo.completions) > 1


def test_only_trained_replies_are_in_the_loss(ready):
    messages = [
        say("system", "Play."),
        say("user", "a"),
        say("assistant", "1", train=False),
        say("tool", "higher"),
        say("assistant", "3"),
    ]
    stored = parse_conversation(line(messages=messages))
    episode = conversation_episode(stored, ready.chat_renderer())
    learner = make_learner(ready)
    batch = learner._make_batch_if_necessary(
        training_data=LLMTrainingData(episodes=[episode])
    ).policy_batches[DEFAULT_MODULE_ID]
    mask = np.asarray(batch[Columns.LOSS_MASK])
    turns = np.asarray(batch[columns.TURN_IDS])
    assert mask.sum() == (turns == 1).sum() > 0
    assert not mask[turns == 0].any()


def test_the_system_prompt_is_that_of_conversations_without_one(ready):
    renderer = ready.chat_renderer()
    bare = parse_conversation(line(messages=chat("a", "b")))
    own = parse_conversation(line(messages=[say("system", "Own."), *chat("a", "b")]))
    with_prompt = conversation_episode(bare, renderer, "Given.")
    assert episode_data(with_prompt).messages[0] == say("system", "Given.")
    kept = conversation_episode(own, renderer, "Given.")
    assert episode_data(kept).messages[0] == say("system", "Own.")


def test_tools_that_the_template_cannot_list(ready):
    tools = [{"type": "function", "function": {"name": "f"}}]
    stored = parse_conversation(line(messages=chat("a", "b"), tools=tools))
    with pytest.raises(ConfigError, match="cannot list"):
        conversation_episode(stored, ready.chat_renderer())


# Runs ---------------------------------------------------------------------------------


@pytest.mark.ray
def test_training_on_a_file(ray_session, tmp_path):
    env = sft().make_text_env()
    rows = []
    for seed in range(24):
        demo = demonstrate(env, seed=seed, mistake_rate=0.0)
        texts = [t for pair in zip(demo.observations, demo.completions) for t in pair]
        rows.append({"messages": chat(*texts)})
    rows.append({"messages": chat("a " * 4000, "b")})
    config = sft().data(files=write(tmp_path / "demos.jsonl", rows))
    config.rollouts(episodes_per_iteration=25)
    algo = config.build_algo()
    results = [algo.train() for _ in range(3)]
    nll = [r["learners"][DEFAULT_MODULE_ID]["nll"] for r in results]
    assert nll[0] > nll[1] > nll[2] > 0
    assert [r["num_conversations_too_long"] for r in results] == [1, 1, 1]
    path = algo.save_to_path(tmp_path / "checkpoint")
    expected = algo.train()["learners"][DEFAULT_MODULE_ID]["nll"]
    again = type(algo).from_checkpoint(path)
    assert again.train()["learners"][DEFAULT_MODULE_ID]["nll"] == expected
    again.stop()
    algo.stop()


def test_the_command_lists_every_bad_line(tmp_path):
    from typer.testing import CliRunner

    from rllib_llm.cli.main import app

    good = {"messages": chat("a", "b")}
    path = write(tmp_path / "a.jsonl", [good, *[{"messages": []}] * 7, good])
    shown = CliRunner().invoke(app, ["check", path])
    assert shown.exit_code == 1
    assert "2 of 9 rows can be trained on" in shown.output
    assert all(f"a.jsonl, line {n}" in shown.output for n in range(2, 9))
    shown = CliRunner().invoke(app, ["check", write(tmp_path / "b.jsonl", [good])])
    assert shown.exit_code == 0
    pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
    pairs = write(tmp_path / "c.jsonl", [pair, {**pair, "rejected": "b"}])
    shown = CliRunner().invoke(app, ["check", pairs])
    assert shown.exit_code == 1
    assert "c.jsonl, line 2: chosen and rejected are equal" in shown.output


def test_a_file_of_a_package():
    name = "rllib_llm:envs/data/frozen_lake_conversations.jsonl"
    assert len(open_rows(name, parse_conversation)) == 400
    with pytest.raises(ConfigError, match="'no_such_package' cannot be imported"):
        open_rows("no_such_package:a.jsonl", parse_conversation)
