"""Ray Serve deployment of a run's policies."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import logging
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_llm.errors import (
    CheckpointError,
    ConfigError,
    MissingExtraError,
    summarize,
)

if TYPE_CHECKING:
    from ray.serve import Application

KEY = "RLLIB_LLM_API_KEY"
"""Environment variable with the key that requests must carry."""

NAME = "rllib_llm"
_METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Settings of a deployment, by Ray Serve's names.

    Attributes:
        num_replicas: Number of replicas; None: one, or as ``autoscaling_config`` says.
        autoscaling_config: Fields of Serve's ``AutoscalingConfig``.
        max_ongoing_requests: Requests that a replica answers at the same time.
        max_queued_requests: Requests that wait for a replica; more get status 503.
        num_cpus: CPUs of a replica.
        num_gpus: GPUs of a replica.
    """

    num_replicas: int | None = None
    autoscaling_config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_ongoing_requests: int = 256
    max_queued_requests: int = 4096
    num_cpus: float = 1.0
    num_gpus: float = 0.0

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: If one of them is out of range, or two contradict each other.
        """
        if self.num_replicas is not None and self.autoscaling_config:
            raise ConfigError(
                f"num_replicas={self.num_replicas} and autoscaling both set the number "
                "of replicas. Set one of them."
            )
        least = {"num_replicas": 1, "max_ongoing_requests": 1, "max_queued_requests": 1}
        for name, value in (least | {"num_cpus": 0, "num_gpus": 0}).items():
            given = getattr(self, name)
            if given is not None and given < value:
                raise ConfigError(f"{name}={given} must be at least {value}.")

    def of_deployment(self) -> dict[str, Any]:
        """Return the arguments of ``serve.deployment``.

        Raises:
            ConfigError: If Serve refuses the autoscaling settings.
        """
        from pydantic import ValidationError
        from ray.serve.config import AutoscalingConfig

        settings: dict[str, Any] = {"num_replicas": self.num_replicas or 1}
        if self.autoscaling_config:
            unknown = self.autoscaling_config.keys() - AutoscalingConfig.model_fields
            if unknown:
                raise ConfigError(
                    f"autoscaling has no {', '.join(sorted(unknown))}. Ray Serve's "
                    f"fields: {', '.join(AutoscalingConfig.model_fields)}."
                )
            try:
                scaling = AutoscalingConfig(**self.autoscaling_config)
            except (ValidationError, ValueError) as error:
                raise ConfigError(
                    f"autoscaling: Ray Serve refuses {dict(self.autoscaling_config)}: "
                    f"{summarize(error)}"
                ) from error
            settings = {"autoscaling_config": scaling}
        return {
            **settings,
            "name": NAME,
            # A line per request would cost as much as a short reply.
            "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
            "max_ongoing_requests": self.max_ongoing_requests,
            "max_queued_requests": self.max_queued_requests,
        }


def application(
    checkpoint: str | Path,
    settings: ServeSettings | None = None,
    *,
    metrics_folder: str | None = None,
) -> Application:
    """Return the Ray Serve application of a checkpoint, for ``serve.run``.

    Args:
        checkpoint: Folder of a run, trial or checkpoint, which every replica can read.
        settings: Settings of the deployment.
        metrics_folder: Folder in which the replicas of a machine share their metrics;
            None: ``/metrics`` reports one replica.

    Raises:
        MissingExtraError: Without the extra ``serve``.
    """
    require_serve()
    from ray import serve

    settings = settings or ServeSettings()
    # Only what the replicas need: without a key there is none.
    shared = {KEY: os.environ.get(KEY), _METRICS_FOLDER: metrics_folder}
    env_vars = {name: value for name, value in shared.items() if value}
    actor_options = {
        "num_cpus": settings.num_cpus,
        "num_gpus": settings.num_gpus,
        "runtime_env": {"env_vars": env_vars},
    }
    path, num_gpus = str(checkpoint), settings.num_gpus

    def build() -> Any:
        return _load(path, num_gpus)

    deployment = serve.deployment(
        serve.ingress(build)(Replica),
        ray_actor_options=actor_options,
        **settings.of_deployment(),
    )
    return deployment.bind()


class Replica:
    """Replica that is healthy as long as its engine is; Ray Serve replaces others."""

    app: Any  # set by Ray Serve

    def check_health(self) -> None:
        """Raise an error if the engine has failed."""
        self.app.state.server.require_healthy()


def _load(path: str, num_gpus: float) -> Any:
    """Return the ASGI application with the policies of a checkpoint."""
    from rllib_llm.inference.checkpoint_config import load_runner
    from rllib_llm.serving.app import PolicyServer

    runner = load_runner(path, num_gpus=num_gpus)
    return PolicyServer(runner, os.environ.get(KEY) or None).app()


def require_serve() -> None:
    """Raise a MissingExtraError without Ray Serve and its dependencies."""
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError.for_extra(package, "serve")


@contextlib.contextmanager
def running(
    checkpoint: str | Path,
    settings: ServeSettings,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    request_timeout_s: float = 600.0,
) -> Iterator[str]:
    """Serve a checkpoint inside the block; Ray must run.

    Args:
        checkpoint: Folder of the checkpoint.
        settings: Settings of the deployment.
        host: Address to listen on.
        port: Port to listen on.
        request_timeout_s: Seconds after which Serve gives a request up.

    Yields:
        The base address of the API.

    Raises:
        ConfigError: If the port is not free, or Serve runs already.
    """
    require_serve()
    from ray import serve

    _require_free(host, port)
    with tempfile.TemporaryDirectory(prefix="rllib_llm_metrics_") as folder:
        app = application(checkpoint, settings, metrics_folder=folder)
        if serve.status().applications:
            raise ConfigError(
                "Ray Serve runs already on this Ray cluster. Stop it with `serve "
                "shutdown`, or deploy rllib_llm.serving.deployment.application there."
            )
        http = {"host": host, "port": port, "request_timeout_s": request_timeout_s}
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        try:
            serve.start(proxy_location="HeadOnly", http_options=http)
            _deploy(app)
            yield f"http://{host}:{port}/v1"
        finally:
            serve.shutdown()


def _deploy(app: Application) -> None:
    from ray import serve

    try:
        serve.run(app, name=NAME, route_prefix="/")
    except RuntimeError as error:
        message = serve.status().applications[NAME].message
        raise CheckpointError(f"The policies were not deployed: {message}") from error


def _require_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"host={host!r}, port={port} cannot be listened on: {error}. Choose "
                "another one."
            ) from error
