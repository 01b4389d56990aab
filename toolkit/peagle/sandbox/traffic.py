"""The metrics of ``AWS/SageMaker``: what an endpoint's variants publish about their requests.

    Invocations                                    1 per request
    ModelLatency, FirstChunkLatency                microseconds; FirstChunkLatency of streams only
    Invocation4XXErrors, Invocation5XXErrors,      1 or 0 per request
    InvocationModelErrors, MidStreamErrors
    ConcurrentRequestsPerModel, ...PerCopy         of each engine, every second (on AWS, 10)
    NoCapacityInvocationFailures                   1 per request to a component without a copy

Every metric has the dimensions EndpointName and VariantName; those of requests also once more with
EndpointConfigName, as during an update on AWS. The metrics of an inference component have the
dimension InferenceComponentName only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from peagle.sandbox.metrics import STORE, Metric
from peagle.sandbox.relay import BrokenResponse, ResponseTimeout

METRIC_NAMESPACE = "AWS/SageMaker"
SAMPLE_SECONDS = 1.0
_MICROSECONDS = 1e6


@dataclass(frozen=True)
class MetricSource:
    """What publishes metrics of its requests: a variant, or with ``component`` a component on it.
    ``config`` is the configuration of the engine that answers."""

    region: str
    endpoint: str
    variant: str
    component: str = ""
    config: str = ""

    @property
    def dimensions(self) -> frozenset[tuple[str, str]]:
        if self.component:
            return frozenset({("InferenceComponentName", self.component)})
        return frozenset({("EndpointName", self.endpoint), ("VariantName", self.variant)})

    def metric(self, name: str) -> Metric:
        """One of its metrics, without the configuration."""
        return Metric(self.region, METRIC_NAMESPACE, name, self.dimensions)

    def publish(self, name: str, value: float) -> None:
        """Publish one value; with ``config``, by the configuration too."""
        pairs = self.dimensions
        STORE.add(Metric(self.region, METRIC_NAMESPACE, name, pairs), value)
        if self.config and not self.component:
            own = pairs | {("EndpointConfigName", self.config)}
            STORE.add(Metric(self.region, METRIC_NAMESPACE, name, own), value)


class RequestMetrics:
    """Measures one request to an instance, or a copy, and publishes the metrics of ``source``.
    ``begun`` is when it arrived, by ``time.monotonic``."""

    def __init__(self, source: MetricSource, begun: float) -> None:
        self._publish = source.publish
        self._begun = begun
        self._sent = time.monotonic()
        self._ended = False
        self._publish("Invocations", 1)

    def chunks(self, status: int, is_stream: bool, body: Iterator[bytes]) -> Iterator[bytes]:
        """``body`` as it is; its first chunk and its end are measured."""
        is_first, is_broken = is_stream, False
        try:
            for chunk in body:
                if is_first:
                    self._publish_since("FirstChunkLatency", self._begun)
                    is_first = False
                yield chunk
        except (BrokenResponse, ResponseTimeout):
            is_broken = True
            raise
        finally:
            self.end(status, is_broken)

    def end(self, status: int, is_broken: bool = False) -> None:
        """Publish how it ended: with the engine's ``status`` (0: no response). May be repeated."""
        if self._ended:
            return
        self._ended = True
        failed = is_broken or not 200 <= status < 300
        self._publish("Invocation4XXErrors", 400 <= status < 500)
        self._publish("Invocation5XXErrors", status >= 500 or status == 0)
        self._publish("InvocationModelErrors", failed)
        self._publish("MidStreamErrors", is_broken)
        self._publish_since("ModelLatency", self._sent)

    def _publish_since(self, name: str, begun: float) -> None:
        self._publish(name, (time.monotonic() - begun) * _MICROSECONDS)


def start_sampling(running: Callable[[], Iterator[tuple[MetricSource, int]]]) -> None:
    """Publish the number of requests in progress of every instance and copy, for as long as the
    process runs. ``running`` gives each with its requests in progress."""

    def sample() -> None:
        while True:
            time.sleep(SAMPLE_SECONDS)
            for source, in_progress in running():
                each = "Copy" if source.component else "Model"
                source.publish(f"ConcurrentRequestsPer{each}", in_progress)

    threading.Thread(target=sample, name="concurrent requests", daemon=True).start()
