"""The AWS that a command works with: an account, or with ``--sandbox`` the sandbox.

When ``AWS_ENDPOINT_URL`` is the running sandbox, every command works as with ``--sandbox``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

import click
from click.shell_completion import CompletionItem

from peagle import api
from peagle.aws.client import Aws, Keys
from peagle.aws.errors import LOOPBACK_HOSTS, AccessDenied
from peagle.catalog.tables import InstanceTable
from peagle.cli.context import typed_command
from peagle.cli.options import REGION_VARIABLES, catalog_of, command_catalog
from peagle.cli.output.console import print_status
from peagle.deploy.state import Ambiguous, Deployment
from peagle.errors import EngineError, Fix, NotFound, UserError
from peagle.planning.runtime import DEFAULT_REGION
from peagle.store import SANDBOX

_IN_SANDBOX = "in-sandbox"
"""The code of an unknown name that the sandbox knows."""

NOT_SEARCHED = "account-unknown"
"""The code of an unknown name when the account could not be searched."""

Command = Callable[..., Any]


@dataclass(frozen=True)
class Account:
    """A profile's account, or the sandbox."""

    profile: str | None = None
    sandbox: bool = False

    @property
    def scope(self) -> str | None:
        """The scope of its records, as far as it is known without calling AWS."""
        return SANDBOX if self.sandbox else None

    @property
    def is_available(self) -> bool:
        """False for a sandbox that does not run."""
        return not self.sandbox or api.running_sandbox() is not None

    def where(self, region: str) -> str:
        """The region, and that it is the sandbox's: for people."""
        return f"{region}, sandbox" if self.sandbox else region

    def start(self) -> bool:
        """Start the sandbox if it is chosen and does not run; whether it was started.

        It then offers the instance types of the user's own catalogue too.
        """
        started = not self.is_available
        if started:
            print_status("Starting the sandbox")
            api.start_sandbox()
        if self.sandbox and catalog_of(click.get_current_context()):
            api.add_instances(command_catalog().instances.instances)
        return started

    @contextmanager
    def stopped_on_error(self, started: bool) -> Iterator[None]:
        """If the block ends with an error, stop the sandbox that was ``started`` for it, unless it
        is in use."""
        try:
            yield
        except BaseException:
            if started and not api.deployment_names(SANDBOX) and not api.sandbox_status().endpoints:
                api.stop_sandbox()
                print_status("Stopped the sandbox.")
            raise

    def connect(self, region: str) -> Aws:
        """A connection. Raises NotFound when the sandbox is chosen and does not run."""
        if not self.sandbox:
            return api.connect(region, self.profile)
        address = api.running_sandbox()
        if address is None:
            raise api.sandbox_not_running()
        given = address.environment(region)
        keys = Keys(given["AWS_ACCESS_KEY_ID"], given["AWS_SECRET_ACCESS_KEY"])
        return api.connect(region, endpoint_url=address.url, keys=keys, scope=SANDBOX)


def leads_to_sandbox(environment: Mapping[str, str]) -> bool:
    """Whether AWS clients reach the running sandbox, as after ``peagle sandbox env``."""
    url, address = environment.get("AWS_ENDPOINT_URL"), api.running_sandbox()
    if not url or address is None:
        return False
    try:
        endpoint, sandbox = urlsplit(url), urlsplit(address.url)
        return endpoint.hostname in LOOPBACK_HOSTS and endpoint.port == sandbox.port
    except ValueError:
        return False


def chosen_account(profile: str | None = None, sandbox: bool = False) -> Account:
    """The account that the options and AWS_ENDPOINT_URL choose. Raises UserError when they
    contradict each other."""
    if profile and sandbox:
        raise UserError("--profile and --sandbox are mutually exclusive", "omit one of them")
    is_sandbox = leads_to_sandbox(os.environ)
    if profile and is_sandbox:
        raise UserError(
            "AWS_ENDPOINT_URL points to the sandbox, but --profile selects an AWS account",
            "unset AWS_ENDPOINT_URL, or omit --profile",
        )
    return Account(profile, sandbox or is_sandbox)


def account_options(command: Command) -> Command:
    """``--profile`` and ``--sandbox``; the command receives ``account``."""

    @click.option("--profile", help="AWS profile.  [default: boto3's credential chain]")
    @click.option(
        "--sandbox", is_flag=True, help="Use the AWS sandbox of this machine; needs no account."
    )
    @wraps(command)
    def with_account(*, profile: str | None, sandbox: bool, **given: Any) -> Any:
        return command(account=chosen_account(profile, sandbox), **given)

    return with_account


def cloud_options(command: Command) -> Command:
    """``--region``, ``--profile`` and ``--sandbox``; the command receives ``account`` and
    ``region`` (``None`` without the option)."""
    help_text = "AWS region; needed only if deployments in several regions share NAME."
    return click.option("--region", help=help_text)(account_options(command))


