"""Local Ray session and output settings of the commands."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

_QUIET_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",  # no tables of Tune: the progress line replaces them
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONWARNINGS": "ignore",
}
_ALWAYS = {
    "TOKENIZERS_PARALLELISM": "false",
    # Seconds between Tune's records of a run; short, so that a kill loses little.
    "TUNE_GLOBAL_CHECKPOINT_S": "5",
    # Ray's default niceness of 15 lets any other process on the machine starve the
    # workers.
    "RAY_worker_niceness": "0",
}
_LOGGER_LEVELS = {
    "ray": logging.ERROR,
    "ray.rllib": logging.ERROR,
    # Tune logs the whole remote traceback of a failed trial; the command prints only
    # the error and the path of the traceback.
    "ray.tune": logging.CRITICAL,
    "ray.train": logging.ERROR,
    "transformers": logging.ERROR,
}


def configure_output(*, verbose: bool) -> None:
    """Set the environment variables that silence Ray and transformers.

    Call it before ray is imported, which reads them. Variables that are set already
    keep their values.
    """
    for name, value in {**_ALWAYS, **({} if verbose else _QUIET_ENVIRONMENT)}.items():
        os.environ.setdefault(name, value)
    if not verbose:
        warnings.filterwarnings("ignore")


def quiet_loggers() -> None:
    """Raise the log levels of verbose libraries."""
    import ray.rllib
    import ray.tune  # noqa: F401  (their imports would reset the levels)

    for name, level in _LOGGER_LEVELS.items():
        logging.getLogger(name).setLevel(level)


def start_ray(**options: Any) -> None:
    """Start or join Ray; once more if its node was not up within Ray's fixed 30 s.

    A busy machine needs longer than that, and Ray has no setting for it.
    """
    import ray

    try:
        ray.init(**options)
    except Exception as error:  # Ray raises no class of its own here
        if "timed out during startup" not in str(error):
            raise
        ray.shutdown()
        ray.init(**options)


@contextlib.contextmanager
def ray_session(*, cpus: float = 1, verbose: bool = False) -> Iterator[None]:
    """Run a block with Ray; start a local session if none is running.

    Args:
        cpus: CPUs that the block requests. A local Ray is started with at least as
            many, else a recipe for a larger machine would wait forever.
        verbose: Show the output of all processes.
    """
    import ray

    if not verbose:
        quiet_loggers()
    started = not ray.is_initialized()
    if started:
        options: dict[str, Any] = {"log_to_driver": verbose}
        if not verbose:
            options["logging_level"] = logging.ERROR
        if "RAY_ADDRESS" not in os.environ:
            options["num_cpus"] = max(os.cpu_count() or 1, int(cpus + 0.999))
            options["include_dashboard"] = False
        start_ray(**options)
    if not verbose:
        quiet_loggers()  # again: ray.init resets the levels
    try:
        yield
    finally:
        if started:
            ray.shutdown()
