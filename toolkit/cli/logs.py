"""``peagle logs``: what the engine wrote."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import click

from toolkit.aws import endpoints
from toolkit.aws.logs import LogEvent, Tail
from toolkit.aws.records import Deployment
from toolkit.aws.session import Aws
from toolkit.cli.cloud import Account, deployment_options
from toolkit.cli.console import json_option, print_json, say
from toolkit.cli.durations import duration as as_seconds
from toolkit.errors import UserError

POLL_SECONDS = 2.0
_INTERRUPTED = 130


@click.command(epilog="Example: peagle logs peagle-tiny -f --sandbox")
@deployment_options
@click.option("--follow", "-f", is_flag=True, help="Go on until Ctrl-C.")
@click.option(
    "--since", callback=as_seconds, help="As in 10m or 2h.  [default: since it was created]"
)
@json_option
def logs(
    aws: Aws,
    record: Deployment,
    account: Account,
    follow: bool,
    since: int | None,
    as_json: bool,
) -> None:
    """Show the log of the deployment NAME, from CloudWatch."""
    if follow and as_json:
        raise UserError("--follow has no end, and --json is one document", "leave one out")
    tail = Tail(aws, record.name, _start(aws, record, since))
    if as_json:
        print_json({"name": record.name, "events": [_document(event) for event in tail.new()]})
        return
    shown = _show(tail)
    if follow:
        _follow(tail)
    elif not shown:
        say("No line yet.")


def _follow(tail: Tail) -> None:
    """Ctrl-C is how it ends, so it is no error; the code still says that it was interrupted."""
    try:
        while True:
            time.sleep(POLL_SECONDS)
            _show(tail)
    except KeyboardInterrupt:
        click.get_current_context().exit(_INTERRUPTED)


def _start(aws: Aws, record: Deployment, since: int | None) -> float:
    if since is not None:
        return time.time() - since
    live = endpoints.describe(aws, record.name)
    return live.created if live else record.billing_since or 0.0


def _show(tail: Tail) -> int:
    count = 0
    for event in tail.new():
        click.echo(event.message)
        count += 1
    return count


def _document(event: LogEvent) -> dict[str, str]:
    moment = datetime.fromtimestamp(event.time, UTC).isoformat(timespec="milliseconds")
    return {"time": moment, "stream": event.stream, "message": event.message}
