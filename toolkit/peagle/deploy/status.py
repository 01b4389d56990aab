"""The state of a deployment, its price, its cost so far and how it is used now, for people and as
JSON.

The cost so far is an estimate: all the time since the endpoint was requested, at the price of what
runs now; AWS's own account of it is the bill. vLLM writes a line every 10 seconds in which it
works; the time between two tokens is requests that run, divided by their tokens per second.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from peagle import engine_log
from peagle.aws import autoscaling, sagemaker
from peagle.aws.autoscaling import Bounds
from peagle.aws.client import Aws, Clock
from peagle.aws.cloudwatch import PERIOD_SECONDS, MetricQuery, metric_data
from peagle.aws.errors import AccessDenied, Missing
from peagle.aws.runtime import LogEvent, Tail
from peagle.aws.sagemaker import BUSY, Endpoint
from peagle.deploy import records, revisions
from peagle.deploy.discover import Prices, find_deployments
from peagle.deploy.preflight import Preflight
from peagle.deploy.scaling import with_end_in
from peagle.deploy.state import Deployment, ListedResource, Revision, Served, utc_text
from peagle.engine.usage import WINDOW_SECONDS, Usage, weighted_mean
from peagle.errors import PeagleError, Refused, UserError
from peagle.frozen import Result
from peagle.planning.plan import FloorSource, Plan
from peagle.proof import Proof
from peagle.protocol import ENGINE_TAG, STAND_IN_TAG, Counters, acceptance_length, log_group
from peagle.render.alarms import METRIC_NAMESPACE, metric_dimensions
from peagle.render.requests import VARIANT
from peagle.store import SANDBOX
from peagle.text import usd_per_million

ENDED = "Ended"
"""The state of a deployment whose endpoint was deleted at its end time."""

GONE = ("Missing", ENDED)
"""States of a deployment without its endpoint, which was in service."""


def is_past_end(record: Deployment, now: float | None = None) -> bool:
    """Whether the end time has passed."""
    moment = Clock().now() if now is None else now
    return record.ends_at is not None and record.ends_at <= moment


def decide_state(record: Deployment, live: Endpoint | None) -> str:
    """SageMaker's status of the endpoint, or one of ours:

    ``Incomplete``  deploy was interrupted before it requested the endpoint
    ``Missing``     the endpoint was in service, and was deleted without `peagle destroy`
    ``Ended``       the endpoint was deleted at its end time
    ``Unproved``    it is in service, but its acceptance is not proved
    """
    serving = record.serving
    if live is None:
        return ENDED if is_past_end(record) else "Missing" if serving else "Incomplete"
    if live.status != "InService":
        return live.status
    serves = revisions.revision_in_service(record, live.revision) is serving
    return "InService" if serving and serving.is_proved and serves else "Unproved"


def usd_per_hour_now(record: Deployment, live: Endpoint | None) -> float | None:
    """USD per hour of the instances that run now, or that start; ``None`` when unknown."""
    if live is None:
        return None if record.serving else 0.0
    if live.status == "Failed":
        return 0.0
    if revisions.compares_now(record, live):
        prices = revisions.compute_usd_per_hour(record, live).values()
        return None if None in prices else round(sum(price or 0 for price in prices), 4)
    served = revisions.shown_revision(record, live).served
    if served.usd_per_hour is None or not served.instance_count:
        return served.usd_per_hour
    running = live.instance_count or (served.instance_count if live.status in BUSY else 0)
    return served.with_instances(running).usd_per_hour


def price_remaining(aws: Aws, record: Deployment) -> float | None:
    """``usd_per_hour_now`` after an error; an endpoint that cannot be looked at counts."""
    if not record.of_type("Endpoint"):
        return 0.0
    try:
        live = sagemaker.describe(aws, record.name)
        return usd_per_hour_now(record, live) if live else 0.0
    except PeagleError:
        return record.current.served.usd_per_hour


def require_known_price(plan: Plan, accepted: bool) -> None:
    """Raise Refused for a plan without a known price, unless that is accepted."""
    if plan.price_per_hour_usd is None and not accepted:
        raise Refused(
            f"the price of {plan.instance_type} in {plan.region} is unknown",
            "look up the price, then add --accept-unknown-price",
            code="price-unknown",
        )


class DeploymentSummary(Result):
    """What ``list`` and ``status`` tell of a deployment, in USD, seconds and UTC."""

    name: str
    state: str
    region: str
    pair: str
    price_per_hour_usd: float | None
    price_per_day_usd: float | None
    cost_so_far_usd: float | None
    ends_at: str | None
    seconds_left: int | None
    acceptance_length: float | None
    speculation: bool
    stand_in: str | None
    owner: str


class ListedDeployment(DeploymentSummary):
    """A row of ``list``: with the number of instances, and the bounds of what scales."""

    instances_running: int
    compared_share: float | None
    min_instances: int | None
    max_instances: int | None
    min_copies: int | None
    max_copies: int | None


class PreviousRevision(Result):
    """The revision to which ``rollback`` returns."""

    endpoint_config: str
    fingerprint: str
    k: int | None
    image: str


class ComparedPlan(Result):
    """The plan that ``compare`` added to the endpoint."""

    state: Literal["running", "starting", "not-in-service"]
    variant: str
    share: float
    since: float | None
    pair: str
    k: int | None
    speculation: bool
    instance_type: str
    instance_count: int
    instances_running: int
    price_per_hour_usd: float | None
    endpoint_config: str
    fingerprint: str


class DeploymentStatus(DeploymentSummary):
    """The whole state of a deployment. ``copies`` only where the endpoint has inference
    components."""

    account: str
    sandbox: bool
    acceptance_per_position: tuple[float, ...]
    acceptance_floor: float | None
    acceptance_floor_source: FloorSource | None
    drafts: int | None
    proved: bool
    proof: Proof | None
    openai_base_url: str | None
    price_date: str | None
    instance_type: str
    instance_count: int
    instances_running: int
    scaling: dict[str, float | None] | None
    copies: int | None = None
    copies_running: int | None = None
    vllm: str | None
    vllm_here: str | None
    k: int | None
    endpoint_status: str | None
    endpoint_config: str | None
    failure_reason: str | None
    failure_fix: str | None
    failure_command: tuple[str, ...] | None
    role: str
    fingerprint: str
    previous: PreviousRevision | None
    comparison: ComparedPlan | None
    billing_since: float | None
    resources: tuple[ListedResource, ...]


def _summary(
    record: Deployment, live: Endpoint | None, revision: Revision, tags: Mapping[str, str]
) -> DeploymentSummary:
    now, ends_at, price = Clock().now(), record.ends_at, usd_per_hour_now(record, live)
    cost, until, rate = None, now, price
    since = record.billing_since or (live.created if live else None)
    if live is None and ends_at is not None and record.serving:
        until, rate = min(now, ends_at), record.serving.served.usd_per_hour
    if live is None and record.serving is None:
        cost = 0.0
    elif rate is not None and since is not None:
        cost = round(max(0.0, until - since) / 3600 * rate, 2)
    return DeploymentSummary(
        name=record.name,
        state=decide_state(record, live),
        region=record.region,
        pair=revision.served.pair,
        price_per_hour_usd=price,
        price_per_day_usd=None if price is None else round(price * 24, 2),
        cost_so_far_usd=cost,
        ends_at=None if ends_at is None else utc_text(ends_at),
        seconds_left=None if ends_at is None else max(0, int(ends_at - now)),
        acceptance_length=revision.proof.acceptance_length if revision.proof else None,
        speculation=revision.served.k > 0,
        stand_in=tags.get(STAND_IN_TAG),
        owner=record.owner or "peagle",
    )


def deployment_status(aws: Aws, record: Deployment) -> DeploymentStatus:
    """The state of a deployment. Raises CloudError."""
    live = sagemaker.describe(aws, record.name)
    revision = revisions.shown_revision(record, live)
    served, proof = revision.served, revision.proof
    speculation = revision.plan.speculation if revision.plan else None
    tags = sagemaker.readable_tags(aws, live) or {}
    record = with_end_in(record, tags)
    failure = record.failure
    bounds = None
    with suppress(AccessDenied):
        bounds = autoscaling.registered(aws, live.name) if live else None
    variant = (
        revisions.of_variant(live, VARIANT)
        if live and revisions.compares_now(record, live)
        else live
    )
    copies_running = None
    if served.copies is not None:
        copies_running = live.engine_count if live and live.component else 0
    return DeploymentStatus(
        **dict(_summary(record, live, revision, tags)),
        account=record.account,
        sandbox=record.scope == SANDBOX,
        acceptance_per_position=proof.acceptance_per_position if proof else (),
        acceptance_floor=speculation.acceptance_floor if speculation else None,
        acceptance_floor_source=speculation.acceptance_floor_source if speculation else None,
        drafts=proof.drafts if proof else None,
        proved=revision.is_proved,
        proof=proof,
        openai_base_url=aws.openai_base_url(live.name, live.hosts_components) if live else None,
        price_date=served.price_date,
        instance_type=served.instance_type,
        instance_count=served.configured_count or served.instance_count,
        instances_running=variant.instance_count if variant else 0,
        scaling=bounds.by_name if bounds else None,
        copies=served.copies,
        copies_running=copies_running,
        vllm=served.vllm,
        vllm_here=tags.get(ENGINE_TAG, "").removeprefix("vllm ") or None,
        k=served.k or None,
        endpoint_status=live.status if live else None,
        endpoint_config=live.endpoint_config if live else None,
        failure_reason=(live and live.failure) or (failure.message if failure else None),
        failure_fix=(failure.fix if failure else "") or None,
        failure_command=(failure.command if failure else ()) or None,
        role=revision.role,
        fingerprint=revision.fingerprint,
        previous=_previous(record, live),
        comparison=_comparison(record, live),
        billing_since=record.billing_since,
        resources=record.listed_resources,
    )


def _previous(record: Deployment, live: Endpoint | None) -> PreviousRevision | None:
    target = revisions.rollback_target(record)
    if target is None or record.owner or (live and live.revision == target.name):
        return None
    return PreviousRevision(
        endpoint_config=target.endpoint_config,
        fingerprint=target.fingerprint,
        k=target.served.k or None,
        image=target.served.image,
    )


def _comparison(record: Deployment, live: Endpoint | None) -> ComparedPlan | None:
    comparison = record.comparison
    if comparison is None:
        return None
    served = comparison.candidate.served
    running = live if revisions.compares_now(record, live) else None
    starts = live is not None and live.pending_revision == comparison.config
    prices = revisions.compute_usd_per_hour(record, running) if running else {}
    return ComparedPlan(
        state="running" if running else "starting" if starts else "not-in-service",
        variant=revisions.CANDIDATE,
        share=comparison.share,
        since=comparison.since,
        pair=served.pair,
        k=served.k or None,
        speculation=served.k > 0,
        instance_type=served.instance_type,
        instance_count=served.configured_count or served.instance_count,
        instances_running=running.running.get(revisions.CANDIDATE, 0) if running else 0,
        price_per_hour_usd=prices.get(revisions.CANDIDATE),
        endpoint_config=comparison.candidate.endpoint_config,
        fingerprint=comparison.candidate.fingerprint,
    )


@dataclass(frozen=True)
class Listing:
    """The rows of ``list``, the regions that may have more, and the damaged records."""

    rows: tuple[ListedDeployment, ...]
    unknown: tuple[AccessDenied, ...]
    damaged: tuple[UserError, ...] = ()


def list_deployments(aws: Aws, regions: Iterable[str], prices: Prices) -> Listing:
    """The deployments of the account in these regions, by our tags and this machine's records. A
    region whose tags may not be read shows the records only, and counts as unknown."""
    rows: list[ListedDeployment] = []
    unknown: list[AccessDenied] = []
    readable, damaged = records.readable_records(aws.scope)
    for region in regions:
        there = aws.in_region(region)
        tagged: dict[str, Deployment] = {}
        try:
            tagged = {each.name: each for each in find_deployments(there, prices)}
        except AccessDenied as denied:
            unknown.append(denied)
        recorded = {record.name: record for record in readable if record.region == region}
        scaled: Mapping[str, Bounds] = {}
        if tagged or recorded:
            with suppress(AccessDenied):
                scaled = autoscaling.all_registered(there)
        for name in sorted({*tagged, *recorded}):
            rows.append(_row(there, recorded.get(name), tagged.get(name), scaled.get(name)))
    return Listing(tuple(rows), tuple(unknown), damaged)


def _row(
    aws: Aws, record: Deployment | None, tagged: Deployment | None, bounds: Bounds | None
) -> ListedDeployment:
    """One deployment, by its record unless the account serves something else."""
    deployment = record or tagged
    assert deployment is not None
    live = sagemaker.describe(aws, deployment.name)
    if live and record and tagged:
        same = (record.id, record.owner) == (tagged.id, tagged.owner)
        if not (same and revisions.revision_in_service(record, live.revision)):
            deployment = tagged
    tags = sagemaker.readable_tags(aws, live) or {}
    deployment = with_end_in(deployment, tags)
    bounded: dict[str, Any] = dict.fromkeys(_BOUNDS) | (bounds.by_name if bounds else {})
    return ListedDeployment(
        **dict(_summary(deployment, live, revisions.shown_revision(deployment, live), tags)),
        instances_running=live.instance_count if live else 0,
        compared_share=deployment.comparison.share if deployment.comparison else None,
        **{name: bounded[name] for name in _BOUNDS},
    )


_BOUNDS = ("min_instances", "max_instances", "min_copies", "max_copies")


def read_stand_in(aws: Aws, name: str) -> str | None:
    """What the sandbox serves instead of the endpoint's target; ``None`` if it serves that."""
    tags = sagemaker.readable_tags(aws, sagemaker.describe(aws, name)) or {}
    return tags.get(STAND_IN_TAG)


