"""``peagle logs``: what the engine wrote."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import click

from peagle.aws import sagemaker as endpoints
from peagle.aws.client import Aws
from peagle.aws.logs import LogEvent, Tail
from peagle.cli.account import Account, deployment_options
from peagle.cli.context import PeagleCommand
from peagle.cli.output.console import TYPED_AT, json_option, print_json, say
from peagle.deploy.state import Deployment
from peagle.errors import UserError
from peagle.text import duration as as_seconds
from peagle.text import in_words, written

POLL_SECONDS = 2.0
_INTERRUPTED = 130
_WIDER = 10
"""How many times longer the next look back is, where there was no line."""


@click.command(cls=PeagleCommand, epilog="Example: peagle logs peagle-tiny -f --sandbox")
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
    typed = click.get_current_context().meta[TYPED_AT]
    start = _created(aws, record) if since is None else typed - since
    tail = Tail(aws, record.name, start)
    if as_json:
        print_json({"name": record.name, "events": [_document(event) for event in tail.new()]})
        return
    shown = _show(tail)
    if follow:
        _follow(tail)
    elif not shown:
        say(_nothing(aws, record, account, since))


def _follow(tail: Tail) -> None:
    """Ctrl-C is how it ends, so it is no error; the code still says that it was interrupted."""
    try:
        while True:
            time.sleep(POLL_SECONDS)
            _show(tail)
    except KeyboardInterrupt:
        click.get_current_context().exit(_INTERRUPTED)


def _created(aws: Aws, record: Deployment) -> float:
    live = endpoints.describe(aws, record.name)
    return live.created if live else record.billing_since or 0.0


def _nothing(aws: Aws, record: Deployment, account: Account, since: int | None) -> str:
    """That there is no line; or, where ``since`` leaves out all of them, how to see the newest.

    An engine that nobody asks may write nothing for hours, so the look back widens step by step.
    """
    now, created = time.time(), _created(aws, record)
    seconds = float(max(since or 0, 1))
    while since is not None and seconds < now - created:
        seconds *= _WIDER
        newest = max(
            (event.time for event in Tail(aws, record.name, now - seconds).new()), default=0
        )
        if newest:
            age = now - newest
            command = f"peagle logs {record.name} --since {written(age + 1)}{account.option}"
            nothing = f"No line in the last {in_words(since)}"
            return f"{nothing}; the newest is {in_words(age)} old: {command}"
    return "No line yet."


def _show(tail: Tail) -> int:
    count = 0
    for event in tail.new():
        click.echo(event.message)
        count += 1
    return count


def _document(event: LogEvent) -> dict[str, str]:
    moment = datetime.fromtimestamp(event.time, UTC).isoformat(timespec="milliseconds")
    return {"time": moment, "stream": event.stream, "message": event.message}
