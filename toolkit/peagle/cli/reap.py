"""``peagle reap``: delete the deployments whose end time has passed."""

from __future__ import annotations

import click

from peagle import api
from peagle.catalog.tables import InstanceTable
from peagle.cli.account import Account, account_options, default_region
from peagle.cli.context import PeagleCommand, command_text
from peagle.cli.options import command_catalog, complete_region, yes_option
from peagle.cli.output.console import confirm, json_option, print_json, print_line, print_status
from peagle.cli.output.progress import DeploymentProgress
from peagle.deploy.removal import Ended, Reaped, Search
from peagle.errors import CloudError, Fix
from peagle.text import format_price


@click.command(
    cls=PeagleCommand,
    epilog="""\b
Examples:
  peagle reap --dry-run
  peagle reap --yes --json
""",
)
@account_options
@click.option(
    "--region",
    "regions",
    multiple=True,
    help="Only this region; may be repeated.  [default: all regions of SageMaker]",
    shell_complete=complete_region,
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted.")
@yes_option
@json_option
@click.pass_context
def reap(
    ctx: click.Context,
    account: Account,
    regions: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete all deployments whose end time (deploy --ttl, --budget) has passed, in all regions.

    EventBridge Scheduler deletes their endpoints; this removes what remains: configuration, model,
    uploaded weights, role and record, and an endpoint that is still there. What a template made is
    left to it. Exits with 4 if a region could not be searched or a deployment not deleted.
    """
    if not account.is_available:
        raise api.sandbox_not_running()
    aws = account.connect(regions[0] if regions else default_region())
    places = regions or api.hosting_regions(aws.partition)

    def prices() -> InstanceTable:
        return command_catalog(ctx).instances

    found = api.find_ended(aws, sorted({*places}), prices)
    _show(found, account)
    done: tuple[Reaped, ...] = ()
    if found.own and not dry_run:
        if not yes:
            confirm("Delete all of these?", "not deleted")
        with DeploymentProgress(account.sandbox) as status:
            done = api.reap(aws, found.own, prices, status.observe)
    _report(found, done, dry_run, as_json)


def _show(found: Search, account: Account) -> None:
    for one in found.own:
        print_status(_line(one, account))
        for resource in one.record.resources:
            print_status(f"  {resource.text}")
    for one in found.of_others:
        print_status(f"{_line(one, account)}; left to {one.record.owner}")
    for region, error in found.unknown.items():
        print_status(f"{region} is unknown: {error.message} ({error.fix})")


def _line(one: Ended, account: Account) -> str:
    record = one.record
    costs = "its endpoint is deleted"
    if one.usd_per_hour != 0.0:
        costs = f"its endpoint still costs {format_price(one.usd_per_hour, account.sandbox)}"
    ended = one.document()["ended_at"]
    return f"{record.name} in {account.where(record.region)} ended at {ended}; {costs}"


def _report(found: Search, done: tuple[Reaped, ...], dry_run: bool, as_json: bool) -> None:
    failed = [one for one in done if one.error]
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "ended": [one.document() for one in found.own],
                "reaped": [one.document() for one in done if not one.error],
                "failed": [one.document() for one in failed],
                "left": [one.document() for one in found.of_others],
                "unknown": [
                    {"region": region, **error.document()}
                    for region, error in found.unknown.items()
                ],
            }
        )
    elif not found.own and not found.unknown:
        print_line("Nothing to delete: no deployment is past its end.")
    for one in () if as_json else done:
        for resource in one.removed:
            print_line(f"removed {resource.text} ({one.ended.record.region})")
        for resource in one.kept:
            print_line(f"kept {resource.text}: in use by others")
    if failed:
        first = failed[0]
        names = ", ".join(one.ended.record.name for one in failed)
        message = first.error.message if first.error else ""
        command = ("peagle", "destroy", first.ended.record.name)
        raise CloudError(
            f"not deleted: {names}: {message}", Fix("try it alone", command), code="not-reaped"
        )
    if found.unknown:
        raise CloudError(
            f"not searched: {', '.join(found.unknown)}",
            f"see above; with the policy infra/iam/deploy-policy.json, "
            f"{command_text(('peagle', 'reap'))} can search them",
            "regions-unknown",
        )
