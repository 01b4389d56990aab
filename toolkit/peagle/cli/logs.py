"""``peagle logs``: an endpoint's log."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import click

from peagle import api
from peagle.aws.client import Aws
from peagle.aws.runtime import LogEvent, Tail
from peagle.cli.account import deployment_options
from peagle.cli.context import PeagleCommand, command_text
from peagle.cli.options import duration
from peagle.cli.output.console import STARTED_AT, json_option, print_json, print_status
from peagle.deploy.state import Deployment
from peagle.errors import UserError
from peagle.text import duration_argument, format_duration

POLL_SECONDS = 2.0
_INTERRUPTED = 130
_WIDEN = 10
"""Factor by which the search for the newest line widens."""


@click.command(cls=PeagleCommand, epilog="Example: peagle logs peagle-tiny -f --sandbox")
@deployment_options
@click.option("--follow", "-f", is_flag=True, help="Follow the log until Ctrl-C.")
@click.option(
    "--since",
    callback=duration,
    help="Show lines newer than this, such as 10m or 2h.  [default: since creation]",
)
@json_option
def logs(
    aws: Aws,
    record: Deployment,
    follow: bool,
    since: int | None,
    as_json: bool,
    **_: object,
) -> None:
    """Show the CloudWatch log of the deployment NAME."""
    if follow and as_json:
        raise UserError("--follow and --json are mutually exclusive", "omit one of them")
    typed = click.get_current_context().meta[STARTED_AT]
    start = _created(aws, record) if since is None else typed - since
    tail = Tail(aws, record.name, start)
    if as_json:
        print_json({"name": record.name, "events": [_document(event) for event in tail.new()]})
        return
    shown = _show(tail)
    if not follow:
        if not shown:
            print_status(_no_lines(aws, record, since))
        return
    try:
        while True:
            time.sleep(POLL_SECONDS)
            _show(tail)
    except KeyboardInterrupt:  # the usual end, so without an error message
        click.get_current_context().exit(_INTERRUPTED)


def _created(aws: Aws, record: Deployment) -> float:
    return api.endpoint_created(aws, record.name) or record.billing_since or 0.0


def _no_lines(aws: Aws, record: Deployment, since: int | None) -> str:
    """The message if there are no lines; if ``since`` excludes them all, how to see the newest.

    An idle engine may write nothing for hours, so the search widens step by step.
    """
    now, created = time.time(), _created(aws, record)
    seconds = float(max(since or 0, 1))
    while since is not None and seconds < now - created:
        seconds *= _WIDEN
        newest = max(
            (event.time for event in Tail(aws, record.name, now - seconds).new()), default=0
        )
        if newest:
            age = now - newest
            command = command_text(
                ("peagle", "logs", record.name, "--since", duration_argument(age + 1))
            )
            none = f"No lines in the last {format_duration(since)}"
            return f"{none}; the newest line is {format_duration(age)} old: {command}"
    return "No lines yet."


def _show(tail: Tail) -> int:
    count = 0
    for event in tail.new():
        click.echo(event.message)
        count += 1
    return count


def _document(event: LogEvent) -> dict[str, str]:
    moment = datetime.fromtimestamp(event.time, UTC).isoformat(timespec="milliseconds")
    return {"time": moment, "stream": event.stream, "message": event.message}
