"""``peagle drop``: end a comparison of `peagle compare`."""

from __future__ import annotations

import click

from peagle import api
from peagle.cli.account import Account, cloud_options, complete_name
from peagle.cli.end_comparison import end_comparison
from peagle.cli.options import yes_option
from peagle.cli.output.console import json_option
from peagle.cli.project import ProjectCommand, endpoint_argument


@click.command(
    cls=ProjectCommand,
    epilog="""\b
Examples:
  peagle drop peagle-tiny --sandbox
  peagle drop peagle-gpt-oss-20b --yes --json
""",
)
@endpoint_argument(complete_name, implicit=False)
@cloud_options
@yes_option
@json_option
@click.pass_context
def drop(
    ctx: click.Context, name: str, account: Account, region: str | None, yes: bool, as_json: bool
) -> None:
    """Remove the compared plan of the deployment NAME; what served before serves alone.

    What only the compared plan needs is removed with it. Repeat the command after an interruption.
    """
    end_comparison(ctx, api.drop, "Remove this plan?", name, account, region, yes, as_json)
