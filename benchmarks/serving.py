"""Latency and throughput of ``rllib-llm serve`` with many clients at once.

Run:  python benchmarks/serving.py RUN --clients 1 50 200 --requests 4

Starts the server in a process of its own, with the run's policies, and asks one of them
with threads of this process: each client sends its requests one after another, over
one connection. Between the runs with clients the engine alone samples the same prompts
in this process, all at once.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import psutil

from rllib_llm.engines.base import SamplingParams, generate
from rllib_llm.inference.checkpoint_config import load_runner

WORDS = "The quick brown fox jumps over the lazy dog. "


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """The command, in a process of its own."""

    def __init__(self, run: str, options: list[str]):
        self.port = free_port()
        command = [sys.executable, "-m", "rllib_llm", "serve", run]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port), *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        lines = iter(self.process.stdout.readline, "")
        assert any(line.startswith("API:") for line in lines), "It did not start."

    def cpu_s(self) -> float:
        """Return the CPU time of the server and all its processes, in seconds."""
        every = [self.process.pid, *_descendants(self.process.pid)]
        total = 0.0
        for pid in every:
            try:
                times = psutil.Process(pid).cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    def stop(self) -> None:
        """Stop the server."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)


def _descendants(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def ask(connection: http.client.HTTPConnection, body: dict[str, Any]) -> int:
    """Send a request; return the number of sampled tokens."""
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, text
    return json.loads(text)["usage"]["completion_tokens"]


def client(
    port: int,
    number: int,
    requests: int,
    body: dict[str, Any],
    done: list[tuple[float, int]],
) -> None:
    """Send the requests of one client; append seconds and tokens of each."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    for index in range(requests):
        text = f"{WORDS * 4}{number}, {index}."
        message = {"role": "user", "content": text}
        started = time.perf_counter()
        tokens = ask(connection, {**body, "messages": [message], "seed": index})
        done.append((time.perf_counter() - started, tokens))
    connection.close()


def measure(
    server: Server, clients: int, requests: int, body: dict[str, Any]
) -> list[str]:
    """Return cells of the table for a number of clients."""
    done: list[tuple[float, int]] = []
    threads = [
        threading.Thread(target=client, args=(server.port, i, requests, body, done))
        for i in range(clients)
    ]
    wall, cpu = time.perf_counter(), server.cpu_s()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall, cpu = time.perf_counter() - wall, server.cpu_s() - cpu
    count = clients * requests
    assert len(done) == count, f"{count - len(done)} requests failed."
    times = sorted(seconds for seconds, _ in done)
    tokens = sum(tokens for _, tokens in done)
    return [
        str(clients),
        str(count),
        f"{count / wall:.1f}",
        f"{tokens / wall:.0f}",
        f"{1000 * statistics.median(times):.0f}, {1000 * times[int(0.95 * count)]:.0f}",
        f"{1000 * cpu / count:.1f}",
    ]


def alone(run: str, count: int, max_tokens: int) -> str:
    """Return rate and CPU per request of the engine alone, for the same prompts."""
    runner = load_runner(run)
    (module_id,) = list(runner.engines)[:1]
    config = runner.config.get_config_for_module(module_id)
    renderer = config.chat_renderer()
    sampling = config.sampling_params(explore=True)
    texts = [f"{WORDS * 4}{i}, 0." for i in range(count)]
    prompts = [renderer.first([{"role": "user", "content": text}]) for text in texts]
    params = [
        SamplingParams(max_new_tokens=max_tokens, seed=i, **sampling)
        for i in range(count)
    ]
    engine = runner.engines[module_id]
    generate(engine, prompts[:8], params[:8])
    wall, cpu = time.perf_counter(), time.process_time()
    results = generate(engine, prompts, params)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    tokens = sum(len(result.token_ids) for result in results)
    return (
        f"| engine alone | {count} | {count / wall:.1f} | "
        f"{tokens / wall:.0f} | - | {1000 * cpu / count:.1f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--model", default="default_policy")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 50, 200])
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    args, options = parser.parse_known_args()
    print(
        "| clients | requests | requests/s | tokens/s | time of a request, "
        "ms (median, 95 %) | CPU per request, ms |\n|---|---|---|---|---|---|"
    )
    print(alone(args.run, max(args.clients), args.tokens), flush=True)
    body = {"model": args.model, "max_tokens": args.tokens}
    server = Server(args.run, options)
    try:
        measure(server, 1, 4, body)
        for clients in args.clients:
            cells = measure(server, clients, args.requests, body)
            print(f"| {' | '.join(cells)} |", flush=True)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
