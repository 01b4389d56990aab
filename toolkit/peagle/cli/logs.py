"""``peagle logs``: an endpoint's log."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from peagle import api
from peagle.aws.client import Aws
from peagle.aws.runtime import LogEvent
from peagle.cli.account import deployment_options
from peagle.cli.context import command_text
from peagle.cli.output.console import STARTED_AT, json_option, print_json, print_status
from peagle.cli.parameter_types import duration
from peagle.cli.project import ProjectCommand
from peagle.deploy.state import Deployment
from peagle.errors import OptionsConflict
from peagle.text import duration_argument, format_duration

_INTERRUPTED = 130


@click.command(cls=ProjectCommand, epilog="Example: peagle logs peagle-tiny -f --sandbox")
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
        raise OptionsConflict("--follow and --json are mutually exclusive", "omit one of them")
    typed = click.get_current_context().meta[STARTED_AT]
    lines = api.endpoint_log(aws, record, None if since is None else typed - since, follow)
    if as_json:
        print_json({"name": record.name, "events": [_document(event) for event in lines]})
        return
    shown = False
    try:
        for event in lines:
            click.echo(event.message)
            shown = True
    except KeyboardInterrupt:
        if not follow:
            raise
        # the usual end, so without an error message
        click.get_current_context().exit(_INTERRUPTED)
    if not shown:
        print_status(*_no_lines(aws, record, since))


def _no_lines(aws: Aws, record: Deployment, since: int | None) -> tuple[str, str]:
    """The message if there are no lines; if ``since`` excludes them all, with the command for the
    newest."""
    age = None if since is None else api.age_of_newest_line(aws, record, since)
    if since is None or age is None:
        return "No lines yet.", ""
    command = command_text(("peagle", "logs", record.name, "--since", duration_argument(age + 1)))
    none = f"No lines in the last {format_duration(since)}"
    return f"{none}; the newest line is {format_duration(age)} old", command


def _document(event: LogEvent) -> dict[str, str]:
    moment = datetime.fromtimestamp(event.time, UTC).isoformat(timespec="milliseconds")
    return {"time": moment, "stream": event.stream, "message": event.message}
