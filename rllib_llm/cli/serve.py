"""The commands ``rllib-llm serve`` and ``rllib-llm serve-env``."""

from __future__ import annotations

from typing import Annotated

import typer

from rllib_llm.cli.options import Run, Storage, Verbose
from rllib_llm.cli.session import configure_output

Host = Annotated[
    str, typer.Option(help="Address to listen on; 0.0.0.0 for all of this machine.")
]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")]


def serve(
    run: Run,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    num_replicas: Annotated[
        int | None, typer.Option(help="Number of replicas. Default: 1.")
    ] = None,
    autoscaling: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A field of Ray Serve's AutoscalingConfig, in place of "
            "--num-replicas: max_replicas=4.",
        ),
    ] = None,
    max_ongoing_requests: Annotated[
        int, typer.Option(help="Requests that a replica answers at the same time.")
    ] = 256,
    max_queued_requests: Annotated[
        int,
        typer.Option(help="Requests that may wait for a replica; others get 503."),
    ] = 4096,
    request_timeout_s: Annotated[
        float, typer.Option(help="Seconds after which a request is given up.")
    ] = 600.0,
    num_cpus: Annotated[float, typer.Option(help="CPUs of a replica.")] = 1.0,
    num_gpus: Annotated[float, typer.Option(help="GPUs of a replica.")] = 0.0,
    storage: Storage = None,
    verbose: Verbose = False,
) -> None:
    """Serve a run's policies with an OpenAI-compatible API, on Ray Serve.

    Every policy is a model; team-v0's agents together are the model "team". If the
    environment variable RLLIB_LLM_API_KEY is set, requests must carry it as their key.
    """
    configure_output(verbose=verbose)
    from rllib_llm.cli.implementation import serve as implementation

    implementation.serve(
        run,
        host=host,
        port=port,
        num_replicas=num_replicas,
        autoscaling=autoscaling or [],
        max_ongoing_requests=max_ongoing_requests,
        max_queued_requests=max_queued_requests,
        request_timeout_s=request_timeout_s,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        storage=storage,
        verbose=verbose,
    )


def serve_env(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV[:KEY=VALUE,...]",
            help="Environment, with options, or a recipe (.yaml).",
        ),
    ],
    host: Host = "127.0.0.1",
    port: Port = 8000,
    max_sessions: Annotated[
        int, typer.Option(min=1, help="Sessions at a time, each an environment.")
    ] = 64,
) -> None:
    """Serve an environment, also a game of several agents, as an OpenEnv server."""
    configure_output(verbose=False)
    from rllib_llm.cli.implementation import serve as implementation

    implementation.serve_env(env, host=host, port=port, max_sessions=max_sessions)
