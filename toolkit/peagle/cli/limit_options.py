"""The planning options that end a deployment by itself."""

from __future__ import annotations

import click

from peagle.cli.options import USD, duration

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