def deployment_options(command: Command, complete: bool = False) -> Command:
    """NAME and the account options; the command receives ``aws``, ``record`` and ``account``.

    An unknown name is reported before any connection. ``complete`` is that of ``find_deployment``.
    """

    @click.argument("name", shell_complete=complete_name)
    @cloud_options
    @wraps(command)
    def with_deployment(*, name: str, region: str | None, account: Account, **given: Any) -> Any:
        record, aws = find_deployment(account, name, region, complete)
        return command(aws=aws, record=record, account=account, **given)

    return with_deployment


def find_endpoint(account: Account, name: str, region: str | None) -> tuple[Deployment | None, Aws]:
    """The deployment if there is one; else the account must have an endpoint of that name.

    Without the permission to look, the endpoint is assumed to exist.
    """
    try:
        return find_deployment(account, name, region)
    except AccessDenied:
        return None, account.connect(region or default_region())
    except NotFound as unknown:
        if not account.is_available or unknown.code in (NOT_SEARCHED, _IN_SANDBOX):
            raise
        aws = account.connect(region or default_region())
        with suppress(AccessDenied):
            if api.endpoint_created(aws, name) is None:
                raise
        return None, aws


def default_region() -> str:
    """The region of the environment, or the toolkit's."""
    return next(filter(None, map(os.environ.get, REGION_VARIABLES)), DEFAULT_REGION)


def _sandbox_serves(name: str) -> bool:
    """Whether the sandbox has an endpoint of that name, also one of another program."""
    if name in api.deployment_names(SANDBOX):
        return True
    with suppress(EngineError):  # the sandbox does not respond
        return any(endpoint.name == name for endpoint in api.sandbox_status().endpoints)
    return False


def _in_sandbox(unknown: NotFound) -> NotFound:
    """The error, with the user's own command for the sandbox as its fix."""
    ctx = click.get_current_context()
    if ctx.params.get("profile"):  # it excludes --sandbox
        sentence = "it is in the sandbox: use --sandbox without --profile"
        return NotFound(unknown.message, sentence, _IN_SANDBOX)
    command = typed_command(ctx, *ctx.command_path.split()[1:])
    fix = Fix("it is in the sandbox", (*command, "--sandbox"))
    return NotFound(unknown.message, fix, _IN_SANDBOX)


def find_deployment(
    account: Account, name: str, region: str | None, complete: bool = False
) -> tuple[Deployment, Aws]:
    """The deployment as the account has it, and a connection to its account and region: by this
    machine's record, else by the tags of its resources; with ``complete`` by both.

    Raises NotFound for an unknown name, AccessDenied when the account may not be searched, and
    UserError for another account's deployment.
    """
    if not account.is_available:
        raise api.sandbox_not_running()
    prices = _prices(click.get_current_context())
    try:
        record = api.find_record(name, account.scope, region)
        aws = account.connect(record.region)
    except NotFound as unknown:
        return _find_by_tag(account, name, region, prices, unknown)
    except Ambiguous:
        aws = account.connect(region or DEFAULT_REGION)
        record = api.find_record(name, aws.scope, region)
        aws = aws.in_region(record.region)
    if aws.scope != record.scope:
        raise UserError(
            f"{name} was deployed in account {record.account}; these credentials are for "
            f"{aws.account}",
            "choose a different --profile",
            code="other-account",
        )
    current = api.current_deployment(aws, name, record, prices) or record
    return (api.complete_deployment(aws, current, prices) if complete else current), aws


def _prices(ctx: click.Context) -> Callable[[], InstanceTable]:
    return lambda: command_catalog(ctx).instances


def _find_by_tag(
    account: Account,
    name: str,
    region: str | None,
    prices: Callable[[], InstanceTable],
    unknown: NotFound,
) -> tuple[Deployment, Aws]:
    """A deployment of another machine or template; raises ``unknown`` when there is none."""
    try:
        aws = account.connect(region or default_region())
        found = api.current_deployment(aws, name, None, prices)
    except UserError as error:  # such as without credentials
        if not account.sandbox and _sandbox_serves(name):
            raise _in_sandbox(unknown) from None
        message = f"{unknown.message} on this machine, and the account is unknown: {error.message}"
        raise NotFound(message, Fix(error.fix, tuple(error.command)), code=NOT_SEARCHED) from error
    if found is None:
        if not account.sandbox and _sandbox_serves(name):
            raise _in_sandbox(unknown)
        raise unknown
    return found, aws


def complete_name(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of deployments, for shell completion."""
    sandbox = context.params.get("sandbox") or leads_to_sandbox(os.environ)
    names = api.deployment_names(SANDBOX if sandbox else None)
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
