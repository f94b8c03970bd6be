"""``rllib-llm serve`` with Ray Serve, asked by HTTP."""

import collections
import http.client
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from hostile_requests import HANGS_UP, KINDS, Attacker

from rllib_llm import yaml_io
from rllib_llm.errors import ConfigError
from rllib_llm.serving.deployment import KEY, NAME, ServeSettings
from rllib_llm.serving.deployment import running as deployed

pytest.importorskip("ray.serve", reason="the extra serve is not installed")

CLIENTS, REQUESTS = 24, 102
HELLO = [{"role": "user", "content": "Hello."}]
RECIPE = {
    "algo": "GRPO",
    "env": "team-v0",
    "env_config": {"task": "copy_probe-v0"},
    "language_model": {
        "tiny": {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}
    },
    "generation": {"max_new_tokens": 8},
    "multi_agent": {
        "policies": ["adviser", "solver"],
        "policy_mapping_fn": {"adviser": "adviser", "solver": "solver"},
    },
    "rollouts": {"episodes_per_iteration": 4, "group_size": 2},
    "training": {"lr": 1e-3},
    "stop": {"training_iteration": 1},
}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_replicas": 0}, "num_replicas=0 must be at least 1"),
        ({"max_ongoing_requests": 0}, "max_ongoing_requests=0"),
        ({"num_replicas": 2, "autoscaling_config": {"max_replicas": 3}}, "both set"),
        ({"autoscaling_config": {"max_repicas": 3}}, "has no max_repicas"),
        ({"autoscaling_config": {"min_replicas": 5}}, "Ray Serve refuses"),
    ],
)
def test_wrong_settings(settings, words):
    with pytest.raises(ConfigError, match=words):
        ServeSettings(**settings).of_deployment()


def test_settings_reach_ray_serve():
    scaling = {"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 32}
    given = ServeSettings(autoscaling_config=scaling, max_queued_requests=7)
    made = given.of_deployment()
    config = made["autoscaling_config"]
    assert (config.max_replicas, config.target_ongoing_requests) == (4, 32)
    assert made["max_queued_requests"] == 7 and "num_replicas" not in made


@pytest.mark.parametrize("key", [None, "secret"])
def test_the_command_asks_for_the_models_with_and_without_a_key(monkeypatch, key):
    from rllib_llm.cli.implementation.serve import _models

    received = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            received.append((self.path, self.headers.get("Authorization")))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"data": [{"id": "solver"}]}')

        def log_message(self, *args):
            pass

    monkeypatch.delenv(KEY, raising=False)
    if key:
        monkeypatch.setenv(KEY, key)
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert _models(f"http://127.0.0.1:{server.server_port}/v1") == ["solver"]
    assert received == [("/v1/models", f"Bearer {key}" if key else None)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Running:
    """A server in a process of its own."""

    api_key = "secret"

    def __init__(self, folder):
        recipe = folder / "recipe.yaml"
        recipe.write_text(yaml_io.dump(RECIPE))
        command = [sys.executable, "-m", "rllib_llm"]
        storage = ["--storage", str(folder / "runs")]
        self._environment = {**os.environ, KEY: self.api_key}
        trained = subprocess.run(
            [*command, "train", str(recipe), *storage],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
        )
        assert trained.returncode == 0, trained.stdout[-3000:]
        (self.run,) = (folder / "runs").iterdir()
        self.port = free_port()
        self._log = (folder / "log.txt").open("w+")
        self.process = subprocess.Popen(
            [*command, "serve", str(self.run), "--port", str(self.port)],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self._environment,
        )
        self.base_url = f"http://127.0.0.1:{self.port}/v1"
        self._await_start()

    def _await_start(self):
        until = time.monotonic() + 300
        while "API:" not in self.output:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < until, self.output
            time.sleep(0.2)

    @property
    def output(self):
        self._log.seek(0)
        return self._log.read()

    def request(self, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"Authorization": f"Bearer {self.api_key}"}
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(120)
        self._log.close()
        return status


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    one = Running(tmp_path_factory.mktemp("serve"))
    yield one
    if one.process.poll() is None:
        one.process.kill()


@pytest.mark.slow
@pytest.mark.ray
def test_policies_and_the_team_by_http(running):
    status, text = running.request("/v1/models")
    assert status == 200
    names = [model["id"] for model in json.loads(text)["data"]]
    assert names == ["adviser", "solver", "team"]
    for name in names:
        body = {"model": name, "messages": HELLO, "seed": 1}
        status, text = running.request("/v1/chat/completions", body)
        assert status == 200, text
        whole = json.loads(text)["choices"][0]["message"]["content"]
        status, text = running.request("/v1/chat/completions", {**body, "stream": True})
        assert status == 200 and text.endswith("data: [DONE]\n\n")
        events = [json.loads(e[6:]) for e in text.split("\n\n")[:-2]]
        deltas = [e["choices"][0]["delta"] for e in events]
        assert "".join(d.get("content") or "" for d in deltas) == whole
    assert running.request("/health")[0] == 200
    assert running.request("/v1/chat/completions", {"model": "x"})[0] == 404


@pytest.mark.slow
@pytest.mark.ray
def test_the_openai_client(running):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=running.base_url, api_key=running.api_key)
    answer = client.chat.completions.create(model="team", messages=HELLO, seed=1)
    assert answer.usage.completion_tokens > 1
    stream = client.chat.completions.create(model="solver", messages=HELLO, stream=True)
    assert [chunk.choices[0].finish_reason for chunk in stream][-1] in (
        "stop",
        "length",
    )
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=running.base_url, api_key="wrong").models.list()


