"""Count the drafts of an endpoint whose image exposes no counters, such as AWS's own: from vLLM's
lines of statistics in the log of every instance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from peagle.aws import runtime, sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AccessDenied
from peagle.bench.models import CounterSource
from peagle.deploy.proving.statistics import StatisticsReader
from peagle.errors import EngineError, Fix
from peagle.protocol import Counters

_SOON_SECONDS = 0.05
"""No answer over the network takes less than that."""


class LogCounters:
    """Reads what all instances of the endpoint ``name`` count from now on.

    The first line of each instance may include what it drafted up to 10 s before. A reading waits
    for the statistics, up to 45 s on AWS; the first does not, nor one soon after another, since
    nothing was sent in between. Raises EngineError where there is no such
    endpoint, and AccessDenied where the log may not be read.
    """

    def __init__(self, aws: Aws, name: str, clock: Clock | None = None) -> None:
        live = sagemaker.describe(aws, name)
        if live is None:
            fix = Fix("look at its state", ("peagle", "status", name))
            raise EngineError(f"the endpoint {name} does not exist", fix)
        self._instances = max(live.engine_count, 1)
        self._clock = clock or Clock()
        self._reader = StatisticsReader(aws, live, self._clock)
        self._is_amazon = aws.is_amazon
        self._read_at: float | None = None

    def read(self) -> Counters:
        """The counts of all instances together, of everything that was answered until now."""
        if self._read_at is None:
            self._reader.read()
        elif not self._is_amazon or self._clock.now() > self._read_at + _SOON_SECONDS:
            self._reader.wait(self._instances)
        self._read_at = self._clock.now()
        return sum(self._reader.counts.counted.values(), Counters(0, 0, 0))


@dataclass(frozen=True)
class EndpointCounters:
    """How to read what an endpoint counts, ``None`` where that is unknown, and from where."""

    read: Callable[[], Counters | None]
    source: CounterSource


NO_COUNTERS = EndpointCounters(lambda: None, "counters")


def counters_of_endpoint(aws: Aws, name: str, clock: Clock | None = None) -> EndpointCounters:
    """The engine's counters where one instance exposes them, else those in the log; none where that
    may not be read."""
    live = sagemaker.describe(aws, name)
    if live and live.engine_count == 1 and runtime.counters(aws, name) is not None:
        return EndpointCounters(partial(runtime.counters, aws, name), "counters")
    try:
        logged = LogCounters(aws, name, clock)
        logged.read()
    except (AccessDenied, EngineError):
        return NO_COUNTERS
    return EndpointCounters(logged.read, "log")
