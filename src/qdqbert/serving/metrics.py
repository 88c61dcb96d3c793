"""Metrics of a server, in Prometheus's format."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """Counts of a server. Each server has its own."""

    def __init__(self) -> None:
        """Start all counts at 0."""
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "qdqbert_requests", "Requests.", ("route", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "qdqbert_request_seconds",
            "Time from the first byte of a request to the last one of the response.",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.inputs = Counter("qdqbert_inputs", "Inputs.", ("model",), registry=self.registry)
        self.tokens = Counter("qdqbert_tokens", "Tokens.", ("model",), registry=self.registry)
        self.truncated = Counter(
            "qdqbert_truncated_inputs",
            "Inputs that were longer than the model's limit and were cut.",
            ("model",),
            registry=self.registry,
        )
        self.batch_requests = Histogram(
            "qdqbert_batch_requests",
            "Requests that ran together.",
            ("model",),
            buckets=_SIZES,
            registry=self.registry,
        )

    def observer(self, model: str) -> Callable[[int, int, int], None]:
        """Return the counter of a model's batches; see `Batcher`."""

        def observe(requests: int, inputs: int, tokens: int) -> None:
            self.batch_requests.labels(model).observe(requests)
            self.inputs.labels(model).inc(inputs)
            self.tokens.labels(model).inc(tokens)

        return observe

    def count_truncated(self, model: str, inputs: int) -> None:
        """Count inputs that were cut."""
        self.truncated.labels(model).inc(inputs)

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count a request and its time."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def watch_queues(self, queues: Callable[[], dict[str, int]]) -> None:
        """Report how many inputs wait for each model, whenever somebody asks."""
        self.registry.register(_Queues(queues))

    def total(self, name: str) -> int:
        """Return the sum of a counter over its labels."""
        families = {each.name: each for each in self.registry.collect()}
        samples = families[name].samples
        return round(sum(each.value for each in samples if each.name.endswith("_total")))

    def text(self) -> bytes:
        """Return all metrics."""
        return generate_latest(self.registry)


class _Queues:
    """Reads the lengths of queues when metrics are collected."""

    def __init__(self, queues: Callable[[], dict[str, int]]) -> None:
        self._queues = queues

    def collect(self) -> Sequence[Metric]:
        found = GaugeMetricFamily("qdqbert_queued_inputs", "Inputs that wait.", labels=("model",))
        for model, queued in self._queues().items():
            found.add_metric((model,), queued)
        return [found]
