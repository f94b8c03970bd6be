"""Texts that are left out of the prompts of data files."""

import json

import pytest

from rllib_llm import SFTConfig
from rllib_llm.envs.dataset.dataset_rows import RowError
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import (
    parse_labelled,
    parse_pair,
    parse_row,
)
from rllib_llm.offline.removed_texts import without_text
from rllib_llm.offline.row_file import RowFile

HINT = r"\n\(The answer is .*\)"
ASKED = "What is 1 + 1?\n(The answer is 2.)"
REPLY = "1 + 1 = 2.\n(The answer is 2.)"  # matches HINT, too


def line(**row):
    return json.dumps(row).encode()


def write(path, *rows):
    path.write_bytes(b"\n".join(rows) + b"\n")
    return str(path)


def episode(prompt, **turn):
    turn = {"observation": prompt, "completion": REPLY, "reward": 1.0, **turn}
    return line(agents=[{"turns": [turn], "tokenizer": "x"}])


def test_hints_leave_prompts_and_stay_in_replies():
    row, changed = without_text(parse_row(line(prompt=ASKED, completion=REPLY)), HINT)
    assert changed
    assert [m["content"] for m in row.messages] == ["What is 1 + 1?", REPLY]
    same = parse_row(line(prompt="What is 1 + 1?", completion=REPLY))
    assert without_text(same, HINT) == (same, False) and row == same


def test_ids_of_the_text_with_the_hint_are_forgotten():
    ids = {"prompt_ids": [1, 2], "action_ids": [3], "action_logps": [-0.5]}
    row, changed = without_text(parse_row(episode(ASKED, **ids)), HINT)
    (agent,), bare = row.agents, parse_row(episode("What is 1 + 1?"))
    assert changed and not agent.has_ids and agent.tokenizer is None
    assert agent.turns == bare.agents[0].turns
    assert row.episode_return == 1.0
    # Without a hint nothing is rendered anew.
    other = parse_row(episode("What is 1 + 1?", **ids))
    kept, changed = without_text(other, HINT)
    assert not changed and kept == other and kept.agents[0].has_ids


def test_pairs_and_labelled_rows():
    pair = parse_pair(line(prompt=ASKED, chosen="2", rejected="3"))
    edited, changed = without_text(pair, HINT)
    assert changed
    for side in (edited.chosen, edited.rejected):
        assert side.messages[0]["content"] == "What is 1 + 1?"
    labelled = parse_labelled(line(prompt=ASKED, completion="2", label=True))
    edited, changed = without_text(labelled, HINT)
    assert changed and edited.desirable
    assert edited.conversation.messages[0]["content"] == "What is 1 + 1?"


def test_rows_of_a_file_are_read_without_it(tmp_path):
    rows = (
        episode(ASKED),
        line(prompt=ASKED, completion="2"),
        line(prompt="b", completion="c"),
    )
    path = write(tmp_path / "x.jsonl", *rows)
    read = RowFile([path], parse_row, None, HINT)
    assert read.has_removed and not RowFile([path], parse_row).has_removed
    texts = [read[0].agents[0].turns[0].messages, read[1].messages, read[2].messages]
    assert [m[0]["content"] for m in texts] == ["What is 1 + 1?"] * 2 + ["b"]


def test_a_message_must_remain(tmp_path):
    row = parse_row(line(prompt="(The answer is 2.)", completion="2"))
    with pytest.raises(RowError, match="leaves nothing of the user's message"):
        without_text(row, r"\(The answer.*")
    path = write(tmp_path / "x.jsonl", line(prompt="hint", completion="2"))
    with pytest.raises(ConfigError, match="x.jsonl, line 1: data.remove='hint'"):
        RowFile([path], parse_row, None, "hint")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "is not a regular expression"),
        (".*", "matches an empty text"),
        ("never there", "matches no prompt"),
    ],
)
def test_patterns_without_sense_are_refused(tmp_path, pattern, message):
    path = write(tmp_path / "x.jsonl", line(prompt=ASKED, completion="2"))
    config = SFTConfig().data(files=[path], remove=pattern)
    with pytest.raises(ConfigError, match=message):
        config.stored_rows(parse_row)


def test_one_of_several_files_may_lack_it(tmp_path):
    with_hint = write(tmp_path / "a.jsonl", line(prompt=ASKED, completion="2"))
    without = write(tmp_path / "b.jsonl", line(prompt="b", completion="c"))
    config = SFTConfig().data(
        files=[with_hint, without], shares=[0.5, 0.5], remove=HINT
    )
    rows = config.stored_rows(parse_row).in_passes(0, 0, 2)
    assert [r.messages[0]["content"] for r in rows] == ["What is 1 + 1?", "b"]


def test_an_earlier_stage_may_have_saved_no_hint(tmp_path, caplog):
    write(tmp_path / "x.jsonl", line(prompt="b", completion="c"))
    config = SFTConfig().data(files=["stage:write"], remove=HINT)
    config.earlier_stages = {"write": str(tmp_path)}
    with caplog.at_level("WARNING", "rllib_llm"):
        (row,) = config.stored_rows(parse_row)
    assert row.messages[0]["content"] == "b" and "matches no prompt" in caplog.text


def test_it_needs_files():
    config = SFTConfig().data(remove=HINT)
    with pytest.raises(ConfigError, match=r"data.remove=.* would have no effect"):
        config.stored_rows(parse_row)
