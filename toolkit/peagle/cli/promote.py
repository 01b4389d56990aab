"""``peagle promote``: end a comparison of `peagle compare`."""

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
  peagle promote peagle-tiny --sandbox
  peagle promote peagle-gpt-oss-20b --yes --json
""",
)
@endpoint_argument(complete_name)
@cloud_options
@yes_option
@json_option
@click.pass_context
def promote(
    ctx: click.Context, name: str, account: Account, region: str | None, yes: bool, as_json: bool
) -> None:
    """Let the compared plan of the deployment NAME serve alone, and prove that.

    Its scaling, alarms, dashboard, log retention and end time apply then, as with `peagle deploy`.
    The plan that served is the previous revision then, for `peagle rollback`. Without a proof, it
    serves again, and the comparison has ended. Repeat the command after an interruption.
    """
    end_comparison(
        ctx, api.promote, "Let this plan serve alone?", name, account, region, yes, as_json
    )
