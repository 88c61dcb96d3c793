"""Metrics of a server, in Prometheus's format."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector

SHARED_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable that lets prometheus_client count in files, which processes share."""

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """Counts of a server, which may have several processes."""

    def __init__(
        self, shared: Path | None = None, *, labels: Mapping[str, str] | None = None
    ) -> None:
        """Count in this process.

        Args:
            shared: Folder of the files that all processes of the server count in. They need it as
                `SHARED_VARIABLE` in their environment, from their start.
            labels: Labels of all metrics.
        """
        self._shared = shared
        self._labels = dict(labels or {})
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
        self.queued = Gauge(
            "qdqbert_queued_inputs",
            "Inputs that wait.",
            ("model",),
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        # Looking up labels takes longer than counting.
        self._of_route = functools.cache(self._labelled)
        self._queues: Callable[[], dict[str, int]] = dict

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
        requests, times = self._of_route(route, status)
        requests.inc()
        times.observe(seconds)
        if self._shared is not None:
            # Another process may be asked.
            self._count_queues()

    def _labelled(self, route: str, status: int) -> tuple[Counter, Histogram]:
        return self.requests.labels(route, str(status)), self.seconds.labels(route)

    def watch_queues(self, queues: Callable[[], dict[str, int]]) -> None:
        """Report how many inputs wait for each model, whenever somebody asks."""
        self._queues = queues

    def _count_queues(self) -> None:
        for model, queued in self._queues().items():
            self.queued.labels(model).set(queued)

    def total(self, name: str) -> int:
        """Return the sum of a counter over its labels."""
        families = {each.name: each for each in self._of_all().collect()}
        samples = families[name].samples if name in families else ()
        return round(sum(each.value for each in samples if each.name.endswith("_total")))

    def text(self) -> bytes:
        """Return all metrics, of all processes."""
        self._count_queues()
        return generate_latest(_Labelled(self._of_all(), self._labels))

    def _of_all(self) -> CollectorRegistry:
        if self._shared is None:
            return self.registry
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(self._shared))  # type: ignore[no-untyped-call]
        return registry


class _Labelled(CollectorRegistry):
    """The metrics of a registry, with more labels."""

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        super().__init__()
        self._registry, self._added = registry, labels

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        for family in self._registry.collect():
            family.samples = [
                each._replace(labels={**self._added, **each.labels}) for each in family.samples
            ]
            yield family
