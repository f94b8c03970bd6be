"""``rllib-llm serve`` and ``rllib-llm serve-env``: servers until they are stopped."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from rllib_llm.cli.env_argument import parse_env
from rllib_llm.cli.load_run import locate
from rllib_llm.cli.session import ray_session
from rllib_llm.errors import MissingExtraError
from rllib_llm.recipes.overrides import apply_overrides
from rllib_llm.serving.deployment import ServeSettings, require_serve, running


def serve(
    run: str,
    *,
    host: str,
    port: int,
    num_replicas: int | None,
    autoscaling: list[str],
    max_ongoing_requests: int,
    max_queued_requests: int,
    request_timeout_s: float,
    num_cpus: float,
    num_gpus: float,
    storage: Path | None,
    verbose: bool,
) -> None:
    """Serve the newest checkpoint of ``run`` until SIGINT or SIGTERM.

    Args:
        run: Folder or name of a run, trial or checkpoint.
        host: Address to listen on.
        port: Port to listen on.
        num_replicas: Number of replicas.
        autoscaling: Fields of Serve's ``AutoscalingConfig``, ``KEY=VALUE`` each.
        max_ongoing_requests: Requests that a replica answers at the same time.
        max_queued_requests: Requests that may wait.
        request_timeout_s: Seconds after which a request is given up.
        num_cpus: CPUs of a replica.
        num_gpus: GPUs of a replica.
        storage: Parent of run folders.
        verbose: Show the output of all processes.
    """
    require_serve()
    settings = ServeSettings(
        num_replicas=num_replicas,
        autoscaling_config=apply_overrides({}, autoscaling),
        max_ongoing_requests=max_ongoing_requests,
        max_queued_requests=max_queued_requests,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
    )
    settings.of_deployment()  # fails before Ray is started
    checkpoint = locate(run, storage).checkpoint
    scaling = settings.autoscaling_config
    replicas = num_replicas or scaling.get("max_replicas", 1)
    with (
        ray_session(cpus=replicas * num_cpus, verbose=verbose),
        _stop_signals() as stopped,  # after Ray, which ends the process at SIGTERM
        running(
            checkpoint,
            settings,
            host=host,
            port=port,
            request_timeout_s=request_timeout_s,
        ) as url,
    ):
        typer.echo(f"serving {checkpoint}\nmodels:  {', '.join(_models(url))}")
        typer.echo(f"API:     {url}    stop: Ctrl-C")
        stopped.wait()
        typer.echo("stopping")


def _models(url: str) -> list[str]:
    """Return the names of the models, asked by HTTP."""
    import os

    import httpx

    from rllib_llm.serving.deployment import KEY

    key = os.environ.get(KEY)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = httpx.get(f"{url}/models", headers=headers, timeout=60.0)
    answer.raise_for_status()
    return [model["id"] for model in answer.json()["data"]]


def serve_env(env: str, *, host: str, port: int, max_sessions: int) -> None:
    """Serve an environment to OpenEnv's clients until SIGINT or SIGTERM.

    Args:
        env: ``NAME[:key=value,...]``.
        host: Address to listen on.
        port: Port to listen on.
        max_sessions: Sessions at a time.

    Raises:
        MissingExtraError: Without the extra ``openenv-server``.
    """
    from rllib_llm.envs.adapters.openenv_server import openenv_app

    name, options = parse_env(env)
    app = openenv_app(name, options, max_sessions=max_sessions)
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise MissingExtraError.for_extra("uvicorn", "openenv-server") from error
    typer.echo(f"serving {name} at http://{host}:{port}    stop: Ctrl-C")
    uvicorn.run(app, host=host, port=port, log_level="warning")


@contextlib.contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set inside the block."""
    stopped = threading.Event()

    def stop(number: int, frame: Any) -> None:
        if stopped.is_set():  # the second time: do not wait for what hangs
            raise KeyboardInterrupt
        stopped.set()

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(each, stop) for each in signals]
    try:
        yield stopped
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)
