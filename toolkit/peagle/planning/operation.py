"""What happens to a deployment beside serving: when it ends by itself, and what may be observed of
it. A plan says how long; the end time is known when it is applied."""

from __future__ import annotations

import re

from peagle.errors import Fix, UserError
from peagle.findings import Finding, error, note, warning
from peagle.options import Options
from peagle.planning.plan import AlarmKind, Capture, Decision, Limit, Observe, Plan, Reason, decide
from peagle.planning.rollout import alarms_for
from peagle.s3uri import S3Uri, lower_scheme
from peagle.text import format_duration, format_usd
from peagle_serve.contract import is_s3_uri

COPIES_BEFORE_SECONDS = 600
"""How long before the endpoint its copies are deleted; the deletion of a component takes some
minutes. SageMaker refuses to delete an endpoint that has copies or is changing: the schedule's
retry policy is then a day long, and what still exists after that ``peagle reap`` deletes."""

LOG_DAYS = (
    1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922,
    3288, 3653,
)  # fmt: skip
"""The retentions that CloudWatch Logs has, in days."""

DEFAULT_LOG_DAYS = 30
DEFAULT_PERCENT = 100
DEFAULT_CAPTURE_DAYS = 30

USD_PER_DASHBOARD, USD_PER_ALARM_METRIC, USD_PER_METRIC = 3.0, 0.1, 0.3
"""CloudWatch's prices per month in us-east-1, after the free tier: a dashboard, a metric of an
alarm, and a metric that a filter makes of a log."""

_COUNTED_METRICS = 2
"""The acceptance length comes from two metrics of the log: accepted and drafted tokens."""

_TOPIC = re.compile(r"arn:aws[a-z-]*:sns:([a-z0-9-]+):[0-9]{12}:[A-Za-z0-9_-]{1,256}", re.ASCII)


def choose_limit(
    options: Options,
    region: str,
    usd_per_hour: float | None,
    start_seconds: int,
    copies: bool = False,
) -> Decision[Limit | None]:
    """The limit that the options set, of an endpoint with or without ``copies``; ``usd_per_hour``
    is the price at the most instances, and ``start_seconds`` how long the endpoint may take to
    serve."""
    ttl, budget = options.ttl, options.budget
    if ttl is None and budget is None:
        return Decision(Limit() if options.no_limit else None)
    limit, findings = Limit(ttl_seconds=ttl, budget_usd=budget), list[Finding]()
    seconds = limit_seconds(limit, usd_per_hour)
    if budget is not None and not usd_per_hour:
        message = f"{format_usd(budget)} last for an unknown time: the price is unknown"
        command = ("peagle", "catalog", "refresh", "--prices", "--region", region)
        fix = Fix("set --ttl instead, or get prices from AWS's price list", command)
        findings.append(error("budget-without-price", "budget", message, fix))
    elif seconds is not None and seconds < start_seconds:
        message = (
            f"the endpoint is deleted after {format_duration(seconds)}; to start, it may take up "
            f"to {format_duration(start_seconds)}"
        )
        where = "budget" if ttl is None else "ttl"
        findings.append(warning("limit-before-start", where, message, "set a later end"))
    if seconds is None:
        return Decision(limit, findings=tuple(findings))
    because = "EventBridge Scheduler deletes the endpoint then"
    if budget is not None and usd_per_hour:
        because = (
            f"{'' if ttl is None else 'the earlier of --ttl and --budget: '}{format_usd(budget)} "
            f"at {format_usd(usd_per_hour)} per hour, with the most instances, last "
            f"{format_duration(budget / usd_per_hour * 3600)} from the deploy; what runs more "
            "meanwhile is not counted"
        )
    before = f"{COPIES_BEFORE_SECONDS // 60} minutes before"
    because += f"; the copies are deleted {before}" if copies else ""
    return decide(limit, "limit", because, limit_text(limit, usd_per_hour), findings)


def limit_seconds(limit: Limit, usd_per_hour: float | None) -> int | None:
    """From the deploy to the end, in whole seconds; ``None`` without an end, or where the budget
    lasts for an unknown time."""
    ends = [] if limit.ttl_seconds is None else [limit.ttl_seconds]
    if limit.budget_usd is not None:
        if not usd_per_hour:
            return None
        ends.append(int(limit.budget_usd / usd_per_hour * 3600))
    return min(ends, default=None)


def end_time(limit: Limit, usd_per_hour: float | None, now: float) -> float | None:
    """When a deployment ends that gets this limit ``now``, in whole epoch seconds; ``None`` without
    an end. ``usd_per_hour`` is the price of the most instances."""
    seconds = limit_seconds(limit, usd_per_hour)
    return None if seconds is None else (now + seconds) // 1


def most_usd_per_hour(plan: Plan) -> float | None:
    """The price of the plan at the most instances that it may have."""
    usd, count = plan.price_per_hour_usd, plan.instance_count
    prices = plan.scaling.prices(usd, count) if plan.scaling else None
    return prices[1] if prices else usd


