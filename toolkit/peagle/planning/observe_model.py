"""The part of a plan about observability. No behavior but its command line."""

from __future__ import annotations

from pydantic import Field

from peagle.planning.options import Frozen
from peagle.planning.rollout_model import AlarmKind

LONGEST_CAPTURE_DAYS = 36_500


class Capture(Frozen):
    """Requests and answers that SageMaker copies to ``s3_uri``: ``percent`` of them, encrypted with
    ``kms_key``, or with S3's own key. S3 deletes them after ``retention_days``; ``None``: a rule of
    the bucket may."""

    s3_uri: str
    percent: int = Field(ge=1, le=100)
    kms_key: str | None = None
    retention_days: int | None = Field(default=None, ge=1)


class Observe(Frozen):
    """``dashboard``: CloudWatch gets one, and ``alarms``. ``log_retention_days``: how long the
    endpoint's log is kept, ``None`` for as long as it was. ``alarm_topic`` is the topic of SNS that
    all alarms notify, also those of a rollout."""

    dashboard: bool
    log_retention_days: int | None = None
    capture: Capture | None = None
    alarms: tuple[AlarmKind, ...] = ()
    alarm_topic: str | None = None


def observe_arguments(observe: Observe | None) -> list[str]:
    """The options of `peagle plan` that ask for this."""
    if observe is None:
        return []
    words = ["--observe"] if observe.dashboard else []
    if observe.log_retention_days is not None:
        words += ["--log-retention", str(observe.log_retention_days)]
    words += ["--alarm-topic", observe.alarm_topic] if observe.alarm_topic else []
    if observe.capture is not None:
        words += ["--capture-data", observe.capture.s3_uri]
        words += ["--capture-percent", str(observe.capture.percent)]
        key = observe.capture.kms_key
        words += ["--capture-kms-key", key] if key else []
        words += ["--capture-retention", str(observe.capture.retention_days or 0)]
    return words