@pytest.mark.slow
@pytest.mark.ray
def test_many_clients_and_hostile_requests(running):
    endpoint = types.SimpleNamespace(
        base_url=running.base_url, api_key=running.api_key, models=("solver",)
    )
    body = {"model": "adviser", "messages": HELLO, "seed": 3}
    with ThreadPoolExecutor(CLIENTS) as threads:
        attacks = [
            threads.submit(
                lambda k, i: (k, *Attacker(endpoint, i).attack(k)),
                KINDS[i % len(KINDS)],
                i,
            )
            for i in range(REQUESTS)
        ]
        asked = [
            threads.submit(running.request, "/v1/chat/completions", body)
            for _ in range(4 * CLIENTS)
        ]
        answers = [job.result() for job in asked]
        results = [job.result() for job in attacks]
    assert {status for status, _ in answers} == {200}
    texts = {json.loads(t)["choices"][0]["message"]["content"] for _, t in answers}
    assert len(texts) == 1  # the same seed: nothing is mixed
    statuses = collections.defaultdict(collections.Counter)
    for kind, status, _ in results:
        statuses[kind][status] += 1
        if kind not in (*HANGS_UP, "huge_body", "no_http"):
            assert status == 200 or 400 <= status < 500, (kind, status)
    assert set(statuses["wrong_key"]) | set(statuses["no_key"]) == {401}
    assert running.request("/health")[0] == 200
    _, metrics = running.request("/metrics")
    assert 'rllib_llm_requests_total{model="adviser",path="/v1/chat' in metrics


@pytest.mark.slow
@pytest.mark.ray
def test_it_stops_cleanly(running):
    assert running.stop() == 0
    with pytest.raises(ConnectionError):
        running.request("/health")


@pytest.mark.slow
@pytest.mark.ray
def test_more_requests_start_another_replica(running, ray_session, monkeypatch):
    from ray import serve

    monkeypatch.delenv(KEY, raising=False)
    scaling = {
        "min_replicas": 1,
        "max_replicas": 2,
        "target_ongoing_requests": 2,
        "upscale_delay_s": 0.5,
        "metrics_interval_s": 0.5,
        "look_back_period_s": 1.0,
    }
    settings = ServeSettings(autoscaling_config=scaling)

    def replicas():
        (deployment,) = serve.status().applications[NAME].deployments.values()
        return deployment.replica_states.get("RUNNING", 0)

    def ask(_):
        body = {"model": "adviser", "messages": HELLO, "seed": 3}
        request = urllib.request.Request(
            f"{url}/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["choices"][0]["message"]["content"]

    texts = set()
    with (
        deployed(running.run, settings, port=free_port()) as url,
        ThreadPoolExecutor(CLIENTS) as threads,
    ):
        assert replicas() == 1
        until = time.monotonic() + 150
        while replicas() < 2:
            assert time.monotonic() < until, serve.status()
            texts.update(threads.map(ask, range(2 * CLIENTS)))
        # Both answer, and a seed gives the same text on either.
        texts.update(threads.map(ask, range(2 * CLIENTS)))
    assert len(texts) == 1
