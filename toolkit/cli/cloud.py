"""Which AWS a command talks to: an account, or with ``--sandbox`` the one on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click
from click.shell_completion import CompletionItem

from toolkit.aws import records
from toolkit.aws.records import SANDBOX, Deployment
from toolkit.aws.session import Aws, Keys, connect
from toolkit.errors import UserError
from toolkit.sandbox import ensure_started

DEFAULT_REGION = "us-east-1"

Command = Callable[..., Any]

_PROFILE = click.option("--profile", help="AWS profile.  [default: as boto3 finds credentials]")
_SANDBOX = click.option(
    "--sandbox", is_flag=True, help="The AWS of this machine; needs no account."
)
_REGION = click.option("--region", help="Region of the deployment, if the name is in several.")


@dataclass(frozen=True)
class Account:
    """Where a command works: a profile's account, or the sandbox."""

    profile: str | None = None
    sandbox: bool = False

    @property
    def scope(self) -> str | None:
        """The scope of its records, as far as it is known without asking AWS."""
        return SANDBOX if self.sandbox else None

    @property
    def option(self) -> str:
        """What commands must be given to work in the same place: `` --sandbox`` or nothing."""
        if self.sandbox:
            return " --sandbox"
        return f" --profile {self.profile}" if self.profile else ""

    def connect(self, region: str) -> Aws:
        """A connection; starts the sandbox when it is meant and does not run."""
        if not self.sandbox:
            return connect(region, self.profile)
        address = ensure_started()
        given = address.environment(region)
        keys = Keys(given["AWS_ACCESS_KEY_ID"], given["AWS_SECRET_ACCESS_KEY"])
        return connect(region, endpoint_url=address.url, keys=keys, scope=SANDBOX)


def account_options(command: Command) -> Command:
    """``--profile`` and ``--sandbox``; the command receives ``account``."""

    @wraps(command)
    def with_account(*, profile: str | None, sandbox: bool, **given: Any) -> Any:
        if profile and sandbox:
            raise UserError("--profile and --sandbox exclude each other", "leave one out")
        return command(account=Account(profile, sandbox), **given)

    return _PROFILE(_SANDBOX(with_account))


def cloud_options(command: Command) -> Command:
    """``--region``, ``--profile`` and ``--sandbox``; the command receives ``account`` and
    ``region`` (``None`` when it was not named)."""
    return _REGION(account_options(command))


def deployment_options(command: Command) -> Command:
    """NAME and where it is; the command receives ``aws``, ``record`` and ``account``.

    An unknown name is found out before anything is connected to.
    """

    @wraps(command)
    def with_deployment(*, name: str, region: str | None, account: Account, **given: Any) -> Any:
        record, aws = find_deployment(account, name, region)
        return command(aws=aws, record=record, account=account, **given)

    named = click.argument("name", shell_complete=complete_name)
    return named(cloud_options(with_deployment))


def find_deployment(account: Account, name: str, region: str | None) -> tuple[Deployment, Aws]:
    """The record, and a connection to where it was deployed.

    Raises NotFound for an unknown name, and UserError for another account's deployment.
    """
    try:
        record = records.find(name, account.scope, region)
        aws = account.connect(record.region)
    except records.Ambiguous:
        aws = account.connect(region or DEFAULT_REGION)
        record = records.find(name, aws.scope, region)
        aws = aws.in_region(record.region)
    if aws.scope != record.scope:
        raise UserError(
            f"{name} was deployed in account {record.account}, and these credentials are of "
            f"{aws.account}",
            "choose others with --profile",
        )
    return record, aws


def complete_name(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of deployments, for the shell."""
    scope = SANDBOX if context.params.get("sandbox") else None
    return [CompletionItem(name) for name in records.names(scope) if name.startswith(incomplete)]
