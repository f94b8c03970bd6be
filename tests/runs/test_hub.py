"""Upload of exported folders, against a local server."""

import functools

import huggingface_hub.constants
import pytest
from hub_server import TOKEN, HubServer
from huggingface_hub import HfApi

from rllib_llm.errors import ConfigError
from rllib_llm.runs import hub


@pytest.fixture
def server(monkeypatch):
    running = HubServer()
    api = functools.partial(HfApi, endpoint=running.url, token=TOKEN)
    monkeypatch.setattr(hub, "HfApi", api)
    # The other protocol needs the hub's own storage.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    yield running
    running.shutdown()
    running.server_close()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "README.md").write_text("---\ntags: [a]\n---\n# A model\n")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(range(256)) * 100)
    return tmp_path


def test_all_files_arrive_in_one_commit(server, folder):
    hub.check_access("someone/agent")
    url = hub.push_folder(folder, "someone/agent", private=True)
    assert url.startswith(f"{server.url}/someone/agent/commit/")
    uploaded = server.repositories["someone/agent"]
    assert uploaded == {p.name: p.read_bytes() for p in folder.iterdir()}
    assert server.is_private["someone/agent"] and len(server.commits) == 1


def test_an_existing_repository_is_updated(server, folder):
    hub.push_folder(folder, "someone/agent", private=False)
    (folder / "config.json").write_text('{"new": 1}')
    hub.push_folder(folder, "someone/agent", private=False)
    assert server.repositories["someone/agent"]["config.json"] == b'{"new": 1}'
    assert not server.is_private["someone/agent"]


def test_a_refused_commit_keeps_the_folder_and_names_the_remedy(server, folder):
    server.refuses_commits = True
    with pytest.raises(ConfigError, match=r"was written, but .*hf upload someone/a"):
        hub.push_folder(folder, "someone/agent", private=False)
    assert (folder / "model.safetensors").is_file()


def test_a_wrong_token_is_refused_before_anything_is_loaded(server, monkeypatch):
    wrong = functools.partial(HfApi, endpoint=server.url, token="hf_wrong")
    monkeypatch.setattr(hub, "HfApi", wrong)
    with pytest.raises(ConfigError, match="the hub did not accept you: .*HF_TOKEN"):
        hub.check_access("someone/agent")


def test_without_a_hub_the_address_is_the_problem(monkeypatch):
    nowhere = functools.partial(HfApi, endpoint="http://127.0.0.1:9", token=TOKEN)
    monkeypatch.setattr(hub, "HfApi", nowhere)
    with pytest.raises(ConfigError, match="HF_ENDPOINT"):
        hub.check_access("someone/agent")


@pytest.mark.parametrize("name", ["a/b/c", "has space/x", "-a", ""])
def test_wrong_names_are_refused(name):
    with pytest.raises(ConfigError, match="is not the name of a repository"):
        hub.check_access(name)
