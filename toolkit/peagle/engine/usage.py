"""How an engine is used at the moment: requests, times, KV cache, acceptance, cost.

An engine of this machine is read through vLLM's ``/metrics``, whose counters begin with the engine.
"""

from __future__ import annotations

import http.client
import math
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pydantic import field_serializer
from pydantic.dataclasses import dataclass as pydantic_dataclass

from peagle.engine.process import NO_RESPONSE, response
from peagle.engine.state import LocalEngine
from peagle.errors import EngineError, Fix
from peagle.protocol import Counters, acceptance_length
from peagle.text import json_object
from peagle_serve.contract import SPECULATION

WINDOW_SECONDS = 300.0
"""How far back usage is measured by default."""

_TIMEOUT = 10.0


@pydantic_dataclass(frozen=True)
class Usage:
    """The use of a deployment or a local engine in the last ``window_seconds``. A number is
    ``None`` where it is unknown. Times are seconds, shares 0 to 1, ``at`` epoch seconds;
    ``running`` and ``waiting`` are requests at the end of the window; ``ttft`` and ``itl`` as in
    vLLM; ``notes`` say why numbers are missing."""

    name: str
    where: str
    state: str
    at: float
    window_seconds: float
    instance_type: str | None = None
    instances: int | None = None
    requests_per_minute: float | None = None
    requests_by_minute: tuple[float, ...] = ()
    running: float | None = None
    waiting: float | None = None
    error_share: float | None = None
    ttft_p50: float | None = None
    ttft_p90: float | None = None
    itl: float | None = None
    tokens_per_second: float | None = None
    kv_cache_share: float | None = None
    k: int | None = None
    acceptance_length: float | None = None
    acceptance_floor: float | None = None
    usd_per_hour: float | None = None
    usd_per_million_tokens: float | None = None
    notes: tuple[str, ...] = ()

    @field_serializer("at")
    def _write_in_utc(self, at: float) -> str:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class MetricsPage:
    """A page of ``/metrics`` at ``time`` (epoch seconds): the sums over all engines, by metric and,
    of a histogram, upper bound."""

    time: float
    totals: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, at: float) -> MetricsPage:
        """The samples of a page in Prometheus's text format; none of another page."""
        from prometheus_client.parser import text_string_to_metric_families

        totals = defaultdict[tuple[str, str], float](float)
        with suppress(ValueError, LookupError):
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if not math.isnan(sample.value):
                        totals[sample.name, sample.labels.get("le", "")] += sample.value
        return cls(at, totals)

    def total(self, name: str) -> float | None:
        """The sum of vLLM's metric; ``None`` without it."""
        return self.totals.get((f"vllm:{name}", ""))


class EngineMeter:
    """Measures an engine of this machine, at first over its whole life, then over the window."""

    def __init__(self, engine: LocalEngine, window_seconds: float = WINDOW_SECONDS) -> None:
        self._engine = engine
        self._window = window_seconds
        self._pages: deque[MetricsPage] = deque([MetricsPage(engine.started_at)])

    def read(self) -> Usage:
        """The use now. Raises EngineError if the engine does not answer."""
        page = MetricsPage.parse(read_metrics(self._engine), time.time())
        self._pages.append(page)
        while len(self._pages) > 2 and self._pages[1].time <= page.time - self._window:
            self._pages.popleft()
        return usage_between(self._engine, self._pages[0], page)


def usage_between(engine: LocalEngine, before: MetricsPage, now: MetricsPage) -> Usage:
    """What the engine did between two pages of its metrics."""
    seconds = max(now.time - before.time, 1e-3)

    def increase(name: str) -> float | None:
        total = now.total(name)
        return None if total is None else max(total - (before.total(name) or 0.0), 0.0)

    requests, tokens = increase("request_success_total"), increase("generation_tokens_total")
    gaps, gap_seconds = (
        increase(f"inter_token_latency_seconds_{what}") for what in ("count", "sum")
    )
    drafts, accepted = (
        int(increase(f"spec_decode_num_{what}_total") or 0)
        for what in ("drafts", "accepted_tokens")
    )
    waited = {
        float(bound): max(count - before.totals.get((name, bound), 0.0), 0.0)
        for (name, bound), count in now.totals.items()
        if name == "vllm:time_to_first_token_seconds_bucket" and bound
    }
    config = json_object(engine.environment.get(SPECULATION))
    k = config.get("num_speculative_tokens")
    return Usage(
        name=engine.name,
        where="local",
        state=engine.state,
        at=now.time,
        window_seconds=seconds,
        instances=1,
        requests_per_minute=None if requests is None else requests * 60 / seconds,
        running=now.total("num_requests_running"),
        waiting=now.total("num_requests_waiting"),
        ttft_p50=quantile(waited, 0.5),
        ttft_p90=quantile(waited, 0.9),
        itl=gap_seconds / gaps if gaps and gap_seconds is not None else None,
        tokens_per_second=None if tokens is None else tokens / seconds,
        kv_cache_share=now.total("kv_cache_usage_perc"),
        k=k if isinstance(k, int) else None,
        acceptance_length=acceptance_length(Counters(drafts, accepted_tokens=accepted)),
    )


def quantile(buckets: dict[float, float], share: float) -> float | None:
    """The value that ``share`` of a histogram's values do not exceed, by linear interpolation;
    ``None`` for an empty one, in the last bucket its lower bound."""
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if not total:
        return None
    lower, below = 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= share * total:
            if math.isinf(bound) or count == below:
                return lower
            return lower + (bound - lower) * (share * total - below) / (count - below)
        lower, below = bound, count
    return lower


def read_metrics(engine: LocalEngine) -> str:
    """The engine's page of metrics. Raises EngineError without an answer."""
    try:
        with response(engine.process.port, "/metrics", _TIMEOUT) as reply:
            if reply.status == http.HTTPStatus.OK:
                return reply.read().decode("utf-8", "replace")
            why = f"it answers {reply.status}"
    except NO_RESPONSE as error:
        why = str(error) or type(error).__name__
    fix = Fix("read the log", ("peagle", "local", "logs", engine.name))
    raise EngineError(f"the metrics of {engine.name} cannot be read: {why}", fix, "no-metrics")


def weighted_mean(pairs: Iterable[tuple[float, float]]) -> float | None:
    """The mean of values with their weights; ``None`` without any weight."""
    weighted = list(pairs)
    total = sum(weight for _, weight in weighted)
    return sum(value * weight for value, weight in weighted) / total if total else None
