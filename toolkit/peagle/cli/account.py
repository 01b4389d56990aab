"""The AWS that a command works with, and its deployments: the options, and hints for people."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from peagle.account import IN_SANDBOX, choose_account, find_deployed, find_served, leads_to_sandbox
from peagle.account import NOT_SEARCHED as NOT_SEARCHED
from peagle.account import Account as Account
from peagle.account import default_region as usual_region
from peagle.aws.client import Aws
from peagle.catalog.tables import Instance, InstanceTable
from peagle.cli.options import catalog_of, command_catalog
from peagle.cli.output.console import print_status
from peagle.cli.project import endpoint_argument
from peagle.deploy.records import deployment_lock, deployment_names
from peagle.deploy.state import Deployment
from peagle.engine.state import local_engine_names, local_engines
from peagle.errors import Fix, NotFound
from peagle.store import SANDBOX

T = TypeVar("T")
Command = Callable[..., Any]


def chosen_account(profile: str | None = None, sandbox: bool = False) -> Account:
    """The account that the options and AWS_ENDPOINT_URL choose. Raises UserError when they
    contradict each other."""
    return choose_account(profile, sandbox, print_status, _own_instances)


def started_account(ctx: click.Context) -> Account:
    """The account that the command's ``--profile`` and ``--sandbox`` choose, started if needed."""
    account = chosen_account(ctx.params["profile"], ctx.params["sandbox"])
    account.start()
    return account


def _own_instances() -> Sequence[Instance]:
    """The instance types of the command's catalogue, if it has one of the user's own."""
    if not catalog_of(click.get_current_context()):
        return ()
    return command_catalog().instances.instances


def account_options(command: Command) -> Command:
    """``--profile`` and ``--sandbox``; the command receives ``account``."""

    @click.option("--profile", help="AWS profile.  [default: boto3's credential chain]")
    @click.option(
        "--sandbox", is_flag=True, help="Use the AWS sandbox of this machine; needs no account."
    )
    @wraps(command)
    def with_account(*, profile: str | None, sandbox: bool, **given: Any) -> Any:
        account = chosen_account(profile, sandbox)
        with account.sandbox_loss_reported():
            return command(account=account, **given)

    return with_account


def cloud_options(command: Command) -> Command:
    """``--region``, ``--profile`` and ``--sandbox``; the command receives ``account`` and
    ``region`` (``None`` without the option)."""
    help_text = "AWS region; needed only if deployments in several regions share NAME."
    return click.option("--region", help=help_text)(account_options(command))


def deployment_options(command: Command, complete: bool = False) -> Command:
    """NAME, the project's and the account options; a ``ProjectCommand`` receives ``aws``,
    ``record`` and ``account``.

    An unknown name is reported before any connection. ``complete`` is that of ``find_deployment``.
    """

    @endpoint_argument(complete_name)
    @cloud_options
    @wraps(command)
    def with_deployment(*, name: str, region: str | None, account: Account, **given: Any) -> Any:
        record, aws = find_deployment(account, name, region, complete)
        return command(aws=aws, record=record, account=account, **given)

    return with_deployment


def names_deployment(account: Account, region: str | None, name: str) -> bool:
    """Whether ``name`` is a deployment's and no local engine's: options about AWS exclude local
    engines, and a deployment comes first."""
    return bool(account.sandbox or account.profile or region) or name in deployment_names()


def default_region() -> str:
    """The region of the environment, or the toolkit's."""
    return usual_region()


def find_endpoint(account: Account, name: str, region: str | None) -> tuple[Deployment | None, Aws]:
    """The deployment if there is one; else the account must have an endpoint of that name.

    Without the permission to look, the endpoint is assumed to exist. Errors are as those of
    ``find_deployment``.
    """
    return _unless_an_engine(
        account, name, region, lambda: find_served(account, name, region, _prices())
    )


def find_deployment(
    account: Account, name: str, region: str | None, complete: bool = False
) -> tuple[Deployment, Aws]:
    """``find_deployed`` with the prices of the command's catalogue; the error of a name that is in
    the sandbox, or of an engine on this machine, has the command for it as its fix."""
    return _unless_an_engine(
        account, name, region, lambda: find_deployed(account, name, region, _prices(), complete)
    )


@contextmanager
def changing(account: Account, name: str, region: str | None) -> Iterator[tuple[Deployment, Aws]]:
    """The deployment as it is while no other command of this machine changes it."""
    record, _ = find_deployment(account, name, region)
    with deployment_lock(*record.key):  # another command may have changed it before
        yield find_deployment(account, name, region, complete=True)


def _unless_an_engine(account: Account, name: str, region: str | None, find: Callable[[], T]) -> T:
    """What ``find`` returns; its error about a name that an engine of this machine has names the
    command for that, unless the options are about AWS."""
    try:
        return _with_hint(find)
    except NotFound as unknown:
        is_on_aws = account.sandbox or account.profile or region or unknown.code == IN_SANDBOX
        if is_on_aws or name not in local_engine_names():
            raise
        raise NotFound(unknown.message, _engine_fix(name), unknown.code) from None


def _engine_fix(name: str) -> Fix:
    """What this command would be about an engine of ``peagle local up``."""
    command = click.get_current_context().info_name
    has_log = command in ("logs", "invoke", "prove")
    words = ("local", "logs", name) if has_log else ("local", "list")
    if command == "prove":
        ready = [one for one in local_engines() if one.name == name and one.state == "ready"]
        words = ("prove", "--url", ready[0].openai_base_url) if ready else words
    return Fix("an engine of this machine has that name", ("peagle", *words))


def _with_hint(find: Callable[[], T]) -> T:
    try:
        return find()
    except NotFound as unknown:
        if unknown.code != IN_SANDBOX:
            raise
        raise _in_sandbox(unknown) from None


def _in_sandbox(unknown: NotFound) -> NotFound:
    ctx = click.get_current_context()
    if ctx.params.get("profile"):  # it excludes --sandbox
        sentence = "it is in the sandbox: use --sandbox without --profile"
        return NotFound(unknown.message, sentence, IN_SANDBOX)
    return NotFound(unknown.message, "it is in the sandbox: add --sandbox", IN_SANDBOX)


def _prices() -> Callable[[], InstanceTable]:
    ctx = click.get_current_context()
    return lambda: command_catalog(ctx).instances


def complete_name(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of deployments, for shell completion."""
    sandbox = context.params.get("sandbox") or leads_to_sandbox(os.environ)
    names = deployment_names(SANDBOX if sandbox else None)
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
