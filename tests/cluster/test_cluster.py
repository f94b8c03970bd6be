"""Runs on several nodes: raylets on one machine, started as a cluster's would be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow]
ROOT = Path(__file__).parents[2]


class Nodes:
    """A cluster in another process, so that this one's Ray stays as it is."""

    def __init__(self, folder):
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("nodes.py"))],
            # In the usual folder it would be the default cluster of all processes.
            env={**os.environ, "RAY_TMPDIR": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address = self._process.stdout.readline().strip()
        assert ":" in self.address

    def tell(self, *order):
        print(json.dumps(order), file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == "done\n"

    def close(self):
        self._process.stdin.close()
        self._process.wait(60)


@pytest.fixture
def nodes():
    # Not tmp_path: the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as path:
        cluster = Nodes(path)
        yield cluster
        cluster.close()


@pytest.fixture
def environ(nodes, tmp_path):
    return {
        **os.environ,
        "RAY_ADDRESS": nodes.address,
        "RLLIB_LLM_RESULTS": str(tmp_path / "results"),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }


def command(environ, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "rllib_llm", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
    )


def driver(environ, body, on_line=None):
    """Run a program that builds ``config``; return the JSON lines that it prints."""
    program = textwrap.dedent(
        """
        import json, logging, time, ray
        from rllib_llm import GRPOConfig
        from rllib_llm.cli.session import quiet_loggers
        from rllib_llm.algorithms.driver.runner_group_calls import call_runners

        quiet_loggers()
        ray.init(log_to_driver=False)
        config = (
            GRPOConfig().environment("guess_number-v0")
            .language_model(tiny={"hidden_size": 32, "num_hidden_layers": 1})
            .generation(max_new_tokens=4)
            .rollouts(episodes_per_iteration=8, group_size=2)
            .training(lr=1e-3, drop_zero_variance_groups=False)
            .evaluation(evaluation_interval=None)
            .env_runners(num_env_runners=2, num_envs_per_env_runner=2)
            .fault_tolerance(
                delay_between_env_runner_restarts_s=1.0,
                env_runner_health_probe_timeout_s=5.0,
            )
        )

        def say(**found):
            print(json.dumps(found, default=int), flush=True)

        def on_runners(algo, call):
            limit = algo.config.call_limit
            group = algo.env_runner_group
            return call_runners(group, call, limit=limit, version=None)

        def node(actor):
            return ray.get_runtime_context().get_node_id()

        def holding(resource):
            return [n["NodeID"] for n in ray.nodes() if resource in n["Resources"]]
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program + textwrap.dedent(body)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = []
    for text in process.stdout:
        if not text.startswith("{"):  # a message of the run
            continue
        lines.append(json.loads(text))
        if on_line is not None:
            on_line(lines[-1])
    errors = process.stderr.read()
    assert process.wait(60) == 0, errors[-3000:]
    return lines


def test_actors_run_on_their_nodes_and_the_doctor_sees_all(nodes, environ):
    nodes.tell("add", {"num_cpus": 2, "resources": {"samplers": 1}})
    nodes.tell("add", {"num_cpus": 2, "resources": {"trainers": 1}})
    places = "resources.placement={env_runners: samplers, learners: trainers}"
    runs = ["guess_number_grpo", places, "env_runners.num_env_runners=2"]
    seen = command(
        environ, "doctor", "--cluster", *runs, "learners.num_learners=1", "--json"
    )
    assert seen.returncode == 0, seen.stderr
    findings = json.loads(seen.stdout)["findings"]
    assert [f["status"] for f in findings] == ["ok"] * 5
    assert findings[0]["observed"].startswith("3 nodes")
    assert all("results, cache" in f["observed"] for f in findings[1:4])
    elsewhere = command(
        environ, "doctor", "--cluster", *runs, "learners.num_learners=9", "--json"
    )
    assert elsewhere.returncode == 1
    last = json.loads(elsewhere.stdout)["findings"][-1]
    assert (last["name"], last["status"]) == ("placement", "fail")

    (found,) = driver(
        environ,
        """
        config.resources(placement={"env_runners": "samplers", "learners": "trainers"})
        algo = config.learners(num_learners=1).build_algo()
        result = algo.train()
        learners = algo.learner_group.foreach_learner(node)
        say(
            runners=sorted(on_runners(algo, node).values()),
            learners=[r.get() for r in learners],
            samplers=holding("samplers"),
            trainers=holding("trainers"),
            episodes=result["env_runners"]["num_episodes"],
        )
        """,
    )
    assert found["runners"] == 2 * found["samplers"]
    assert found["learners"] == found["trainers"]
    assert found["episodes"] == 8


def test_a_node_dies_and_another_one_joins(nodes, environ):
    for _ in range(2):
        nodes.tell("add", {"num_cpus": 1, "resources": {"samplers": 1}})

    def change(line):
        if line.get("iteration") == 2:
            nodes.tell("remove", 0)
        elif line.get("iteration") == 5:
            nodes.tell("add", {"num_cpus": 1, "resources": {"samplers": 1}})

    lines = driver(
        environ,
        """
        config.resources(placement={"env_runners": "samplers"})
        algo = config.build_algo()
        first = set(on_runners(algo, node).values())
        deadline = time.monotonic() + 150
        while time.monotonic() < deadline:
            result = algo.train()
            healthy = algo.env_runner_group.num_healthy_remote_workers()
            say(
                iteration=algo.iteration,
                healthy=healthy,
                lost=result["num_episodes_lost"],
                trained=result["env_runners"]["num_episodes"],
            )
            if algo.iteration > 6 and healthy == 2:
                break
        version = lambda runner: (runner._weights_seq_no, runner.has_all_weights)
        say(
            now=sorted(on_runners(algo, node).values()),
            first=sorted(first),
            versions=list(on_runners(algo, version).values()),
            updates=algo.iteration,
        )
        """,
        change,
    )
    *iterations, last = lines
    assert all(row["trained"] == 8 and row["lost"] == 0 for row in iterations)
    assert 1 in [row["healthy"] for row in iterations[2:]]
    assert len(last["now"]) == 2 and len(set(last["now"]) & set(last["first"])) == 1
    assert last["versions"] == [[last["updates"], True]] * 2


def test_a_run_waits_for_its_nodes_and_not_for_ever(nodes, environ):
    missing = command(
        environ,
        "train",
        "guess_number_grpo",
        "env_runners.num_env_runners=1",
        "resources={placement: {env_runners: nowhere}, wait_for_nodes_s: 2}",
    )
    assert missing.returncode == 1, missing.stderr
    assert "No node has 1 CPU, 0.0001 nowhere" in missing.stderr
    assert "wait_for_nodes_s=2 s" in missing.stderr

    def join(line):
        if line.get("waits"):
            nodes.tell("add", {"num_cpus": 2, "resources": {"samplers": 1}})

    lines = driver(
        environ,
        """
        config.resources(placement={"env_runners": "samplers"}, wait_for_nodes_s=60)
        say(waits=True)
        algo = config.build_algo()
        algo.train()
        say(runners=list(on_runners(algo, node).values()), nodes=holding("samplers"))
        """,
        join,
    )
    assert lines[1]["runners"] == 2 * lines[1]["nodes"]
