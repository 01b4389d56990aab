"""The planning options of automatic scaling."""

from __future__ import annotations

import click

from peagle.cli.options import REQUESTS_AT_A_TIME

SCALING_OPTIONS = (
    click.option(
        "--min-instances",
        type=click.IntRange(0),
        metavar="N",
        help="Fewest instances of an endpoint that scales.  [default: 1]",
    ),
    click.option(
        "--max-instances",
        type=click.IntRange(1),
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
