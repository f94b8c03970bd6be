"""An environment of verifiers as a program of ``agent-v0``.

verifiers 0.4 requires other versions than this package, so it has a Python of its own.
That Python runs this file once per episode, and this file imports nothing of this
package. The program of a recipe:

    VENV/bin/python PATH/with_verifiers.py gsm8k-v1 --train 0:7000 --test 7000:7400

An agent of the environment that is named in ``models`` is played by that policy, every
other one by the first. The harness ``null`` needs ``uv``: install it beside verifiers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from typing import Any

# On this machine. `null` sends the prompt and lets the model call the task's tools.
AGENT = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}


def bounds(text: str) -> range:
    """Return the positions ``START:STOP`` of tasks in a taskset."""
    start, stop = map(int, text.split(":"))
    if not 0 <= start < stop:
        raise argparse.ArgumentTypeError(f"{text} must be START:STOP with START < STOP")
    return range(start, stop)


def read_arguments(given: list[str]) -> argparse.Namespace:
    """Return the arguments of a command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("taskset", help="installed taskset, e.g. gsm8k-v1")
    parser.add_argument("--train", type=bounds, help="its training tasks, START:STOP")
    parser.add_argument("--test", type=bounds, help="its held-out tasks, START:STOP")
    parser.add_argument("--env", type=json.loads, default={}, help="settings, as JSON")
    return parser.parse_args(given)


def position(task: dict[str, Any], arguments: argparse.Namespace) -> int:
    """Return the position of an episode's task in the taskset."""
    split, seed = task["split"], task["seed"]
    positions: range | None = getattr(arguments, split)
    if positions is None:
        raise SystemExit(f"The split {split!r} has no tasks. Set --{split} START:STOP.")
    return positions[seed % len(positions)]


def make_env(arguments: argparse.Namespace, models: list[str]) -> Any:
    """Return the environment, with a model for each of its agents."""
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    given = dict(arguments.env)
    given["taskset"] = {**given.get("taskset", {}), "id": arguments.taskset}
    for name in agent_config_fields(resolve_env_config(given)):
        model = {"model": name if name in models else models[0]}
        given[name] = {**AGENT, **model, **given.get(name, {})}
    return load_environment(resolve_env_config(given))


async def play(env: Any, number: int, model: str) -> Any:
    """Play a task of the environment; return the episode."""
    import verifiers.v1 as vf

    tasks = list(env.taskset.include(idx=[number]))
    if not tasks:
        raise SystemExit(f"The taskset has no task {number}. Lower STOP.")
    url = os.environ["OPENAI_BASE_URL"]
    client = vf.EvalClientConfig(base_url=url, api_key_var="OPENAI_API_KEY")
    context = vf.ModelContext(model=model, client=client)
    async with env.serving():
        return await env.run_slot(env.slots(tasks[0])[0], context)


def result_of(episode: Any) -> dict[str, Any]:
    """Return the episode's rewards by model, and its metrics."""
    rewards: dict[str, float] = {}
    metrics: dict[str, float] = {}
    for trace in episode.traces:
        model = trace.agent.config.model
        rewards[model] = rewards.get(model, 0.0) + trace.reward
        values = {name: r and r.score for name, r in trace.rewards.items()}
        for name, value in {**values, **trace.metrics}.items():
            if value is not None:
                metrics[f"{trace.agent.name}/{name}"] = float(value)
    return {"reward": rewards, "metrics": metrics}


def main() -> None:
    """Play one episode and print its result."""
    arguments, task = read_arguments(sys.argv[1:]), json.load(sys.stdin)
    # verifiers calls uv by its name.
    folders = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
    os.environ["PATH"] = os.pathsep.join(folders)
    models = os.environ["RLLIB_LLM_MODELS"].split(",")
    number = position(task, arguments)
    # The last line of the output is the result, so that verifiers prints elsewhere.
    with contextlib.redirect_stdout(sys.stderr):
        env = make_env(arguments, models)
        episode = asyncio.run(play(env, number, models[0]))
    if not episode.ok:
        errors = [*episode.errors, *(e for t in episode.traces for e in t.errors)]
        # Not a reward of 0: the episode is dropped and repeated.
        raise SystemExit("\n".join(f"{e.type}: {e.message}" for e in errors))
    sys.stdout.write(json.dumps(result_of(episode)))


if __name__ == "__main__":
    main()
