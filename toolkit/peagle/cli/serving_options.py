"""The planning options for serving: copies, scaling, updates, observation, and the end."""

from __future__ import annotations

from typing import get_args

import click

from peagle.cli.parameter_types import REQUESTS_AT_A_TIME, USD, OneOf, Parsed, WholeNumber, duration
from peagle.planning.operation_model import LONGEST_CAPTURE_DAYS
from peagle.planning.options import AUTO, RolloutKind
from peagle.text import sanitize


def parse_copies(text: str) -> int | str:
    """A number of engines, or ``auto``. Raises ValueError."""
    if text == AUTO:
        return AUTO
    if text.isascii() and text.isdecimal() and len(text) < 4 and int(text) > 0:
        return int(text)
    raise ValueError(f"{sanitize(text, 40)!r} is neither auto nor a number of engines")


copies_option = click.option(
    "--copies",
    type=Parsed("copies", parse_copies),
    metavar="N|auto",
    help="Engines on each instance, as an inference component; auto: as many as cost least per "
    "token, or one on all GPUs; 1: one, without a component.  [default: auto]",
)


SCALING_OPTIONS = (
    click.option(
        "--min-instances",
        type=WholeNumber(0),
        metavar="N",
        help="Fewest instances of an endpoint that scales.  [default: 1]",
    ),
    click.option(
        "--max-instances",
        type=WholeNumber(1),
        metavar="N",
        help="Scale automatically, up to this many instances; with --copies, the copies on them.",
    ),
    click.option(
        "--target-concurrency",
        type=REQUESTS_AT_A_TIME,
        metavar="REQUESTS",
        help="Requests at a time that scaling gives each instance, or each copy.  [default: the "
        "most that meet --slo without queueing, from the performance model]",
    ),
    click.option(
        "--scale-to-zero",
        is_flag=True,
        help="Run no instance while there are no requests; the first one then waits. Makes an "
        "inference component, also for a single copy.",
    ),
)
"""For ``plan_options``; the options are fields of ``Options``."""


ROLLOUT_OPTIONS = (
    click.option(
        "--rollout",
        type=OneOf(get_args(RolloutKind)),
        help="How updates move traffic to new instances, with alarms that undo them; the one on "
        "--slo ttft sees streamed requests only.  "
        "[default: SageMaker's, without alarms]",
    ),
    click.option(
        "--rollout-step",
        metavar="SIZE",
        help="Instances of one step, such as 2 or 25%.  [default: 5%, canary 10%, linear 25%]",
    ),
    click.option(
        "--baking-time",
        metavar="DURATION",
        callback=duration,
        help="Time for alarms to act after each step; 1h at most.  [default: 10m]",
    ),
)


OBSERVE_OPTIONS = (
    click.option(
        "--observe",
        is_flag=True,
        help="Create a CloudWatch dashboard and alarms, and keep the endpoint's log for 30 days "
        "only. The alarm on --slo ttft sees streamed requests only.",
    ),
    click.option(
        "--log-retention",
        type=WholeNumber(1),
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
        type=WholeNumber(1, 100),
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
        type=WholeNumber(0, LONGEST_CAPTURE_DAYS),
        metavar="DAYS",
        help="When S3 deletes captured data; 0: when the bucket's own rules do.  [default: 30]",
    ),
)


LIMIT_OPTIONS = (
    click.option(
        "--ttl",
        metavar="DURATION",
        callback=duration,
        help="Delete the endpoint after this time, such as 8h or 2d, counted from this deploy: "
        "deploying again with --ttl moves the end, without it keeps it.",
    ),
    click.option(
        "--budget",
        type=USD,
        metavar="USD",
        help="Delete the endpoint when it has cost this much since its creation, at the price of "
        "the most instances. With --ttl, the earlier end counts. A later deploy or scale to a "
        "higher price moves the end to an earlier time, and never to a later one.",
    ),
    click.option("--no-limit", is_flag=True, help="Remove the end time of an earlier deploy."),
)