def ends_after(plan: Plan) -> int | None:
    """The seconds after which the plan's endpoint is deleted; ``None`` for never."""
    return limit_seconds(plan.limit, most_usd_per_hour(plan)) if plan.limit else None


def limit_text(limit: Limit, usd_per_hour: float | None) -> str:
    """``8h 00m, at most $49.52``; empty without an end."""
    seconds = limit_seconds(limit, usd_per_hour)
    if seconds is None:
        return ""
    cost = f", at most {format_usd(usd_per_hour * seconds / 3600)}" if usd_per_hour else ""
    return f"{format_duration(seconds)}{cost}"


def choose_observe(options: Options, region: str, floor: float | None) -> Decision[Observe | None]:
    """What the user asks for; ``None`` for nothing. ``floor`` is the least acceptance length of a
    plan that speculates. Raises UserError for values that AWS does not accept."""
    days, topic, uri = options.log_retention, options.alarm_topic, options.capture_data
    if days is not None and days not in LOG_DAYS:
        later = next((retention for retention in LOG_DAYS if retention > days), LOG_DAYS[-1])
        raise UserError(
            f"CloudWatch Logs keeps no log for {days} days",
            f"use log_retention: {later}; it has {', '.join(map(str, LOG_DAYS))}",
            "log-retention",
        )
    # CloudWatch publishes to topics of its own region only.
    match = _TOPIC.fullmatch(topic or "")
    if topic is not None and (match is None or match[1] != region):
        raise UserError(
            f"{topic[:80]!r} is not the ARN of an SNS topic in {region}",
            f"use alarm_topic: arn:aws:sns:{region}:ACCOUNT:NAME",
            code="invalid-topic",
        )
    if uri is not None and not (is_s3_uri(uri) and S3Uri.parse(uri).has_bucket_name):
        raise UserError(
            f"--capture-data {uri[:80]!r} is not an S3 prefix",
            "use --capture-data s3://BUCKET/FOLDER",
            code="invalid-s3-uri",
        )
    if not (options.observe or days or uri or topic):
        return Decision(None)
    reasons: tuple[Reason, ...] = ()
    alarms: tuple[AlarmKind, ...] = ()
    capture, kept, percent = None, options.capture_retention, options.capture_percent
    if uri is not None:
        capture = Capture(
            s3_uri=lower_scheme(uri),
            percent=DEFAULT_PERCENT if percent is None else percent,
            kms_key=options.capture_kms_key or options.kms_key,
            retention_days=(DEFAULT_CAPTURE_DAYS if kept is None else kept) or None,
        )
    if options.observe:
        alarms = (*alarms_for(options, floor), "load")
        if days is None:
            days = DEFAULT_LOG_DAYS
            because = "a log without retention is kept, and paid for, for ever"
            reasons = (Reason(what="log retention", value=f"{days} days", because=because),)
    observe = Observe(
        dashboard=options.observe,
        log_retention_days=days,
        capture=capture,
        alarms=alarms,
        alarm_topic=topic,
    )
    findings = []
    if alarms and topic is None:
        message = "the alarms change their state in CloudWatch, and send no notification"
        fix = "add alarm_topic with an SNS topic"
        findings.append(note("no-alarm-topic", "--observe", message, fix))
    if alarms and "ttft" not in alarms:
        message = "no alarm watches the time to the first token: the plan has no limit for it"
        findings.append(note("no-ttft-alarm", "--observe", message, "add --slo ttft=SECONDS"))
    return Decision(observe, reasons, tuple(findings))


def capture_text(capture: Capture) -> str:
    """``100% of prompts and answers to s3://captured/a, encrypted with S3's own key``."""
    encrypted = "with your KMS key" if capture.kms_key else "with S3's own key"
    share = f"{capture.percent}% of prompts and answers"
    kept = f", deleted after {capture.retention_days} days" if capture.retention_days else ""
    return f"{share} to {capture.s3_uri}, encrypted {encrypted}{kept}"


def alarm_kinds(plan: Plan) -> tuple[AlarmKind, ...]:
    """The alarms that a plan has: those that undo an update, and those of ``--observe``."""
    rollout, observe = plan.rollout, plan.observe
    rollback_alarms = rollout.alarms if rollout else ()
    return tuple(dict.fromkeys((*rollback_alarms, *(observe.alarms if observe else ()))))


def usd_per_month(plan: Plan) -> float:
    """What dashboard and alarms cost at us-east-1's prices, without CloudWatch's free tier and the
    queries of an open dashboard."""
    kinds = alarm_kinds(plan)
    counted = _COUNTED_METRICS if "acceptance" in kinds else 0
    metrics = len(kinds) - bool(counted) + counted
    dashboards = plan.observe is not None and plan.observe.dashboard
    return (
        dashboards * USD_PER_DASHBOARD + metrics * USD_PER_ALARM_METRIC + counted * USD_PER_METRIC
    )
