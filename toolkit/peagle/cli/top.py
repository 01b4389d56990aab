"""``peagle top``: how a deployment or a local engine is used, live."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

import click

from peagle import api
from peagle.cli.account import (
    Account,
    cloud_options,
    complete_name,
    find_deployment,
    names_deployment,
)
from peagle.cli.output.console import json_option, line_width, print_json
from peagle.cli.output.top import document, screen
from peagle.cli.parameter_types import duration
from peagle.cli.project import ProjectCommand, endpoint_argument
from peagle.engine.usage import WINDOW_SECONDS, Usage
from peagle.errors import UserError

Read = Callable[[], Usage]

_ON_AWS_SECONDS, _HERE_SECONDS = 10, 2
"""How often the screen is read again: on AWS most numbers change once a minute, and queries cost
money."""

_SHORTEST_WINDOW = 60
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"
_OTHER_SCREEN, _USUAL_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


@click.command(cls=ProjectCommand, epilog="Example: peagle top peagle-tiny --sandbox --once")
@endpoint_argument(complete_name)
@cloud_options
@click.option(
    "--once", is_flag=True, help="Print one screen and end.  [default without a terminal]"
)
@click.option(
    "--window",
    callback=duration,
    help="How far back to measure; 1m at least.  [default: 5m]",
)
@click.option(
    "--every",
    callback=duration,
    help="Time between two screens.  [default: 10s; 2s in the sandbox and for a local engine]",
)
@json_option
def top(
    name: str,
    region: str | None,
    account: Account,
    once: bool,
    window: int | None,
    every: int | None,
    as_json: bool,
) -> None:
    """Show how the deployment NAME, or the local engine of that name, is used: requests, times,
    KV cache, acceptance and cost.

    Requests and TTFT come from CloudWatch, a minute or two late on AWS; the rest comes from vLLM's
    statistics in the log, and for a local engine all of it from its /metrics. ITL is the mean while
    requests run. Ctrl-C ends it.
    """
    if window is not None and window < _SHORTEST_WINDOW:
        raise UserError("--window is shorter than a minute", "use 1m or more", "window")
    read, seconds = _reader(name, region, account, window or WINDOW_SECONDS)
    if as_json:
        return print_json(document(read()))
    if once or not sys.stdout.isatty():
        for line in screen(read(), min(line_width(), 120)):
            click.echo(line)
        return None
    return _show(read, every or seconds)


def _reader(name: str, region: str | None, account: Account, window: float) -> tuple[Read, int]:
    """How to read the use of that name, and how often. As in ``peagle invoke``, options about AWS
    exclude local engines, and a deployment comes first."""
    on_aws = names_deployment(account, region, name)
    if engine := None if on_aws else api.ready_engine(name):
        return api.EngineMeter(engine, window).read, _HERE_SECONDS
    record, aws = find_deployment(account, name, region)
    seconds = _HERE_SECONDS if account.sandbox else _ON_AWS_SECONDS
    return partial(api.usage_of_endpoint, aws, record, window), seconds


def _show(read: Read, seconds: float) -> None:
    """Show the screen again and again, until Ctrl-C, which is the usual end."""
    out = sys.stdout
    usage = read()  # an error before the first screen stays on the usual one
    out.write(_OTHER_SCREEN)
    try:
        while True:
            lines = [*screen(usage, line_width()), "", _footer(usage, seconds)]
            text = "".join(f"{line}{_CLEAR_LINE}\n" for line in lines)
            out.write(f"{_HOME}{text}{_CLEAR_REST}")
            out.flush()
            time.sleep(seconds)
            usage = read()
    except KeyboardInterrupt:
        pass
    finally:
        out.write(_USUAL_SCREEN)
        out.flush()


def _footer(usage: Usage, seconds: float) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(usage.at))
    return click.style(f"  {at}, again every {seconds:g} s; Ctrl-C ends", dim=True)
