"""The Session that a command works with: the options that choose it, and what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from peagle.account import NOT_SEARCHED as NOT_SEARCHED
from peagle.account import DeploymentChange, Say
from peagle.catalog.schema import Catalog
from peagle.cli import view
from peagle.cli.context import typed_command
from peagle.cli.options import catalog_of, command, command_catalog, option
from peagle.cli.project import ACCOUNT, ProjectCommand, complete_name
from peagle.errors import NotProved
from peagle.session import Session as Session

if TYPE_CHECKING:
    from peagle.deploy.context import Observer

Command = Callable[..., Any]

NOT_REPEATED = ("--yes", "-y", "--no-wait", "--keep-failed", "--json")
"""Options that the command to continue with omits."""


class CommandSession(Session):
    """A session with the command's catalogue, which shows what it does."""

    def __init__(self, *place: str | None, sandbox: bool = False) -> None:
        self._ctx = click.get_current_context()
        super().__init__(*place, sandbox=sandbox, catalog=catalog_of(self._ctx))

    @property
    def catalog(self) -> Catalog:
        return command_catalog(self._ctx)

    def say(self, line: str) -> None:
        view.print_status(line)

    @contextmanager
    def progress(self, say: Say | None) -> Iterator[Observer]:
        with view.DeploymentProgress(self.sandbox) as status:
            yield status.observe

    def report_remaining(self, change: DeploymentChange, error: BaseException) -> None:
        from peagle.cli.view.deploy import show_remaining_resources
        from peagle.deploy.apply import RolledBack

        # A deploy that is repeated repeats its proof; another command would change what serves.
        settled = RolledBack if self._ctx.command.name == "deploy" else NotProved
        again = typed_command(without=NOT_REPEATED)
        show_remaining_resources(change, () if isinstance(error, settled) else again)


def new_session(
    region: str | None = None, profile: str | None = None, sandbox: bool = False
) -> Session:
    """The session of the running command. Raises UserError when options and AWS_ENDPOINT_URL
    contradict."""
    session = CommandSession(region, profile, sandbox=sandbox)
    _ = session.sandbox
    return session


def account_options(command: Command, with_region: bool = False) -> Command:
    """``--profile`` and ``--sandbox``; the command receives ``session``."""

    @option("--profile", "AWS profile.  [default: boto3's credential chain]")
    @option("--sandbox", "Use the AWS sandbox of this machine; needs no account.", bool)
    @wraps(command)
    def with_session(*, profile: str | None, sandbox: bool, **params: Any) -> Any:
        region = params.pop("region") if with_region else None
        return command(session=new_session(region, profile, sandbox), **params)

    return with_session


def cloud_options(command: Command) -> Command:
    """``--region``, ``--profile`` and ``--sandbox``; the command receives ``session``."""
    text = "AWS region; needed only if deployments in several regions share NAME."
    return option("--region", text)(account_options(command, with_region=True))


def deployment_command(
    *examples: str, metavar: str = "", **settings: Any
) -> Callable[[Command], click.Command]:
    """A command about the deployment NAME, with ``session`` and ``--json``; ``name`` is ``None``
    only with a parameter of ``instead``. The settings are those of ``ProjectCommand``."""
    metavar = metavar or ("[NAME]" if "instead" in settings else "NAME")
    settings = {"keys": ACCOUNT, **settings}
    name = click.argument("name", metavar=metavar, required=False, shell_complete=complete_name)

    def add(function: Command) -> click.Command:
        return command(*examples, cls=ProjectCommand, **settings)(name(cloud_options(function)))

    return add
