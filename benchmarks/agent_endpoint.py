"""Throughput and latency of the endpoint of agent programs against the engine alone.

Run:  python benchmarks/agent_endpoint.py tiny small base --programs 16

Programs take turns of a fixed number of tokens from a model with random weights. The
engine alone then samples the same turns: the recorded prompts with the same seeds, each
submitted when the turn before it in its conversation has ended. Both alternate. Rates
are those of the fastest repetition, which other work on the machine disturbs least; CPU
times are medians of consecutive pairs, times of turns medians over all turns. An
ordinary environment with the same texts shows the share of the sampling loop.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import http.client
import json
import os
import statistics
import tempfile
import threading
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from standing_workload import SIZES

from rllib_llm import LLMPPOConfig
from rllib_llm.cli.session import quiet_loggers
from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes
from rllib_llm.data.types import Task, TurnResult
from rllib_llm.engines.base import SamplingParams
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.modules.tiny import save_tiny_model

TURNS = 4
WORDS = "The quick brown fox jumps over the lazy dog. " * 4
# The shape of SmolLM2-135M, without its vocabulary.
BASE = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
}
_LATENCIES: list[float] = []
_LOCK = threading.Lock()


def converse(task: dict[str, Any], ask: Any) -> float:
    """Take the turns of a conversation with ``ask``, a function of messages."""
    messages = []
    for number in range(TURNS):
        text = f"{WORDS}{task['seed']}, {number}."
        messages.append({"role": "user", "content": text})
        started = time.perf_counter()
        reply = ask(messages)
        with _LOCK:
            _LATENCIES.append(time.perf_counter() - started)
        messages.append({"role": "assistant", "content": reply})
    return 1.0


def plain(task: dict[str, Any], endpoint: Any) -> float:
    """Use the standard library, one connection per episode."""
    _, _, host, path = endpoint.base_url.split("/", 3)
    connection = http.client.HTTPConnection(host)
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}

    def ask(messages: list[dict[str, str]]) -> str:
        body = json.dumps({"model": endpoint.models[0], "messages": messages})
        connection.request("POST", f"/{path}/chat/completions", body, headers)
        return json.load(connection.getresponse())["choices"][0]["message"]["content"]

    try:
        return converse(task, ask)
    finally:
        connection.close()


@functools.cache
def _http_client() -> Any:
    import openai

    return openai.DefaultHttpxClient(timeout=600.0)


def with_openai(task: dict[str, Any], endpoint: Any) -> float:
    """Use the ``openai`` client, with one pool of connections for all programs."""
    import openai

    client = openai.OpenAI(
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        http_client=_http_client(),
    )

    def ask(messages: list[Any]) -> str:
        answer = client.chat.completions.create(
            model=endpoint.models[0], messages=messages
        )
        return answer.choices[0].message.content or ""

    return converse(task, ask)


class Conversing(TextEnv):
    """The same texts from an ordinary environment."""

    max_turns = TURNS

    def start(self, rng: np.random.Generator) -> str:
        """Return the first message."""
        return f"{WORDS}{int(rng.integers(10_000))}, 0."

    def reply(self, action: str) -> TurnResult:
        """Return the next message."""
        return TurnResult(f"{WORDS}{self.turn}.", terminated=self.turn == TURNS)

    def parse(self, completion: str) -> str:
        """Accept every text."""
        return completion or "-"


CLIENTS = {
    "none: environment": (Conversing, {}),
    "standard library": ("agent-v0", {"program": "agent_endpoint:plain"}),
    "`openai`": ("agent-v0", {"program": "agent_endpoint:with_openai"}),
}


@dataclasses.dataclass
class Run:
    """Measurements of one run.

    Attributes:
        turns: Sampled turns, or their number.
        tokens: Sampled tokens.
        wall: Wall time in seconds.
        thread: CPU time of the sampling thread in seconds.
        process: CPU time of the process in seconds, its clients included.
        latencies: Time of every turn in seconds.
    """

    turns: list[list[Any]]
    tokens: int
    wall: float
    thread: float
    process: float
    latencies: list[float]


class Clocks:
    """Wall and CPU time since the start, in seconds."""

    def __init__(self) -> None:
        self._start = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return time.perf_counter(), time.thread_time(), time.process_time()

    def read(self) -> tuple[float, float, float]:
        """Return wall time, CPU time of this thread, and of the process."""
        wall, thread, process = self._now()
        before = self._start
        return wall - before[0], thread - before[1], process - before[2]


def build(size: str, client: str, programs: int, tokens: int) -> LLMEnvRunner:
    """Return an EnvRunner of a model with random weights."""
    folder = tempfile.mkdtemp(prefix="agent_endpoint_")
    sizes = {**SIZES, "base": BASE}[size]
    shared = {"vocab_size": 384, "max_position_embeddings": 8192}
    save_tiny_model(folder, [WORDS], seed=0, **sizes, **shared)
    env, env_config = CLIENTS[client]
    config = (
        LLMPPOConfig()
        .environment(env, env_config=env_config)
        .env_runners(num_envs_per_env_runner=programs)
        .generation(max_new_tokens=tokens, temperature=1.0)
        .rollouts(episodes_per_iteration=programs, group_size=1)
        .language_model(model=folder)
    )
    config.validate()
    return LLMEnvRunner(config=config, worker_index=0)


def run_episodes(runner: LLMEnvRunner, programs: int, first_seed: int) -> Run:
    """Sample an episode of each program."""
    tasks = [Task(i, 0, first_seed + i) for i in range(programs)]
    _LATENCIES.clear()
    clocks = Clocks()
    episodes = runner.sample(tasks=tasks)
    times = clocks.read()
    turns = [
        list(part.get_extra_model_outputs(columns.TURN))
        for episode in episodes
        for part in agent_episodes(episode)
    ]
    tokens = sum(len(turn.action_ids) for each in turns for turn in each)
    return Run(turns, tokens, *times, list(_LATENCIES))


def run_engine(runner: LLMEnvRunner, turns: list[list[Any]]) -> Run:
    """Sample turns of the same prompts and lengths with the engine alone."""
    engine = runner.engine
    module_config = runner.config.get_config_for_module("default_policy")
    sampling = module_config.sampling_params(explore=True)
    next_turn = dict.fromkeys(range(len(turns)), 0)
    tokens, latencies = 0, []

    def submit(session: int) -> None:
        turn = turns[session][next_turn[session]]
        # The recorded length: the sampled tokens need not be the same.
        params = SamplingParams(
            max_new_tokens=len(turn.action_ids),
            seed=session * TURNS + next_turn[session],
            **{**sampling, "stop_token_ids": ()},
        )
        engine.submit(("alone", session), turn.prompt_ids, params)
        next_turn[session] += 1

    clocks = Clocks()
    for session in next_turn:
        engine.open(("alone", session))
        submit(session)
    while engine.num_unfinished:
        for done in engine.step():
            tokens += len(done.token_ids)
            latencies.append(done.seconds)
            session = done.session_id[1]
            if next_turn[session] < len(turns[session]):
                submit(session)
    times = clocks.read()
    for session in next_turn:
        engine.close(("alone", session))
    return Run(turns, tokens, *times, latencies)


def median_of(pairs: list[tuple[Run, Run]], measured: Any) -> float:
    """Return the median of a function of each pair."""
    return statistics.median(measured(*pair) for pair in pairs)


def percentiles(runs: list[Run]) -> str:
    """Return median and 95th percentile of the turns' times, in milliseconds."""
    values = sorted(1000 * each for run in runs for each in run.latencies)
    if not values:
        return "-"
    return f"{statistics.median(values):.0f}, {values[int(0.95 * len(values))]:.0f}"


