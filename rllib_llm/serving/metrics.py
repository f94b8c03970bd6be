"""Metrics of a server in Prometheus's text format."""

from __future__ import annotations

import os

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

CONTENT_TYPE = CONTENT_TYPE_LATEST
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable with the folder in which replicas share their numbers."""

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class ServerMetrics:
    """Counts requests, tokens and times.

    The replicas on one machine share a folder, so that any of them reports all.
    """

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.requests = Counter(
            "rllib_llm_requests",
            "Answered requests.",
            ["model", "path", "status"],
            registry=registry,
        )
        self.seconds = Histogram(
            "rllib_llm_request_seconds",
            "Seconds from a request's arrival to the end of its response.",
            ["model", "path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.tokens = Counter(
            "rllib_llm_tokens",
            "Tokens of prompts, and sampled tokens.",
            ["model", "kind"],
            registry=registry,
        )
        self.running = Gauge(
            "rllib_llm_running_requests",
            "Requests that are being answered.",
            registry=registry,
            multiprocess_mode="livesum",
        )

    def count_tokens(self, model: str, prompt: int, sampled: int) -> None:
        """Count the tokens of a response."""
        self.tokens.labels(model, "prompt").inc(prompt)
        self.tokens.labels(model, "sampled").inc(sampled)

    def text(self) -> bytes:
        """Return all metrics, of all replicas on this machine."""
        registry = self._registry
        if FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry)
