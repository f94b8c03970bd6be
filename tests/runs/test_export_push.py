"""``rllib-llm export --push`` against a local hub, reached by its address alone."""

from __future__ import annotations

import json

import huggingface_hub.constants
import pytest
from hub_server import TOKEN, HubServer

from rllib_llm import GRPOConfig
from rllib_llm.cli.main import main

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, ray_session):
    config = (
        GRPOConfig()
        .environment("copy_probe-v0")
        .language_model(
            tiny={
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "intermediate_size": 32,
            }
        )
        .rollouts(episodes_per_iteration=4, group_size=2)
    )
    algo = config.build_algo()
    path = tmp_path_factory.mktemp("pushed") / "checkpoint"
    algo.save_to_path(str(path))
    algo.stop()
    return path


@pytest.fixture
def server(monkeypatch):
    running = HubServer()
    # What HF_ENDPOINT and HF_TOKEN set, which are read when the library is imported.
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", running.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield running
    running.shutdown()
    running.server_close()


def export(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["export", *map(str, arguments)])
    return ended.value.code or 0, *capsys.readouterr()


def test_the_exported_folder_arrives_at_the_hub(server, checkpoint, tmp_path, capsys):
    how = ("--push", "someone/agent", "--private", "--license", "mit")
    status, out, err = export(capsys, checkpoint, tmp_path / "model", *how)
    assert status == 0, err
    assert f"uploaded: {server.url}/someone/agent/commit/" in out
    uploaded = server.repositories["someone/agent"]
    files = {p.name: p.read_bytes() for p in (tmp_path / "model").iterdir()}
    assert uploaded == files and server.is_private["someone/agent"]
    assert json.loads(uploaded["config.json"])["hidden_size"] == 16
    card = uploaded["README.md"].decode()
    assert "license: mit" in card and "# agent" in card


def test_a_wrong_token_ends_before_the_checkpoint_is_loaded(
    server, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    how = ("--push", "someone/agent")
    status, _, err = export(capsys, "no_such_run", tmp_path / "model", *how)
    assert status == 1 and "the hub did not accept you" in err
    assert not (tmp_path / "model").exists() and not server.commits


def test_a_refused_upload_keeps_the_folder(server, checkpoint, tmp_path, capsys):
    server.refuses_commits = True
    how = ("--push", "someone/agent")
    status, _, err = export(capsys, checkpoint, tmp_path / "model", *how)
    assert status == 1 and "hf upload someone/agent" in err
    assert (tmp_path / "model" / "config.json").is_file()