def endpoint_created(aws: Aws, name: str) -> float | None:
    """When SageMaker created the endpoint, in epoch seconds; ``None`` without such an endpoint."""
    live = sagemaker.describe(aws, name)
    return live.created if live else None


_POLL_SECONDS = 2.0

_SANDBOX_LOG_SECONDS = 1.0
"""Seconds between two lines of vLLM's statistics in the sandbox."""

_FRESH_INTERVALS = 4
"""An instance without a line for so long is idle."""

_LINES = '?"Avg generation throughput" ?"SpecDecoding metrics"'
_MICROSECONDS = 1e6
_STATISTICS = {
    "requests": ("Invocations", "Sum"),
    "errors": ("Invocation5XXErrors", "Sum"),
    "ttft_p50": ("FirstChunkLatency", "p50"),
    "ttft_p90": ("FirstChunkLatency", "p90"),
    "streams": ("FirstChunkLatency", "SampleCount"),
}


def endpoint_log(
    aws: Aws, record: Deployment, since: float | None = None, follow: bool = False
) -> Iterator[LogEvent]:
    """The lines of the endpoint's log from ``since`` (epoch seconds; by default its creation) on;
    with ``follow`` it never ends."""
    begun = since or endpoint_created(aws, record.name) or record.billing_since or 0.0
    tail = Tail(aws, record.name, begun, record.current.served.copies is not None)
    yield from tail.new()
    while follow:
        time.sleep(_POLL_SECONDS)
        yield from tail.new()


