"""What a deployment lets you observe: dashboard and alarms, its log, captured requests."""

from __future__ import annotations

import re
from collections.abc import Iterator

from peagle.errors import OptionMissing, UserError
from peagle.findings import Finding, note
from peagle.options import Options
from peagle.planning.operation_model import AlarmKind, Capture, Observe
from peagle.planning.plan import Decision, Plan, Reason
from peagle.planning.rollout import alarms_for
from peagle.s3uri import S3Uri, lower_scheme
from peagle_serve.contract import is_s3_uri

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
_NEEDS_TOPIC = "use alarm_topic: arn:aws:sns:REGION:ACCOUNT:NAME"


def choose_observe(options: Options, region: str, floor: float | None) -> Decision[Observe | None]:
    """What the user asks for; ``None`` for nothing. ``floor`` is the least acceptance length of a
    plan that speculates. Raises UserError for values that AWS does not accept."""
    days, capture = options.log_retention, _capture(options)
    topic = _topic(options, region)
    if days is not None and days not in LOG_DAYS:
        later = next((retention for retention in LOG_DAYS if retention > days), LOG_DAYS[-1])
        raise UserError(
            f"CloudWatch Logs keeps no log for {days} days",
            f"use log_retention: {later}; it has {', '.join(map(str, LOG_DAYS))}",
            "log-retention",
        )
    if not (options.observe or days or capture or topic):
        return Decision(None)
    reasons: tuple[Reason, ...] = ()
    alarms: tuple[AlarmKind, ...] = ()
    if options.observe:
        alarms = (*alarms_for(options, floor), "load")
    if options.observe and days is None:
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
    return Decision(observe, reasons, tuple(_findings(options, observe)))


def _topic(options: Options, region: str) -> str | None:
    """The topic that alarms notify. CloudWatch publishes to topics of its own region only."""
    topic = options.alarm_topic
    if topic is None:
        return None
    match = _TOPIC.fullmatch(topic)
    if match is None:
        raise UserError(
            f"{topic[:80]!r} is not the ARN of an SNS topic", _NEEDS_TOPIC, code="invalid-topic"
        )
    if match[1] != region:
        raise UserError(
            f"the topic {topic} is in {match[1]}, and alarms of {region} cannot notify it",
            f"use a topic of {region}",
            code="topic-in-another-region",
        )
    if not (options.observe or options.rollout):
        raise OptionMissing("alarm_topic has no alarms to notify it", "add --observe")
    return topic


def _capture(options: Options) -> Capture | None:
    uri, percent = options.capture_data, options.capture_percent
    days = options.capture_retention
    if uri is None:
        for flag, value in (
            ("capture_percent", percent),
            ("capture_kms_key", options.capture_kms_key),
            ("capture_retention", days),
        ):
            if value is not None:
                raise OptionMissing(f"{flag} needs --capture-data", "add --capture-data s3://...")
        return None
    if not is_s3_uri(uri) or not S3Uri.parse(uri).has_bucket_name:
        raise UserError(
            f"--capture-data {uri[:80]!r} is not an S3 prefix",
            "use --capture-data s3://BUCKET/FOLDER",
            code="invalid-s3-uri",
        )
    return Capture(
        s3_uri=lower_scheme(uri),
        percent=DEFAULT_PERCENT if percent is None else percent,
        kms_key=options.capture_kms_key or options.kms_key,
        retention_days=(DEFAULT_CAPTURE_DAYS if days is None else days) or None,
    )


def _findings(options: Options, observe: Observe) -> Iterator[Finding]:
    """Captured prompts and answers are users' data; an alarm without a notification is missed."""
    capture = observe.capture
    if capture is not None and capture.retention_days is None:
        yield note(
            "captured-data-kept",
            "--capture-data",
            f"{capture_text(capture)}; they stay there until the bucket removes them",
            "give the bucket a lifecycle rule with an expiration, or use capture_retention",
        )
    if observe.alarms and observe.alarm_topic is None:
        yield note(
            "no-alarm-topic",
            "--observe",
            "the alarms change their state in CloudWatch, and send no notification",
            "add alarm_topic with an SNS topic",
        )
    if options.observe and "ttft" not in observe.alarms:
        yield note(
            "no-ttft-alarm",
            "--observe",
            "no alarm watches the time to the first token: the plan has no limit for it",
            "add --slo ttft=SECONDS",
        )


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
