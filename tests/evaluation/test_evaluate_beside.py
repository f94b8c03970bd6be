"""evaluate RUN --api: both play the same tasks, and one table compares them."""

from __future__ import annotations

import json

import pytest
from chat_server import ChatServer, bisect

pytest.importorskip("openai")

from rllib_llm import GRPOConfig
from rllib_llm.cli.main import main
from rllib_llm.evaluation import api_models

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, ray_session):
    """A checkpoint of an untrained policy; it never solves a task."""
    config = (
        GRPOConfig()
        .environment("guess_number-v0", env_config={"upper": 15})
        .language_model(tiny=TINY)
        .generation(max_new_tokens=2)
        .rollouts(episodes_per_iteration=4, group_size=2, max_turns=3)
        .env_runners(num_env_runners=0)
    )
    algo = config.build_algo()
    path = tmp_path_factory.mktemp("run") / "checkpoint"
    algo.save_to_path(str(path))
    algo.stop()
    return path


@pytest.fixture
def server():
    one = ChatServer(bisect)
    yield one
    one.close()


@pytest.fixture
def call(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["evaluate", *map(str, arguments)])
        return ended.value.code or 0, *capsys.readouterr()

    return run


def test_both_play_the_same_tasks_and_the_difference_has_an_interval(
    call, checkpoint, server, tmp_path
):
    file = tmp_path / "out.json"
    how = ("--api", server.url, "--model", "bisector", "--episodes", 8, "--json")
    status, out, err = call(checkpoint, *how, "--out", file)
    assert status == 0, err
    (result,) = json.loads(out)["comparisons"]
    assert json.loads(out)["model"] == "bisector"
    # The run's limit of turns counts for both.
    assert result["model"]["turns"] <= 3 and result["run"]["turns"] <= 3
    assert result["model"]["tokens"] == 3 * len(server.requests) / 8
    solved, returns = result["paired"]
    assert (solved["what"], solved["n"], result["left_out"]) == ("success", 8, 0)
    of_model = json.loads(file.read_text())["comparisons"][0]["model_outcomes"]
    assert solved["mean_a"] == sum(bool(o["success"]) for o in of_model) / 8 > 0
    assert solved["mean_b"] == 0
    assert solved["low"] <= solved["difference"] <= solved["high"]
    assert solved["difference"] == -solved["mean_a"]
    assert returns["difference"] < 0
    (written,) = json.loads(file.read_text())["comparisons"]
    seeds = [
        [outcome["seed"] for outcome in written[f"{who}_outcomes"]]
        for who in ("model", "run")
    ]
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == 8
    config = GRPOConfig().environment("guess_number-v0", env_config={"upper": 15})
    tasks = config.build_task_source(in_evaluation=True).fixed(8)
    assert seeds[0] == [task.seed for task in tasks]


def test_one_table_shows_both(call, checkpoint, server):
    how = ("--api", server.url, "--model", "bisector", "--episodes", 4)
    elsewhere = ("--env", "guess_number-v0:upper=7", "--samples", 2)
    status, out, err = call(checkpoint, *how, *elsewhere)
    assert status == 0, err
    assert out.isascii()
    assert "the same 4 held-out tasks, 2 sampled" in out and "upper=7" in out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert rows["success"][1:3] == ["1.000", "0.000"]
    assert rows["success"][3] == "-1.000"
    assert {"return", "turns", "tokens", "failed"} <= rows.keys()
    assert len(server.requests) > 8


def test_the_options_of_the_run_s_environment_are_kept(call, checkpoint, server):
    how = ("--api", server.url, "--model", "m", "--episodes", 2, "--json")
    status, out, _ = call(checkpoint, *how, "--env", "guess_number-v0:max_turns=1")
    assert status == 0
    (result,) = json.loads(out)["comparisons"]
    options = {"upper": 15, "max_turns": 1}
    assert result["run"]["env_config"] == result["model"]["env_config"] == options
    assert result["model"]["turns"] == result["run"]["turns"] == 1


def test_an_api_that_does_not_answer_ends_before_the_run_plays(
    call, checkpoint, monkeypatch
):
    monkeypatch.setattr(api_models, "_RETRIES", 0)
    server = ChatServer(lambda body: (404, "no such model"))
    how = ("--api", server.url, "--model", "m", "--episodes", 2)
    status, out, err = call(checkpoint, *how)
    server.close()
    assert status == 1 and "model='m'" in err and "run:" not in out
    status, _, err = call(checkpoint, "--api", "localhost", "--model", "m")
    assert status == 1 and "must be an address" in err