def reported_warm_start(
    aws: Aws, preflight: Preflight, begun: float
) -> engine_log.WarmStart | None:
    """What the log reports about a warm start of the engine that a deploy has started at ``begun``,
    in epoch seconds."""
    plan = preflight.desired.plan
    if preflight.change not in ("create", "update") or not plan.mounts:
        return None
    created = endpoint_created(aws, plan.name) if preflight.change == "create" else 0
    try:
        events = Tail(aws, plan.name, created or begun, plan.copies is not None).drain()
    except PeagleError:
        return None  # the endpoint is in service; its log is optional
    return engine_log.warm_start_in([event.raw for event in events])


def read_endpoint_usage(
    aws: Aws, record: Deployment, window_seconds: float = WINDOW_SECONDS
) -> Usage:
    """The use in the last ``window_seconds``, or since the endpoint was created; not that of the
    candidate in a comparison. What may not be read is missing, and the notes say so."""
    now = time.time()
    live = sagemaker.describe(aws, record.name)
    window_seconds = min(window_seconds, max(now - live.created, 1.0)) if live else window_seconds
    revision = revisions.shown_revision(record, live)
    copies = revision.served.copies is not None
    notes: list[str] = []
    statistics = _statistics(aws, record.name, now - window_seconds, copies, notes)
    price = usd_per_hour_now(record, live)
    if live and revisions.compares_now(record, live):
        notes.append("the candidate is not counted; `peagle compare` reports on both plans")
        price = revisions.compute_usd_per_hour(record, live)[VARIANT]
        live = revisions.of_variant(live, VARIANT)
    usage = Usage(
        name=record.name,
        where="sandbox" if aws.in_sandbox else "aws",
        state=decide_state(record, live),
        at=now,
        window_seconds=window_seconds,
        instances=live.instance_count if live else 0,
        usd_per_hour=price,
    )
    used = _used(aws, usage, revision, metric_dimensions(record.name, copies), statistics, notes)
    return replace(used, notes=tuple(notes))


