"""Rows that Ray Data reads: those of the files, in their order, in RLlib's words."""

from __future__ import annotations

import json

import pyarrow
import pyarrow.parquet
import pytest
import ray.data

from rllib_llm import LLMPPOConfig, PrefConfig, SFTConfig
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import parse_row

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_session")]


def rows_of(numbers):
    return [
        {
            "messages": [
                {"role": "user", "content": f"task {number}"},
                {"role": "assistant", "content": "a"},
                {"role": "user", "content": "go on"},
                # Only some messages have this key.
                {"role": "assistant", "content": "b", "train": number % 2 == 0}
                if number < 5
                else {"role": "assistant", "content": "b"},
            ]
        }
        for number in numbers
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three Parquet files of 4 rows, with a suffix that a path would not be read by."""
    path = tmp_path_factory.mktemp("rows")
    for part in range(3):
        table = pyarrow.Table.from_pylist(rows_of(range(4 * part, 4 * part + 4)))
        pyarrow.parquet.write_table(table, path / f"part{part}.pq")
    return path


def tasks(rows):
    return [row.messages[0]["content"] for row in (rows[i] for i in range(len(rows)))]


def by_ray(config_class, folder, **more):
    return config_class().offline_data(
        input_=[str(folder)], input_read_method="read_parquet", **more
    )


def test_rllibs_words_read_rows_in_the_order_of_the_source(folder):
    kept = ray.data.DataContext.get_current().execution_options.preserve_order
    config = by_ray(SFTConfig, folder, input_read_method_kwargs=READ)
    rows = config.stored_rows(parse_row)
    assert tasks(rows) == [f"task {number}" for number in range(12)]
    assert [row.trained for row in map(rows.__getitem__, (0, 1, 9))] == [
        (True, True),
        (True, False),
        (True, True),
    ]
    # Read once per process: a resumed run in it, or a sweep, finds the same file.
    assert config.copy().stored_rows(parse_row)._reader._files == rows._reader._files
    assert ray.data.DataContext.get_current().execution_options.preserve_order == kept


READ = {"file_extensions": ["pq"]}


def test_the_settings_of_a_recipe_are_the_same(folder):
    data = {"read_method": "read_parquet", "read_method_kwargs": READ}
    config = SFTConfig().data(files=[str(folder)], **data)
    same = by_ray(SFTConfig, folder, input_read_method_kwargs=READ)
    assert config.to_dict()["data_files"] == same.to_dict()["data_files"]
    assert config.data_read_method_kwargs == same.data_read_method_kwargs == READ
    assert len(config.stored_rows(parse_row)) == 12


def test_shares_mix_sources(folder):
    entries = [str(folder / f"part{part}.pq") for part in (0, 1)]
    data = {"read_method": "read_parquet", "read_method_kwargs": READ}
    config = SFTConfig().data(files=entries, shares=[0.25, 0.75], **data)
    seen = [
        row.messages[0]["content"]
        for row in config.stored_rows(parse_row).in_passes(0, 0, 8)
    ]
    first = {f"task {number}" for number in range(4)}
    assert sum(task in first for task in seen) == 2


@pytest.mark.parametrize(
    "data, message",
    [
        ({"files": "x", "read_method": "read_parket"}, "Did you mean 'read_parquet'"),
        ({"files": "x", "read_method": "range"}, "no reader of ray.data"),
        (
            {"files": "/no/such/rows", "read_method": "read_parquet"},
            r"data.files='/no/such/rows': ray.data.read_parquet.* failed: .*Correct",
        ),
        (
            {
                "files": "/no",
                "read_method": "read_json",
                "read_method_kwargs": {"a": 1},
            },
            r"read_json\('/no', a=\.\.\.\) failed",
        ),
        ({"files": "stage:rl", "read_method": "read_json"}, "does not read 'stage:rl'"),
        ({"files": "x", "read_method_kwargs": {"a": 1}}, "read_method is None"),
        ({"read_method": "read_json"}, "data.files is None"),
    ],
)
def test_what_cannot_be_read(data, message):
    with pytest.raises(ConfigError, match=message):
        SFTConfig().data(**data).stored_rows(parse_row)


def test_bad_rows_are_named_before_anything_is_prepared(tmp_path):
    path = tmp_path / "rows.json"
    rows = [*rows_of(range(2)), {"text": "a"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = SFTConfig().environment("guess_number-v0")
    config.offline_data(input_=str(path), input_read_method="read_json")
    with pytest.raises(ConfigError, match="line 3"):
        config.validate()


def test_other_settings_of_offline_data_are_refused(folder):
    with pytest.raises(ConfigError, match=r"offline_data\(materialize_data\)"):
        by_ray(PrefConfig, folder, materialize_data=True)
    config = LLMPPOConfig().environment("guess_number-v0")
    config.offline_data(input_=[str(folder)])
    with pytest.raises(ConfigError, match="offline_data.input_ has no effect"):
        config.validate()
    with pytest.raises(ConfigError, match="offline_data.output has no effect"):
        changed = SFTConfig().environment("guess_number-v0")
        changed.output = "/tmp/x"
        changed.validate()
