"""After a start that will never serve: show why, ask, remove it, and say what that saves."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from peagle import api
from peagle.aws.client import Aws
from peagle.cli.account import Account
from peagle.cli.output.console import confirmed, print_status
from peagle.cli.output.deploy import (
    add_nothing_remaining,
    remaining_resources_shown,
    show_remaining_resources,
)
from peagle.cli.output.progress import DeploymentProgress
from peagle.deploy.removal import Saving
from peagle.deploy.state import Deployment
from peagle.deploy.wait import WillNotServe
from peagle.text import format_duration, format_usd


def end_failed_start(
    aws: Aws,
    name: str,
    error: WillNotServe,
    account: Account,
    again: Sequence[str],
    remove: bool | None,
) -> WillNotServe:
    """Remove what the deploy created, unless the user wants to keep it: ``remove`` is ``None`` for
    a question. Returns the error, which says what was done. ``again`` is the deploy's argv.

    Raises what the removal raises, with what remains shown.
    """
    record = api.load_record(aws.scope, aws.region, name)
    if record is None:
        return error
    print_status(error.message, bold=True)
    if remove is None:
        remove = sys.stdin.isatty() and _agrees(record, error, account)
    if not remove:
        show_remaining_resources(aws, record, account, again)
        return error
    remaining = remaining_resources_shown(aws, record, account, again)
    with remaining, DeploymentProgress(account.sandbox) as status:
        saving = api.remove_failed_start(aws, record, error, status.observe)
    add_nothing_remaining()
    error.message = f"{error.message}; {_outcome(error, saving, account)}"
    if error.command[:2] == ("peagle", "logs"):  # of an endpoint that is gone
        error.fix, error.command = "deploy with --keep-failed to read its log", ()
    return error


def _agrees(record: Deployment, error: WillNotServe, account: Account) -> bool:
    for resource in record.resources:
        print_status(f"  {resource.text}")
    possible = api.possible_saving(record, error)
    if possible.seconds:
        goes_on = f"SageMaker keeps trying for up to {_text(possible, account)}."
        print_status(goes_on)
    return confirmed("Remove what will never serve?")


def _outcome(error: WillNotServe, saving: Saving, account: Account) -> str:
    if saving.seconds:
        return f"removed, which saves up to {_text(saving, account)}"
    if error.gives_up is None:
        return "removed"
    return "removed; SageMaker accepted that only when it had given up, so nothing is saved"


def _text(saving: Saving, account: Account) -> str:
    if saving.usd is None:
        return format_duration(saving.seconds)
    where = " on AWS" if account.sandbox else ""
    return f"{format_usd(saving.usd)}{where} ({format_duration(saving.seconds)})"
