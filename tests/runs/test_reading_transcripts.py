"""Reading of transcripts of this and older versions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from rllib_llm.errors import ConfigError
from rllib_llm.runs import latest, read_transcripts, token_column
from rllib_llm.transcripts.reader import schema

ROOT = Path(__file__).parents[2]
VERSION_1 = {
    "version": 1,
    "iteration": 3,
    "split": "train",
    "selected_as": "best",
    "group_id": 5,
    "rollout": 0,
    "seed": 7,
    "return": 1.0,
    "success": True,
    "stop_reason": "terminated",
    "stop_policy": "train",
    "advantage": None,
    "weights": 2,
    "num_turns": 1,
    "num_tokens": 3,
    "agents": [],
    "turns": [
        {
            "turn": 0,
            "agent": None,
            "policy": None,
            "observation": "hello",
            "completion": "hi",
            "reward": 1.0,
            "tokens": 3,
            "logp_mean": -0.5,
            "finish": "stop",
            "invalid": False,
        }
    ],
    "final_observation": "bye",
}


def write(folder, *records):
    path = folder / "transcripts.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def test_version_1_reads_as_version_2(tmp_path):
    (record,) = read_transcripts(write(tmp_path, VERSION_1))
    jsonschema.validate(record, schema())
    assert record["return"] == 1.0 and record["turns"][0]["completion"] == "hi"
    assert record["episode"] is None and record["trained"] is None
    assert token_column(record["turns"][0], "logp") == [None] * 3


@pytest.mark.parametrize("version", [3, None, "2"])
def test_other_versions_are_refused(tmp_path, version):
    path = write(tmp_path, {**VERSION_1, "version": version})
    with pytest.raises(ConfigError, match="this package reads versions 1 to 2"):
        list(read_transcripts(path))


def test_the_page_explains_every_field_of_the_schema():
    text = (ROOT / "docs" / "transcripts.md").read_text(encoding="utf-8")
    sections = {part.split("\n", 1)[0]: part for part in text.split("\n## ")}
    parts = schema()["$defs"]
    for title, properties in (
        ("A record", schema()["properties"]),
        ("A turn", parts["turn"]["properties"]),
        ("Columns of tokens", parts["columns"]["properties"]),
    ):
        rows = re.findall(r"^\| (`.*?) \|", sections[title], re.MULTILINE)
        documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
        assert documented == set(properties), title


def test_latest_keeps_the_last_attempt_of_an_iteration():
    iterations = [1, 1, 2, 3, 2, 3, 3, 4]
    records = [{"iteration": it, "n": n} for n, it in enumerate(iterations)]
    assert [r["n"] for r in latest(records)] == [0, 1, 4, 5, 6, 7]


def test_columns_of_equal_numbers_are_written_once():
    turn = {"tokens": 2, "columns": {"text": ["a", "b"], "logp": [-1, -2], "ratio": 1}}
    assert token_column(turn, "logp") == [-1, -2]
    assert token_column(turn, "ratio") == [1, 1]
    assert token_column(turn, "value") == [None, None]
