"""Which AWS a command talks to: an account, or with ``--sandbox`` the one on this machine.

Where ``AWS_ENDPOINT_URL`` leads to the running sandbox, every command is as with ``--sandbox``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

import click
from click.shell_completion import CompletionItem

from peagle.aws import sagemaker as endpoints
from peagle.aws.client import Aws, Keys, connect
from peagle.aws.errors import AccessDenied
from peagle.cli.output.console import say
from peagle.deploy import state as records
from peagle.deploy.state import SANDBOX, Deployment
from peagle.errors import NotFound, PeagleError, UserError
from peagle.sandbox import ensure_started, running, status, stop

DEFAULT_REGION = "us-east-1"

_LOOPBACK = ("127.0.0.1", "localhost", "::1")

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

    @property
    def is_there(self) -> bool:
        """False for a sandbox that does not run, in which nothing can be."""
        return not self.sandbox or running() is not None

    def start(self) -> bool:
        """Start the sandbox, when it is meant and does not run. Whether it was started."""
        if self.is_there:
            return False
        say("Starting the sandbox")
        ensure_started()
        return True

    @contextmanager
    def deciding(self, started: bool) -> Iterator[None]:
        """While it is decided whether anything is done: a no, or a refusal, stops the sandbox
        again that was ``started`` for it, unless somebody else uses it by now."""
        try:
            yield
        except BaseException:
            if started and not records.names(SANDBOX) and not status().endpoints:
                stop()
                say("The sandbox is stopped again.")
            raise

    def connect(self, region: str) -> Aws:
        """A connection. Raises NotFound when the sandbox is meant and does not run."""
        if not self.sandbox:
            return connect(region, self.profile)
        address = running()
        if address is None:
            raise nothing_there()
        given = address.environment(region)
        keys = Keys(given["AWS_ACCESS_KEY_ID"], given["AWS_SECRET_ACCESS_KEY"])
        return connect(region, endpoint_url=address.url, keys=keys, scope=SANDBOX)

    def completed(self, text: str, name: str) -> str:
        """``text`` whose ``peagle`` commands are about ``name`` and work in the same place."""
        named = rf"(?:status|logs|destroy) (?:NAME|{re.escape(name)})"
        command = rf"(peagle (?:list|{named}))(?![\w.-]| --)"
        return re.sub(command, lambda found: found[1].replace("NAME", name) + self.option, text)

    @contextmanager
    def speaking_of(self, name: str) -> Iterator[None]:
        """Complete the commands that an error names as its fix."""
        try:
            yield
        except PeagleError as error:
            error.fix = self.completed(error.fix, name)
            raise


def nothing_there() -> NotFound:
    """The error for who looks for something in a sandbox that does not run."""
    return NotFound(
        "the sandbox does not run, so nothing is deployed in it",
        "peagle deploy PAIR --sandbox starts it",
    )


def leads_to_sandbox(environment: Mapping[str, str]) -> bool:
    """Whether AWS clients reach the running sandbox, as after ``peagle sandbox env``."""
    given, address = environment.get("AWS_ENDPOINT_URL"), running()
    if not given or address is None:
        return False
    try:
        asked, there = urlsplit(given), urlsplit(address.url)
        return asked.hostname in _LOOPBACK and asked.port == there.port
    except ValueError:
        return False


def chosen_account(profile: str | None, sandbox: bool, environment: Mapping[str, str]) -> Account:
    """The account that the options and AWS_ENDPOINT_URL mean. Raises UserError when they
    contradict each other."""
    if profile and sandbox:
        raise UserError("--profile and --sandbox exclude each other", "leave one out")
    led = leads_to_sandbox(environment)
    if profile and led:
        raise UserError("AWS_ENDPOINT_URL leads to the sandbox, and --profile to an account",
                        "unset AWS_ENDPOINT_URL, or leave out --profile")  # fmt: skip
    return Account(profile, sandbox or led)


def account_options(command: Command) -> Command:
    """``--profile`` and ``--sandbox``; the command receives ``account``."""

    @wraps(command)
    def with_account(*, profile: str | None, sandbox: bool, **given: Any) -> Any:
        account = chosen_account(profile, sandbox, os.environ)
        with account.speaking_of(_name_in(given)):
            return command(account=account, **given)

    return _PROFILE(_SANDBOX(with_account))


def _name_in(given: Mapping[str, Any]) -> str:
    """The deployment that a command is about, as far as its arguments tell."""
    plan = given.get("plan")
    return str(given.get("name") or (plan.name if plan else "NAME"))


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


def endpoint_options(command: Command) -> Command:
    """As ``deployment_options``, but the endpoint may also be one that deploy did not make: the
    command receives ``name`` too, and ``record`` is ``None`` for such a one."""

    @wraps(command)
    def with_endpoint(*, name: str, region: str | None, account: Account, **given: Any) -> Any:
        record, aws = find_endpoint(account, name, region)
        return command(aws=aws, name=name, record=record, account=account, **given)

    named = click.argument("name", shell_complete=complete_name)
    return named(cloud_options(with_endpoint))


def find_endpoint(account: Account, name: str, region: str | None) -> tuple[Deployment | None, Aws]:
    """The record if there is one; else the account must have an endpoint of that name.

    Where the account does not let us look, the endpoint is taken to be there.
    """
    try:
        return find_deployment(account, name, region)
    except NotFound:
        if not account.is_there:
            raise
        aws = account.connect(region or _region_of(os.environ))
        try:
            there = endpoints.describe(aws, name) is not None
        except AccessDenied:
            there = True
        if not there:
            raise
        return None, aws


def _region_of(environment: Mapping[str, str]) -> str:
    named = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    return named or DEFAULT_REGION


def find_deployment(account: Account, name: str, region: str | None) -> tuple[Deployment, Aws]:
    """The record, and a connection to where it was deployed.

    Raises NotFound for an unknown name, and UserError for another account's deployment.
    """
    if not account.is_there:
        raise nothing_there()
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
    sandbox = context.params.get("sandbox") or leads_to_sandbox(os.environ)
    scope = SANDBOX if sandbox else None
    return [CompletionItem(name) for name in records.names(scope) if name.startswith(incomplete)]
