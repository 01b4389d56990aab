"""``peagle plan``: what would run, where, at what price, and why."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from peagle.cli.context import PeagleCommand
from peagle.cli.options import command_words, peagle_words, plan_options, raise_first_error
from peagle.cli.output.console import json_option, print_json, say
from peagle.cli.output.files import write_file
from peagle.errors import UserError
from peagle.planning import Plan, errors
from peagle.render import plan_bytes, plan_document


@click.command(
    cls=PeagleCommand, epilog="Example: peagle plan gpt-oss-20b --region eu-west-1 --out plan.json"
)
@plan_options
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the plan to this file, for deploy and render.",
)
@click.option("--online", is_flag=True, help="Ask AWS for prices, quota, and weights in S3.")
@click.option("--profile", help="AWS profile for --online.  [default: as boto3 finds credentials]")
@click.option("--sandbox", is_flag=True, help="Ask the AWS of this machine; for --online.")
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
    """Plan PAIR and show the plan; nothing is created, and without --online nothing is asked of
    AWS.

    Takes the cheapest instances that hold the pair, and that are measured to make the speed if one
    is asked for; shows the three best, what the engine is told, and why.

    PAIR|PLAN is a pair such as gpt-oss-20b or gpt-oss-20b+eagle3, or a plan file. The exit code
    is 3 when a check found an error; such a plan is shown, but not written to a file.
    """
    if not online and (profile or sandbox):
        raise UserError("--profile and --sandbox are for --online", "add --online, or leave it out")
    refused = errors(plan.findings)
    if out is not None and not refused:
        write_file(out, plan_bytes(plan))
        say(f"wrote {out}")
    if as_json:
        print_json(plan_document(plan))
    else:
        from peagle.cli.output.plan import print_plan

        words = [*peagle_words(ctx), "deploy"]
        words += [str(out)] if out else command_words(ctx)
        words += ["--sandbox"] if sandbox else ["--profile", profile] if profile else []
        shown = _as_typed(plan, shlex.join(peagle_words(ctx)))
        print_plan(shown, next_command=None if refused else shlex.join(words))
    raise_first_error(refused)


def _as_typed(plan: Plan, peagle: str) -> Plan:
    """The plan with the commands that its findings advise as they are to be typed."""
    findings = (
        finding.model_copy(update={"fix": finding.fix.replace("`peagle ", f"`{peagle} ")})
        for finding in plan.findings
    )
    return plan.model_copy(update={"findings": tuple(findings)})