def _used(
    aws: Aws,
    usage: Usage,
    revision: Revision,
    dimensions: dict[str, str],
    statistics: LogStatistics,
    notes: list[str],
) -> Usage:
    """``usage`` with what the engines of a revision do. A percentile of several minutes is the mean
    of theirs, weighted by their requests."""
    served, window_seconds = revision.served, usage.window_seconds
    queries = {
        query: MetricQuery(METRIC_NAMESPACE, metric, stat, dimensions)
        for query, (metric, stat) in _STATISTICS.items()
    }
    minutes: dict[str, dict[float, float]] = {query: {} for query in queries}
    try:
        minutes = metric_data(aws, queries, usage.at - window_seconds, usage.at)
    except AccessDenied as denied:
        notes.append(f"requests and TTFT are unknown: {denied.message}")
    answered, streams = minutes["requests"], minutes["streams"]
    count = sum(answered.values())
    by_minute: tuple[float, ...] = ()
    if answered:
        first, last = min(answered), max(answered)
        places = range(round((last - first) / PERIOD_SECONDS) + 1)
        by_minute = tuple(answered.get(first + place * PERIOD_SECONDS, 0.0) for place in places)
    p50, p90 = (
        weighted_mean(
            (value / _MICROSECONDS, streams.get(minute, 0.0))
            for minute, value in minutes[name].items()
        )
        for name in ("ttft_p50", "ttft_p90")
    )
    speculation = revision.plan.speculation if revision.plan else None
    interval = log_seconds(served, aws.in_sandbox)
    tokens = statistics.tokens_per_second(window_seconds, interval)
    newest = statistics.newest(usage.at - _FRESH_INTERVALS * interval)
    shares = [load.kv_cache_share for load in newest if load.kv_cache_share is not None]
    idle = 0.0 if statistics.loads and not newest else None  # all have been idle since
    return replace(
        usage,
        instance_type=served.instance_type,
        requests_per_minute=count * 60 / window_seconds if answered else None,
        requests_by_minute=by_minute,
        error_share=sum(minutes["errors"].values()) / count if count else None,
        ttft_p50=p50,
        ttft_p90=p90,
        running=sum(load.running for load in newest) if statistics.loads else None,
        waiting=sum(load.waiting for load in newest) if statistics.loads else None,
        itl=statistics.itl,
        tokens_per_second=tokens,
        kv_cache_share=sum(shares) / len(shares) if shares else idle,
        k=served.k or None,
        acceptance_length=acceptance_length(statistics.counters),
        acceptance_floor=speculation.acceptance_floor if speculation else None,
        usd_per_million_tokens=usd_per_million(usage.usd_per_hour, tokens),
    )


