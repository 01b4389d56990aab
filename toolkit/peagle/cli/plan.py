"""``peagle plan``: what would run, where, at what price, and why."""

from __future__ import annotations

from pathlib import Path

import click

from peagle import api
from peagle.cli.context import PeagleCommand, command_text, typed_command
from peagle.cli.options import raise_first_error
from peagle.cli.output.console import json_option, print_json, print_status, write_file
from peagle.cli.plan_options import plan_options
from peagle.errors import UserError
from peagle.findings import errors
from peagle.planning import Plan


@click.command(
    cls=PeagleCommand, epilog="Example: peagle plan gpt-oss-20b --region eu-west-1 --out plan.json"
)
@plan_options
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the plan to this file, for deploy and render.",
)
@click.option(
    "--online",
    is_flag=True,
    help="Query AWS for prices, quotas and weights in S3, and the Hub for models.",
)
@click.option("--profile", help="AWS profile for --online.  [default: boto3's credential chain]")
@click.option("--sandbox", is_flag=True, help="Query the local AWS sandbox; for --online.")
@json_option
@click.pass_context
def plan(
    ctx: click.Context,
    plan: Plan,
    out: Path | None,
    online: bool,
    profile: str | None,
    sandbox: bool,
    as_json: bool,
) -> None:
    """Plan PAIR and show the plan. Creates nothing, and queries AWS only with --online.

    Selects the cheapest instances that fit the pair and, with --min-tokens-per-second, are
    measured to reach that speed. Shows the three best, the engine's arguments, and the reasons.

    PAIR|PLAN is a pair such as gpt-oss-20b or gpt-oss-20b+eagle3, a model that the catalogue does
    not have (its folder, or with --online its id on the Hub), or a plan file. Exits with 3 if
    a check finds an error; such a plan is shown, but not written to a file.
    """
    if not online and (profile or sandbox):
        flag = "--profile" if profile else "--sandbox"
        raise UserError(f"{flag} requires --online", f"add --online, or omit {flag}")
    refused = errors(plan.findings)
    if out is not None and not refused:
        write_file(out, api.plan_bytes(plan))
        print_status(f"wrote {out}")
    if as_json:
        print_json(api.plan_document(plan))
    else:
        from peagle.cli.output.plan import print_plan

        deploy = ("peagle", "deploy", str(out)) if out else typed_command(ctx, "deploy")
        print_plan(plan, next_command=None if refused else command_text(deploy))
    raise_first_error(refused)
