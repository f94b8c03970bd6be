"""Tune loggers: transcript files and TensorBoard."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pyarrow.fs
import pytest
from callback_helpers import make_episode, make_result
from ray import tune
from ray.tune.logger import JsonLoggerCallback, TBXLoggerCallback

from rllib_llm import LLMPPO
from rllib_llm.callbacks import run_callbacks
from rllib_llm.callbacks.histograms import log_histograms
from rllib_llm.callbacks.tune_logging import (
    LiveJsonLogger,
    TranscriptLogger,
    TranscriptTensorBoard,
    live_folder,
    to_markdown,
)
from rllib_llm.runs import read_transcripts
from rllib_llm.transcripts.collector import read_result, transcript_record


@pytest.fixture
def record():
    episode = make_episode([0.0] * 8, seed=5, text="a ``` b \u00e9")
    return transcript_record(
        episode, split="train", selected_as="best", max_chars=100, max_turns=4
    )


@pytest.fixture
def trial(tmp_path):
    class Trial(SimpleNamespace):
        __hash__ = object.__hash__

    return Trial(
        local_path=str(tmp_path),
        init_local_path=lambda: None,
        storage=SimpleNamespace(
            storage_filesystem=pyarrow.fs.LocalFileSystem(),
            trial_fs_path=str(tmp_path),
        ),
        checkpoint=None,
        evaluated_params={},
    )


def texts_in(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return events, [t for t in events.Tags()["tensors"] if "transcripts" in t]


def test_tensorboard_writes_into_the_run_folder(trial, tmp_path):
    trial.local_path = str(tmp_path / "temporary")
    trial.storage.trial_fs_path = str(tmp_path / "run" / "trial")
    logger = TranscriptTensorBoard()
    logger.log_trial_start(trial)
    logger.log_trial_result(1, trial, make_result(1))
    deadline = time.monotonic() + 30  # while the run goes on; a thread writes
    scalars = []
    while "ray/tune/time_this_iter_s" not in scalars and time.monotonic() < deadline:
        events, _ = texts_in(tmp_path / "run" / "trial")
        scalars = events.Tags()["scalars"]
    assert "ray/tune/time_this_iter_s" in scalars
    assert not (tmp_path / "temporary").exists()
    logger.log_trial_end(trial)
    # Elsewhere Tune copies what lies in its temporary folder.
    trial.storage.storage_filesystem = pyarrow.fs.SubTreeFileSystem(
        str(tmp_path), pyarrow.fs.LocalFileSystem()
    )
    assert live_folder(trial) == trial.local_path


def test_logger_writes_transcripts_and_removes_them(record, trial, tmp_path):
    logger = TranscriptLogger()
    logger.log_trial_start(trial)
    for iteration in (1, 2):
        record["iteration"] = iteration
        result = make_result(iteration, transcripts=[record])
        logger.log_trial_result(iteration, trial, result)
        assert "transcripts" not in result["env_runners"]
    logger.log_trial_result(3, trial, make_result(3))
    path = tmp_path / "transcripts.jsonl"
    assert [r["iteration"] for r in read_transcripts(path)] == [1, 2]
    assert list(read_transcripts(tmp_path))[1] == record
    with path.open("a") as file:
        file.write('{"cut off by a cra')
    assert len(list(read_transcripts(path))) == 2
    logger.log_trial_result(4, trial, make_result(4, transcripts=[record]))
    assert len(list(read_transcripts(path))) == 3


def test_a_resumed_trial_appends_and_one_without_checkpoint_begins_anew(
    record, trial, tmp_path
):
    trial.local_path = str(tmp_path / "temporary")
    (tmp_path / "temporary").mkdir()
    trial.storage.trial_fs_path = str(tmp_path / "run" / "trial")
    trial.config = {"lr": 1e-3}
    for checkpoint, expected in ((None, [1]), ("checkpoint", [1, 1]), (None, [1])):
        trial.checkpoint = checkpoint
        transcripts, results = TranscriptLogger(), LiveJsonLogger()
        for logger in (transcripts, results):
            logger.log_trial_start(trial)
        result = make_result(1, transcripts=[{**record, "iteration": 1}])
        for logger in (transcripts, results):
            logger.log_trial_result(1, trial, result)
        # At once in the run folder, before the trial ends.
        rows = (tmp_path / "run" / "trial" / "result.json").read_text().splitlines()
        assert [json.loads(row)["training_iteration"] for row in rows] == expected
        found = read_transcripts(tmp_path / "run" / "trial")
        assert [r["iteration"] for r in found] == expected
    assert not list((tmp_path / "temporary").glob("*.jsonl"))


def test_rows_of_a_remote_storage_go_to_the_folder_that_tune_copies(trial, tmp_path):
    trial.storage.storage_filesystem = pyarrow.fs._MockFileSystem()
    trial.storage.trial_fs_path = str(tmp_path / "bucket")
    trial.config = {"lr": 1e-3}
    logger = LiveJsonLogger()
    logger._restore_from_remote = lambda name, trial: None
    logger.log_trial_start(trial)
    logger.log_trial_result(1, trial, make_result(1))
    assert live_folder(trial) == str(tmp_path)
    (row,) = (tmp_path / "result.json").read_text().splitlines()
    assert json.loads(row)["training_iteration"] == 1
    assert not (tmp_path / "bucket").exists()


def test_one_json_logger_writes_rows_without_transcripts(config):
    callbacks = run_callbacks("r", config)
    kinds = [type(callback) for callback in callbacks]
    # With a JSON logger of its own, Tune adds none.
    assert [k for k in kinds if issubclass(k, JsonLoggerCallback)] == [LiveJsonLogger]
    assert kinds.index(TranscriptLogger) < kinds.index(LiveJsonLogger)


def test_missing_transcripts_are_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no transcripts.jsonl"):
        list(read_transcripts(tmp_path))


def test_tensorboard_gets_scalars_and_text(record, trial, tmp_path):
    board = TranscriptTensorBoard()
    result = make_result(1, transcripts=[record, record], turns_mean=4.0)
    board.log_trial_start(trial)
    board.log_trial_result(1, trial, result)
    board.log_trial_end(trial)
    assert len(read_result(result)) == 2  # left for the next logger
    events, texts = texts_in(tmp_path)
    assert texts == ["transcripts/train/best/text_summary"]
    scalars = events.Tags()["scalars"]
    assert "ray/tune/env_runners/turns_mean" in scalars
    assert not any("transcripts" in tag for tag in scalars)
    assert not events.Tags()["histograms"]


def test_markdown_keeps_fences_and_gaps(record):
    text = to_markdown(record)
    assert "````\na ``` b" in text
    assert "*4 turns omitted*" in text
    assert "**return 0**" in text and "seed 5" in text
    assert "ended by length" in text


@pytest.mark.slow
@pytest.mark.ray
def test_a_tune_run_keeps_transcripts_beside_its_results(
    ray_session, config, tmp_path, capsys
):
    config.evaluation(evaluation_interval=2, evaluation_duration=8)
    config.rollouts(episodes_per_iteration=4)
    callbacks = run_callbacks("my_recipe", config, stop={"training_iteration": 2})
    results = tune.Tuner(
        LLMPPO,
        param_space=config,
        run_config=tune.RunConfig(
            name="run",
            storage_path=str(tmp_path),
            verbose=0,
            stop={"training_iteration": 2},
            callbacks=callbacks,
        ),
    ).fit()
    folder = results[0].path
    records = list(read_transcripts(tmp_path / "run"))
    found = [(r["iteration"], r["split"]) for r in records]
    assert found == [(1, "train")] * 4 + [(2, "train")] * 4 + [(2, "evaluation")] * 4
    with open(f"{folder}/result.json") as file:
        for line in file:
            result = json.loads(line)
            assert "transcripts" not in result["env_runners"]
            assert "transcripts" not in result.get("evaluation", {})
    assert len(texts_in(folder)[1]) == 6
    out = capsys.readouterr().out
    assert "my_recipe" in out and "eval success" in out and "--resume" in out


def test_tensorboard_gets_histograms_and_hyperparameters(trial, tmp_path):
    metrics = SimpleNamespace(logged=[])
    metrics.log_value = lambda key, value, reduce: metrics.logged.append(value)
    log_histograms(metrics, {"returns": [0.0, 0.5, 0.5, 1.0]})
    logger = TranscriptTensorBoard({"training.lr": 1e-3, "env": "frozen_lake-v0"})
    logger.log_trial_start(trial)
    result = make_result(1, histograms=metrics.logged, episode_return_mean=0.5)
    logger.log_trial_result(1, trial, result)
    assert "histograms" in result["env_runners"]  # others have yet to read it
    logger.log_trial_end(trial)
    events, _ = texts_in(tmp_path)
    (histogram,) = events.Histograms("env_runners/returns")
    assert histogram.step == 1 and histogram.histogram_value.num == 4
    assert sum(histogram.histogram_value.bucket) == 4
    data = events.summary_metadata["_hparams_/session_start_info"].plugin_data
    assert b"training.lr" in data.content and b"frozen_lake-v0" in data.content
    experiment = events.summary_metadata["_hparams_/experiment"].plugin_data
    assert b"ray/tune/env_runners/episode_return_mean" in experiment.content
    assert "ray/tune/env_runners/episode_return_mean" in events.Tags()["scalars"]


def test_a_run_can_do_without_tensorboard(trial, tmp_path, config):
    (_, logger, *_) = run_callbacks("r", config, tensorboard=False)
    assert isinstance(logger, TBXLoggerCallback)  # else Tune adds its own
    logger.log_trial_start(trial)
    logger.log_trial_result(1, trial, make_result(1))
    logger.log_trial_end(trial)
    assert not list(tmp_path.iterdir())