@dataclass
class LogStatistics:
    """The lines of statistics in a log: of each stream, which is one instance, in their order."""

    loads: dict[str, list[tuple[float, engine_log.EngineLoad]]] = field(default_factory=dict)
    counters: Counters = field(default_factory=lambda: Counters())

    def add(self, stream: str, when: float, line: str) -> None:
        """Count a line of a stream; other lines are ignored."""
        counted, load = engine_log.counters_in_log(line), engine_log.load_in_log(line)
        if counted:
            self.counters += counted
        if load:
            self.loads.setdefault(stream, []).append((when, load))

    @property
    def _all(self) -> list[engine_log.EngineLoad]:
        return [load for loads in self.loads.values() for _, load in loads]

    def newest(self, since: float) -> list[engine_log.EngineLoad]:
        """The last line of each instance that is not older than ``since`` (epoch seconds)."""
        last = (loads[-1] for loads in self.loads.values())
        return [load for when, load in last if when >= since]

    @property
    def itl(self) -> float | None:
        """Mean seconds between two output tokens of a request, of intervals that end while
        requests run."""
        busy = [load for load in self._all if load.running and load.tokens_per_second]
        tokens = sum(load.tokens_per_second for load in busy)
        return sum(load.running for load in busy) / tokens if tokens else None

    def tokens_per_second(self, window_seconds: float, interval: float) -> float | None:
        """Output tokens of all instances per second of the window; ``interval`` is that between two
        lines, in seconds. An engine without work writes no lines."""
        if not self.loads:
            return None
        return sum(load.tokens_per_second for load in self._all) * interval / window_seconds


def log_seconds(served: Served, in_sandbox: bool) -> float:
    """Seconds between two lines of statistics."""
    return engine_log.log_interval(
        served.variables, _SANDBOX_LOG_SECONDS if in_sandbox else engine_log.LOG_SECONDS
    )


def _statistics(aws: Aws, name: str, start: float, copies: bool, notes: list[str]) -> LogStatistics:
    """The statistics of the instances of the first variant, or of all copies."""
    statistics = LogStatistics()
    events = aws.items(
        "logs", "filter_log_events", "events", logGroupName=log_group(name, copies),
        startTime=int(start * 1000), filterPattern=_LINES,
    )  # fmt: skip
    try:
        for event in events:
            stream = event["logStreamName"]
            if copies or not stream.startswith(f"{revisions.CANDIDATE}/"):
                statistics.add(stream, event["timestamp"] / 1000, event["message"])
    except Missing:
        notes.append("the endpoint has no log yet")
    except AccessDenied as denied:
        notes.append(f"ITL, KV cache, acceptance and tokens are unknown: {denied.message}")
    return statistics
