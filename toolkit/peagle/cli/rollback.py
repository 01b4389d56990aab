"""``peagle rollback``: return a deployment to its previous revision."""

from __future__ import annotations

import click

from peagle import api
from peagle.aws.client import Aws
from peagle.catalog.schema import Catalog
from peagle.cli.account import Account, cloud_options, complete_name, find_deployment
from peagle.cli.context import deployment_in_context, in_context
from peagle.cli.options import command_catalog, yes_option
from peagle.cli.output.console import (
    confirm,
    json_option,
    print_facts,
    print_json,
    print_line,
    print_status,
)
from peagle.cli.output.deploy import measured, remaining_resources_shown, show_changes
from peagle.cli.output.progress import DeploymentProgress
from peagle.cli.project import ProjectCommand, endpoint_argument
from peagle.deploy.diff import SettingChange
from peagle.deploy.rollback import RollbackPreview
from peagle.deploy.state import Deployment, Revision
from peagle.errors import NotProved
from peagle.text import format_price


@click.command(
    cls=ProjectCommand,
    epilog="""\b
Examples:
  peagle rollback peagle-tiny --sandbox
  peagle rollback peagle-gpt-oss-20b --yes --json
""",
)
@endpoint_argument(complete_name)
@cloud_options
@yes_option
@json_option
@click.pass_context
def rollback(
    ctx: click.Context, name: str, account: Account, region: str | None, yes: bool, as_json: bool
) -> None:
    """Return the deployment NAME to its previous revision, and prove that again.

    Afterwards the revision that served is the previous one. An update that was interrupted, or is
    in service without a proof, is abandoned: what served before it serves again. Repeat the command
    after an interruption: until it has reported its result, it continues the same rollback.
    """
    record, aws = find_deployment(account, name, region)
    with api.deployment_lock(*record.key):
        # Another command may have changed it before the lock was taken.
        record, aws = find_deployment(account, name, region, complete=True)
        target = api.revision_for_rollback(record)
        preview = api.preview_rollback(aws, record, target)
        _show(record, target, preview, account)
        if not yes:
            confirm("Return to this revision?", "not rolled back")
        _rollback(aws, record, account, command_catalog(ctx), preview.changes, as_json)


def _show(record: Deployment, target: Revision, preview: RollbackPreview, account: Account) -> None:
    """What the endpoint returns to: on stderr, before the confirmation."""
    print_status(record.name, bold=True)
    serves = f"configuration {target.name} again"
    if record.returning_to == target.fingerprint:
        serves += ": the rollback to it had begun, and is continued"
    print_facts((("where", account.where(record.region)), ("serves", serves)))
    show_changes(preview.changes)
    price = format_price(target.served.usd_per_hour, account.sandbox)
    print_facts((*preview.lines, ("price", price)))


def _rollback(
    aws: Aws,
    record: Deployment,
    account: Account,
    catalog: Catalog,
    changes: tuple[SettingChange, ...],
    as_json: bool,
) -> None:
    """Roll back and report; if something ends it early, show what exists."""
    again = in_context(("peagle", "rollback", record.name))
    unproved: NotProved | None = None
    remaining = remaining_resources_shown(aws, record, account, again)
    try:
        with remaining, DeploymentProgress(account.sandbox) as status:
            api.rollback(aws, record, catalog, status.observe)
    except NotProved as error:
        unproved = error
    record = api.load_record(*record.key) or record
    ended = record.model_copy(update={"returning_to": ""})
    document = api.deployment_status(aws, ended)
    document["changes"] = [change.document() for change in changes]
    if as_json:
        print_json(deployment_in_context(document))
    elif not unproved:
        print_line(f"{record.name} is {document['state']}{measured(document)}", bold=True)
        print_line(f"It serves configuration {document['endpoint_config']} again.")
    api.end_rollback(record)
    if unproved:
        raise unproved
