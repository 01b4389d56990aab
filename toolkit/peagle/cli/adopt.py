"""``peagle adopt``: take over a deployment that a template made."""

from __future__ import annotations

import click

from peagle import api
from peagle.aws.client import Aws
from peagle.cli.account import Account, deployment_options
from peagle.cli.context import command_text
from peagle.cli.options import yes_option
from peagle.cli.output.console import confirm, json_option, print_json, print_line, print_status
from peagle.cli.output.progress import DeploymentProgress
from peagle.cli.project import ProjectCommand
from peagle.deploy.state import Deployment


@click.command(cls=ProjectCommand, epilog="Example: peagle adopt peagle-gpt-oss-20b")
@deployment_options
@yes_option
@json_option
def adopt(aws: Aws, record: Deployment, account: Account, yes: bool, as_json: bool) -> None:
    """Take over the deployment NAME from the template or script that made it.

    Afterwards deploy, rollback and destroy may change it. Only resources that carry this toolkit's
    tags are adopted. Remove them from their stack or module without deleting them, or its next
    change deletes or replaces what is adopted.
    """
    owner = record.owner
    if not owner and api.load_record(*record.key):
        if as_json:
            print_json({"name": record.name, "from": "peagle", "id": record.id})
        else:
            print_status(f"Nothing to adopt: {record.name} belongs to this toolkit already.")
        return
    if owner and not yes:
        for resource in record.resources:
            print_status(f"  {resource.text}")
        confirm(f"Take these over from {owner}?", "not adopted")
    with (
        api.deployment_lock(*record.key),
        DeploymentProgress(account.sandbox) as status,
    ):
        adopted = api.adopt(aws, record, status.observe)
    if as_json:
        print_json({"name": adopted.name, "from": owner or "peagle", "id": adopted.id})
        return
    print_line(f"{adopted.name} is adopted{f' from {owner}' if owner else ''}.")
    if "script" in owner:
        print_status(f"Do not run {owner} for it again.")
    elif owner:
        print_status(
            f"Remove its resources from {owner} now, and keep them: see the documentation of "
            "DeletionPolicy: Retain (CloudFormation) or of removed blocks (Terraform)."
        )
    print_status("Prove it", command_text(("peagle", "prove", adopted.name)))