def measure(size: str, client: str, programs: int, tokens: int, repeats: int) -> str:
    """Return a line of the table."""
    runner = build(size, client, programs, tokens)
    run_episodes(runner, programs, 0)  # imports, caches, the server's start
    pairs = []
    for repeat in range(repeats):
        run = run_episodes(runner, programs, 1000 * (1 + repeat))
        alone = run_engine(runner, run.turns)
        assert alone.tokens == run.tokens, (alone.tokens, run.tokens)
        pairs.append((run, alone))
    runner.stop()
    count = programs * TURNS
    fastest = [
        max(run.tokens / run.wall for run in runs) for runs in zip(*pairs, strict=True)
    ]
    lost = 1 - fastest[0] / fastest[1]
    lost_cpu = median_of(pairs, lambda run, alone: 1 - alone.thread / run.thread)
    cells = [
        size,
        client,
        f"{fastest[1]:.0f}",
        f"{fastest[0]:.0f}",
        f"{100 * lost:.0f} %",
        f"{100 * lost_cpu:.0f} %",
        f"{1000 * median_of(pairs, lambda r, a: r.process - a.process) / count:.1f}",
        percentiles([alone for _, alone in pairs]),
        percentiles([run for run, _ in pairs]),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="+", choices=("tiny", "small", "base"))
    parser.add_argument("--programs", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clients", nargs="+", default=list(CLIENTS))
    args = parser.parse_args()
    quiet_loggers()
    torch.set_num_threads(1)
    print(
        f"{args.programs} programs, {TURNS} turns of {args.tokens} tokens\n\n"
        "| model | client | engine alone, tokens/s | tokens/s | lost | lost, CPU of "
        "the sampling thread | more CPU per turn, ms | turn of the engine, ms (median, "
        "95 %) | turn of the client, ms |\n|---|---|---|---|---|---|---|---|---|"
    )
    for size in args.sizes:
        for client in args.clients:
            line = measure(size, client, args.programs, args.tokens, args.repeats)
            print(line, flush=True)


if __name__ == "__main__":
    # Under its own name, by which agent-v0 imports the programs: one list of latencies.
    import agent_endpoint

    agent_endpoint.main()
