"""The planning options for observing a deployment."""

from __future__ import annotations

import click

from peagle.planning.observe_model import LONGEST_CAPTURE_DAYS

OBSERVE_OPTIONS = (
    click.option(
        "--observe",
        is_flag=True,
        help="Create a CloudWatch dashboard and alarms, and keep the endpoint's log for 30 days "
        "only. The alarm on --slo ttft sees streamed requests only.",
    ),
    click.option(
        "--log-retention",
        type=click.IntRange(1),
        metavar="DAYS",
        help="How long CloudWatch keeps the endpoint's log.  [default: 30 with --observe]",
    ),
    click.option(
        "--alarm-topic",
        metavar="ARN",
        help="SNS topic that the alarms of --observe and --rollout notify.",
    ),
    click.option(
        "--capture-data",
        metavar="S3_URI",
        help="Copy prompts and answers to this s3:// folder (SageMaker's data capture).",
    ),
    click.option(
        "--capture-percent",
        type=click.IntRange(1, 100),
        metavar="PERCENT",
        help="Share of the requests to capture.  [default: 100]",
    ),
    click.option(
        "--capture-kms-key",
        metavar="KEY",
        help="KMS key for captured data.  [default: --kms-key, else S3's own key]",
    ),
    click.option(
        "--capture-retention",
        type=click.IntRange(0, LONGEST_CAPTURE_DAYS),
        metavar="DAYS",
        help="When S3 deletes captured data; 0: when the bucket's own rules do.  [default: 30]",
    ),
)
