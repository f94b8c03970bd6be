"""dataset-v0 on whole datasets: splits, slices, configurations, errors, the hub."""

import json
import os
import shutil
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest
from dataset_hub import DatasetHub
from test_dataset import numbered, sums, write

from rllib_llm.envs import check_env, make_env
from rllib_llm.envs.dataset import repositories
from rllib_llm.errors import ConfigError, MissingExtraError

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def own_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("RLLIB_LLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "arrow")
    datasets.disable_progress_bars()
    yield
    repositories._hub_file.cache_clear()


@pytest.fixture
def folder(tmp_path):
    """A dataset of two splits."""
    made = tmp_path / "sums"
    made.mkdir()
    write_parquet(made / "train-00000-of-00001.parquet", sums(100))
    write_parquet(made / "test.parquet", sums(20, start=500))
    return made


def write_parquet(path, rows):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def prompts(rows):
    return {row["prompt"] for row in rows}


def opened(path, **options):
    env = make_env("dataset-v0", {"path": str(path), **options})
    env.reset(seed=0)
    return env


def all_of(env, split):
    return set(numbered(env, split, range(env._dataset().size(split))))


def test_the_splits_of_a_folder(folder):
    env = opened(folder, test_split="test")
    assert all_of(env, "train") == prompts(sums(100))
    assert all_of(env, "test") == prompts(sums(20, start=500))
    report = check_env("dataset-v0", {"path": str(folder), "test_split": "test"})
    assert report.ok, str(report)
    share = opened(folder)
    assert all_of(share, "train") | all_of(share, "test") == prompts(sums(100))
    assert 0 < share._dataset().size("test") < 30


def test_slices_and_sums_of_splits(folder):
    env = opened(folder, split="train[:80%]", test_split="train[80%:]")
    assert all_of(env, "train") == prompts(sums(80))
    assert all_of(env, "test") == prompts(sums(20, start=80))
    assert len(opened(folder, split="train[10:15]+test")._dataset()) == 25
    assert len(opened(folder, split="all")._dataset()) == 120
    with pytest.raises(ConfigError, match="10 prompts are both"):
        opened(folder, split="train[:50%]", test_split="train[40:60]")


def test_configurations(folder, tmp_path):
    write_parquet(folder / "hard.parquet", sums(30, start=900))
    (folder / "README.md").write_text(
        "---\nconfigs:\n"
        "- config_name: easy\n  data_files: train-*.parquet\n"
        "- config_name: hard\n  data_files: hard.parquet\n---\n"
    )
    env = opened(folder, config_name="hard")
    assert all_of(env, "train") <= prompts(sums(30, start=900))
    with pytest.raises(ConfigError, match=r"several configurations\. .* easy, hard"):
        opened(folder)
    with pytest.raises(ConfigError, match=r"config_name='x': .* one of easy, hard"):
        opened(folder, config_name="x")


def test_a_changed_folder_is_read_anew(folder):
    assert len(opened(folder)._dataset()) == 100
    write(folder / "train-2.jsonl", sums(10))
    os.remove(folder / "train-00000-of-00001.parquet")
    os.remove(folder / "test.parquet")
    assert len(opened(folder)._dataset()) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, r"no split 'dev'. Set it to one of train, test, also"),
        ({"test_split": "validation"}, "no split 'validation'"),
        ({"split": "train[:x]"}, "Unrecognized instruction"),
        ({"config_name": "x"}, "config_name='x': .* one of default"),
        ({"test_split": "test", "test_path": "a.jsonl"}, "both name held-out tasks"),
        ({"test_path": "{folder}"}, "is a folder"),
        ({"prompt": "question"}, r"sums, line 1: no column 'question'"),
    ],
)
def test_bad_options_are_refused(folder, options, message):
    filled = {k: v.replace("{folder}", str(folder)) for k, v in options.items()}
    with pytest.raises(ConfigError, match=message):
        opened(folder, **filled)


