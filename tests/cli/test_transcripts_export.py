"""The command that writes a run's saved episodes into one file."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from rllib_llm.cli.main import app
from rllib_llm.offline.conversation_files import (
    parse_conversation,
    parse_pair,
    parse_row,
)
from rllib_llm.offline.row_file import RowFile


def turn(observation, completion, reward=0.0, **more):
    news = [{"role": "user", "content": observation}]
    return {"messages": news, "completion": completion, "reward": reward, **more}


def episode(name, seed, *turns, success=False):
    task = {"env": "e", "seed": seed, "options": {"split": "train"}}
    ids = {"prompt_ids": [1, 2], "action_ids": [3], "action_logps": [-0.5]}
    shown = [{**each, **ids} for each in turns]
    agent = {"tokenizer": "ab", "turns": shown}
    return {"id": name, "task": task, "success": success, "agents": [agent]}


@pytest.fixture
def run(tmp_path):
    rows = [
        episode("a", 1, turn("Guess.", "4"), turn("up", "6", 1.0), success=True),
        episode("b", 1, turn("Guess.", "4"), turn("up", "3")),
        episode("c", 2, turn("Go.", "2", train=False), turn("up", "9", 0.5)),
    ]
    folder = tmp_path / "run" / "1_rl" / "episodes"
    folder.mkdir(parents=True)
    (folder / "x-000001.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    )
    return tmp_path / "run"


def export(*arguments):
    return CliRunner().invoke(app, ["transcripts", "export", *map(str, arguments)])


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", ["all.jsonl", "all.parquet"])
def test_episodes_are_those_that_were_saved(run, tmp_path, name):
    shown = export(run, tmp_path / name)
    assert shown.exit_code == 0, shown.output
    assert "3 rows (episodes)" in shown.output
    source = RowFile([str(run / "1_rl" / "episodes" / "x-000001.jsonl")], parse_row)
    written = RowFile([str(tmp_path / name)], parse_row)
    for number in range(3):
        ours, theirs = source[number], written[number]
        assert (ours.id, ours.agents) == (theirs.id, theirs.agents)
        assert ours.episode_return == theirs.episode_return


def test_conversations_in_chat_format(run, tmp_path):
    assert export(run, tmp_path / "m.jsonl", "--as", "messages").exit_code == 0
    rows = lines(tmp_path / "m.jsonl")
    contents = [[m["content"] for m in row["messages"]] for row in rows]
    assert contents[0] == ["Guess.", "4", "up", "6"]
    stored = [parse_conversation(json.dumps(row).encode()) for row in rows]
    assert [s.trained for s in stored] == [(True, True), (True, True), (False, True)]


def test_preferences_begin_where_the_replies_differ(run, tmp_path):
    assert export(run, tmp_path / "p.jsonl", "--as", "preferences").exit_code == 0
    (row,) = lines(tmp_path / "p.jsonl")
    assert [m["content"] for m in row["prompt"]] == ["Guess.", "4", "up"]
    assert row["chosen"] == [{"role": "assistant", "content": "6"}]
    assert row["rejected"] == [{"role": "assistant", "content": "3"}]
    pair = parse_pair(json.dumps(row).encode())
    assert pair.chosen.trained == (False, True)


def test_which_episodes(run, tmp_path):
    assert export(run, tmp_path / "s.jsonl", "--solved").exit_code == 0
    assert [row["id"] for row in lines(tmp_path / "s.jsonl")] == ["a"]
    assert export(run, tmp_path / "r.jsonl", "--min-return", "0.5").exit_code == 0
    assert [row["id"] for row in lines(tmp_path / "r.jsonl")] == ["a", "c"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["x.txt"], "must end with .jsonl or .parquet"),
        (["x.jsonl", "--as", "chat"], "must be one of episodes"),
        (["x.jsonl", "--min-return", "5"], "None of the saved episodes"),
    ],
)
def test_what_cannot_be_written(run, tmp_path, arguments, message):
    name, *rest = arguments
    shown = export(run, tmp_path / name, *rest)
    assert message in str(shown.exception)
    assert not (tmp_path / name).exists()


def test_a_run_without_saved_episodes(tmp_path):
    (tmp_path / "run").mkdir()
    shown = export(tmp_path / "run", tmp_path / "x.jsonl")
    assert "has no saved episodes. Train with rollouts.save_episodes" in str(
        shown.exception
    )
