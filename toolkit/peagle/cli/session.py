"""The Session that a command works with: the options that choose it, and what it shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from peagle.cli.options import catalog_of, command_catalog
from peagle.cli.project import endpoint_argument
from peagle.cli.view.console import print_status
from peagle.cli.view.progress import DeploymentProgress
from peagle.deploy.records import deployment_names
from peagle.session import NOT_SEARCHED as NOT_SEARCHED
from peagle.session import Session as Session
from peagle.session import leads_to_sandbox
from peagle.store import SANDBOX

if TYPE_CHECKING:
    from peagle.aws.client import Aws
    from peagle.deploy.context import Observer
    from peagle.deploy.state import Deployment

Command = Callable[..., Any]


def new_session(
    ctx: click.Context,
    region: str | None = None,
    profile: str | None = None,
    sandbox: bool = False,
) -> Session:
    """A session with the command's catalogue, which shows what it does. Raises UserError when the
    options and AWS_ENDPOINT_URL contradict each other."""
    session = Session(region, profile, sandbox=sandbox, catalog=catalog_of(ctx))
    in_sandbox = session.sandbox
    session.load_catalog = lambda: command_catalog(ctx)
    session.say = print_status

    @contextmanager
    def progress() -> Iterator[Observer]:
        with DeploymentProgress(in_sandbox) as status:
            yield status.observe

    def reporting(
        aws: Aws, record: Deployment, again: Sequence[str]
    ) -> AbstractContextManager[None]:
        from peagle.cli.view.deploy import remaining_resources_shown

        return remaining_resources_shown(aws, record, session, again)

    session.progress, session.reporting = progress, reporting
    return session


def started_session(ctx: click.Context) -> Session:
    """The session of the command's ``--profile`` and ``--sandbox``, started if needed."""
    session = new_session(ctx, None, ctx.params["profile"], ctx.params["sandbox"])
    session.start()
    return session


def account_options(command: Command, with_region: bool = False) -> Command:
    """``--profile`` and ``--sandbox``; the command receives ``session``."""

    @click.option("--profile", help="AWS profile.  [default: boto3's credential chain]")
    @click.option(
        "--sandbox", is_flag=True, help="Use the AWS sandbox of this machine; needs no account."
    )
    @wraps(command)
    def with_session(*, profile: str | None, sandbox: bool, **params: Any) -> Any:
        region = params.pop("region") if with_region else None
        session = new_session(click.get_current_context(), region, profile, sandbox)
        with session.sandbox_loss_reported():
            return command(session=session, **params)

    return with_session


def cloud_options(command: Command) -> Command:
    """``--region``, ``--profile`` and ``--sandbox``; the command receives ``session``."""
    help_text = "AWS region; needed only if deployments in several regions share NAME."
    return click.option("--region", help=help_text)(account_options(command, with_region=True))


def deployment_options(command: Command, complete: bool = False) -> Command:
    """NAME, the project's and the account options; a ``ProjectCommand`` receives ``aws``,
    ``record`` and ``session``. ``complete`` is that of ``Session.find``."""

    @endpoint_argument(complete_name)
    @cloud_options
    @wraps(command)
    def with_deployment(*, name: str, session: Session, **params: Any) -> Any:
        record, aws = session.find(name, complete=complete)
        return command(aws=aws, record=record, session=session, **params)

    return with_deployment


def complete_name(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of deployments, for shell completion."""
    sandbox = context.params.get("sandbox") or leads_to_sandbox(os.environ)
    names = deployment_names(SANDBOX if sandbox else None)
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