def test_folders_without_a_readable_dataset_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="doesn't contain any data files"):
        opened(tmp_path / "empty")
    with pytest.raises(ConfigError, match="root of the file system"):
        opened("/")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "train.jsonl").write_text('{"prompt": \n')
    with pytest.raises(ConfigError, match="Correct the files of the dataset"):
        opened(tmp_path / "bad")
    (tmp_path / "odd").mkdir()
    for name in ("more", "extra"):
        write(tmp_path / "odd" / f"{name}.jsonl", sums(5))
    # The library knows neither name, so all files are the split train.
    assert len(opened(tmp_path / "odd", test_fraction=0.5)._dataset()) == 10


def test_options_of_datasets_need_one(tmp_path):
    file = write(tmp_path / "a.jsonl", sums(50))
    for option in ("split", "test_split", "config_name"):
        with pytest.raises(ConfigError, match=f"{option}='train' has no effect"):
            opened(file, **{option: "train"})


def test_a_dataset_of_the_hub_is_found_in_the_cache(folder, tmp_path, monkeypatch):
    """As on a machine without a network after the dataset was loaded once."""
    datasets.load_dataset(str(folder))
    (cached,) = (tmp_path / "arrow").glob("sums/default/*/*/")
    target = tmp_path / "arrow" / "me___sums" / cached.relative_to(cached.parents[2])
    shutil.copytree(cached, target)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(folder)
    env = opened("hf://datasets/me/sums", test_split="test")
    assert all_of(env, "test") == prompts(sums(20, start=500))
    with pytest.raises(ConfigError, match="may be of another revision than 'v1'"):
        opened("hf://datasets/me/sums@v1")
    with pytest.raises(ConfigError, match="cannot be read as a dataset"):
        opened("hf://datasets/me/other")
    (folder / "me" / "sums").mkdir(parents=True)
    repositories._hub_file.cache_clear()
    with pytest.raises(ConfigError, match="would read the folder 'me/sums'"):
        opened("hf://datasets/me/sums")


def test_without_the_extra_the_remedy_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"rllib-llm\[datasets\]"):
        opened(folder)


def test_the_check_reads_a_folder(folder, capsys):
    from rllib_llm.cli.implementation.check import check

    assert check(str(folder), [], None, None)
    assert "100 of 100 rows can be tasks" in capsys.readouterr().out
    assert check(str(folder), ["split=train[:50%]"], None, None)
    assert "50 of 50 rows" in capsys.readouterr().out
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "train.jsonl").write_text(json.dumps({"prompt": "?"}) + "\n")
    assert not check(str(folder), [], None, None)
    assert "line 1: no column 'answer'" in capsys.readouterr().out


HUB_FILES = {"train.jsonl": (50, 0), "test.jsonl": (20, 500)}


def lines(count, start):
    return "".join(json.dumps(row) + "\n" for row in sums(count, start)).encode()


READ = """
from rllib_llm.envs import make_env

for path in ("me/sums", "me/sums@main", "me/none", "me/sums@v9"):
    options = {"path": "hf://datasets/" + path, "test_split": "test"}
    env = make_env("dataset-v0", options)
    try:
        env.reset(seed=0)
        data = env._dataset()
        print(path, data.size("train"), data.size("test"), data.row("test", 0).prompt)
    except ValueError as error:
        print(path, error)
"""


def test_a_dataset_is_downloaded_from_a_hub(tmp_path):
    """In a process of its own, since the address is read when the library is."""
    hub = DatasetHub({name: lines(*what) for name, what in HUB_FILES.items()})
    try:
        done = subprocess.run(
            [sys.executable, "-c", READ],
            env={
                **os.environ,
                "HF_ENDPOINT": hub.url,
                "HF_HOME": str(tmp_path / "hf"),
                "HF_HUB_OFFLINE": "0",
                "RLLIB_LLM_CACHE": str(tmp_path / "cache"),
            },
            capture_output=True,
            text=True,
        )
    finally:
        hub.shutdown()
        hub.server_close()
    assert done.returncode == 0, done.stderr[-2000:]
    read, same, none, revision = done.stdout.splitlines()
    assert read == "me/sums 50 20 500 + 1?"
    assert same == "me/sums@main 50 20 500 + 1?"
    assert "Dataset 'me/none' doesn't exist" in none
    assert "Revision 'v9' doesn't exist" in revision
    downloads = [r for r in hub.requests if r.startswith("GET") and "/resolve/" in r]
    assert len(downloads) == 2
