"""The AWS that commands and programs work with: an account or the sandbox, and its deployments.

Modules that load boto3 are imported when they are used, since most plans send nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from peagle.catalog.loading import load_catalog, load_table
from peagle.catalog.tables import InstanceTable
from peagle.deploy.records import (
    Ambiguous,
    deployment_lock,
    deployment_names,
    deployment_regions,
    find_record,
    load_record,
    remove_record,
)
from peagle.deploy.state import Deployment
from peagle.errors import Fix, NotFound, OptionsConflict, UserError, nearest
from peagle.findings import refuse_errors
from peagle.planning.runtime import DEFAULT_REGION, REGION_VARIABLES
from peagle.store import SANDBOX

if TYPE_CHECKING:
    from peagle.aws.client import Aws
    from peagle.catalog.schema import Catalog
    from peagle.deploy.context import Observer, Progress
    from peagle.deploy.preflight import Preflight
    from peagle.deploy.status import DeploymentStatus, Listing
    from peagle.engine.state import LocalEngine
    from peagle.planning.plan import Plan
    from peagle.sandbox.state import Daemon

T = TypeVar("T")
Say = Callable[[str], object]

NOT_SEARCHED = "account-unknown"
"""A name that this machine does not know, while the account cannot be searched.

Fix: get credentials, or name the profile that may look
"""


def silent(line: str) -> None:
    """Say nothing."""


class Account:
    """A profile's account, or the sandbox: as ``sandbox`` says, or AWS_ENDPOINT_URL.

    A command shows what it does by overriding ``say``, ``progress`` and ``report_remaining``.
    """

    def __init__(
        self,
        region: str | None = None,
        profile: str | None = None,
        *,
        sandbox: bool = False,
        catalog: str | Path | None = None,
    ) -> None:
        self.region, self.profile = region, profile
        self._chosen = sandbox
        self._folder = None if catalog is None else Path(catalog)

    def __repr__(self) -> str:
        where = "sandbox" if self._chosen else self.profile or "default credentials"
        return f"<{type(self).__name__}: {where}, {self.region or 'default region'}>"

    def say(self, line: str) -> None:
        """Called when the sandbox starts or stops, and for a damaged record."""

    def progress(self, say: Say | None) -> AbstractContextManager[Observer]:
        """What shows the steps of a change."""
        return nullcontext(make_observer(say))

    def report_remaining(self, change: DeploymentChange, error: BaseException) -> None:
        """Called with what an error has left of a change."""

    @cached_property
    def catalog(self) -> Catalog:
        """The bundled catalogue with the targets of your own folder. Raises CatalogError when a
        table is wrong."""
        return load_catalog(self._folder)

    def prices(self) -> InstanceTable:
        """The instance types of the catalogue, with their prices; its targets are not read."""
        return load_table(InstanceTable, self._folder)

    @cached_property
    def sandbox(self) -> bool:
        """Whether it is the sandbox. Raises UserError for a profile together with it."""
        in_sandbox = self._chosen or leads_to_sandbox(os.environ)
        if self.profile and in_sandbox:
            chosen = "--sandbox" if self._chosen else "AWS_ENDPOINT_URL, which is the sandbox's,"
            raise OptionsConflict(
                f"--profile and {chosen} are mutually exclusive", "omit or unset one of them"
            )
        return in_sandbox

    @property
    def scope(self) -> str | None:
        """The scope of its records, as far as it is known without calling AWS."""
        return SANDBOX if self.sandbox else None

    @property
    def is_available(self) -> bool:
        """False for a sandbox that does not run."""
        return not self.sandbox or _running_sandbox() is not None

    def where(self, region: str) -> str:
        """The region, and that it is the sandbox's: for people."""
        return f"{region}, sandbox" if self.sandbox else region

    def start(self) -> None:
        """Start the sandbox if it is chosen and does not run."""
        if not self.sandbox:
            return
        from peagle.sandbox import client

        if not self.is_available:
            self.say("Starting the sandbox")
            client.start_sandbox()

    def connect(self, region: str | None = None) -> Aws:
        """A connection to the account, or to the sandbox, which is started if it does not run.
        Raises UserError for a wrong profile, and EngineError when the sandbox cannot be started."""
        self.start()
        return self.aws(region)

    def aws(self, region: str | None = None) -> Aws:
        """A connection, by default to its region or the usual one. Raises NotFound when the sandbox
        is chosen and does not run."""
        from peagle.aws.client import Keys, connect
        from peagle.sandbox.client import sandbox_not_running

        region = region or self.region or default_region()
        if not self.sandbox:
            return connect(region, self.profile)
        daemon = _running_sandbox()
        if daemon is None:
            raise sandbox_not_running()
        keys = Keys(daemon.key.id, daemon.key.secret)
        return connect(region, endpoint_url=daemon.url, keys=keys, scope=SANDBOX)

    def names_deployment(self, name: str) -> bool:
        """Whether ``name`` is a deployment's and no local engine's: what chooses an account or a
        region excludes local engines, and a deployment comes first."""
        return bool(self.sandbox or self.profile or self.region) or name in deployment_names()

    def local_engine(self, name: str) -> LocalEngine | None:
        """The engine of this machine that ``name`` means. Raises as ``ready_engine`` does."""
        from peagle.engine.state import LOCAL, ready_engine

        return ready_engine(name) if name == LOCAL or not self.names_deployment(name) else None

    @contextmanager
    def changing(
        self,
        name: str,
        region: str | None = None,
        say: Say | None = None,
        *,
        creates: bool = False,
    ) -> Iterator[DeploymentChange]:
        """The deployment, locked against other commands of this machine; an error within a change
        is followed by what remains. With ``creates`` it need not exist in the ``region``: the
        sandbox is started, and ``prepare`` finds it. Raises as ``find`` does."""
        from peagle.sandbox import client

        with ExitStack() as held:
            if creates:
                if self.sandbox:
                    client.check_sandbox_engine()
                aws = self.connect(region or default_region())
                record = Deployment(
                    name=name, scope=aws.scope, account=aws.account, region=aws.region
                )
                held.enter_context(deployment_lock(*record.key))
                record = load_record(*record.key) or record
            else:
                record, _ = self.find(name, region)
                held.enter_context(deployment_lock(*record.key))
                # Another command may have changed it before.
                record, aws = self.find(name, record.region, complete=True)
            change = DeploymentChange(self, aws, record, say)
            try:
                yield change
            except BaseException as error:  # also Ctrl-C, and errors that are bugs
                if change.is_unfinished:
                    if not change.record.resources:
                        remove_record(change.record)
                    self.report_remaining(change, error)
                raise

    def find(
        self, name: str, region: str | None = None, complete: bool = False
    ) -> tuple[Deployment, Aws]:
        """The deployment as the account has it, and a connection to its region: by this machine's
        record, else by the tags of its resources; with ``complete`` by both. Raises NotFound,
        AccessDenied when the account may not be searched, and UserError for another account's
        deployment."""
        from peagle.deploy.discover import current_deployment
        from peagle.sandbox.client import sandbox_not_running

        region = region or self.region
        if not self.is_available:
            raise sandbox_not_running()
        try:
            record = find_record(name, self.scope, region)
            aws = self.aws(record.region)
        except Ambiguous:
            aws = self.aws(region or DEFAULT_REGION)
            record = find_record(name, aws.scope, region)
            aws = aws.in_region(record.region)
        except NotFound as unknown:
            return self._find_by_tags(name, region, unknown)
        if aws.scope != record.scope:
            raise UserError(
                f"{name} was deployed in account {record.account}; these credentials are for "
                f"{aws.account}",
                "choose a different --profile",
                code="other-account",
            )
        current = current_deployment(aws, name, record, self.prices, complete=complete) or record
        return current, aws

    def _find_by_tags(
        self, name: str, region: str | None, unknown: NotFound
    ) -> tuple[Deployment, Aws]:
        """A deployment of another machine or template; raises ``unknown`` when there is none."""
        from peagle.deploy.discover import current_deployment, is_endpoint_name
        from peagle.engine.state import local_engine_names

        if not is_endpoint_name(name):
            raise UserError(f"{name[:60]!r} is not a deployment's name", "NAME comes first")
        cause: UserError | None = None
        try:
            aws = self.aws(region)
            if record := current_deployment(aws, name, None, self.prices):
                return record, aws
        except UserError as error:  # such as without credentials
            cause = error
        engines = () if self.sandbox or self.profile or region else local_engine_names()
        if name in engines:
            fix = Fix("an engine of this machine has that name", ("peagle", "local", "list"))
            raise NotFound(unknown.message, fix, unknown.code) from cause
        if cause is not None and not self._is_only_in_sandbox(name):
            message = f"{unknown.message} on this machine, and the account is unknown"
            unknown = NotFound(f"{message}: {cause.message}", cause.remedy, code=NOT_SEARCHED)
        if (unknown.command or unknown.code == NOT_SEARCHED) and (near := nearest(name, engines)):
            unknown.fix, unknown.command = near, ()
        raise unknown from cause

    def _is_only_in_sandbox(self, name: str) -> bool:
        return not self.sandbox and name in deployment_names(SANDBOX)

    def find_served(self, name: str) -> tuple[Deployment | None, Aws]:
        """The deployment if there is one; else the account has, or may not be asked for, such an
        endpoint."""
        from peagle.aws.errors import AccessDenied
        from peagle.deploy.status import endpoint_created

        try:
            return self.find(name)
        except AccessDenied:
            return None, self.aws()
        except NotFound as unknown:
            is_searched = self.is_available and unknown.code != NOT_SEARCHED
            if not is_searched or self._is_only_in_sandbox(name):
                raise
            aws = self.aws()
            with suppress(AccessDenied):
                if endpoint_created(aws, name) is None:
                    raise
            return None, aws

    def listing(self) -> Listing:
        """The deployments of its region, or of the default one and those that this machine deployed
        to."""
        from peagle.deploy.status import list_deployments

        aws = self.aws()
        others = () if self.region else deployment_regions(aws.scope)
        return list_deployments(aws, sorted({aws.region, *others}), self.prices)


@dataclass
class DeploymentChange:
    """A deployment that is locked for a change, and a connection to where it is. ``record`` is what
    the last step has left; it ``is_unfinished`` after an error, until the same command continues
    it."""

    account: Account
    aws: Aws
    record: Deployment
    say: Say | None = None
    is_unfinished: bool = False

    def prepare(
        self,
        plan: Plan,
        role: str | None = None,
        bucket: str | None = None,
        *,
        accept_unknown_price: bool = False,
        as_candidate: bool = False,
        review: Callable[[Preflight], object] = lambda preflight: None,
    ) -> Preflight:
        """What deploying the plan would change, checked in the account; ``review`` may show it.
        Raises Refused with the first error, and for an unknown price unless that is accepted."""
        from peagle.deploy.preflight import preflight
        from peagle.deploy.status import require_known_price

        checked = preflight(self.aws, plan, self.account.prices(), role, bucket, as_candidate)
        review(checked)
        refuse_errors(checked.findings)
        if as_candidate or checked.change in ("create", "update", "scale"):
            require_known_price(checked.desired.plan, accept_unknown_price)
        return checked

    def run(self, verb: Callable[..., T], *values: Any, continues: bool = True, **more: Any) -> T:
        """``verb`` of the deployment's context, ``values`` and ``more``. Unless it ``continues``
        when it is repeated, an error leaves nothing to report."""
        from peagle.deploy.context import DeploymentContext

        with self.account.progress(self.say) as observe:
            context = DeploymentContext(self.aws, self.record, observe)
            self.is_unfinished = continues
            try:
                result = verb(context, *values, **more)
            finally:
                self.record = context.record
        self.is_unfinished = False
        return result

    def status(self) -> DeploymentStatus:
        """The state of the deployment now."""
        from peagle.deploy.status import deployment_status

        return deployment_status(self.aws, self.record)


def _running_sandbox() -> Daemon | None:
    from peagle.sandbox.state import read_daemon

    return read_daemon()


def leads_to_sandbox(environment: Mapping[str, str]) -> bool:
    """Whether AWS clients reach the running sandbox, as after ``peagle sandbox env``."""
    url = environment.get("AWS_ENDPOINT_URL")
    daemon = _running_sandbox() if url else None
    if daemon is None:
        return False
    from peagle.aws.errors import LOOPBACK_HOSTS

    with suppress(ValueError):
        endpoint = urlsplit(url)
        return endpoint.hostname in LOOPBACK_HOSTS and endpoint.port == urlsplit(daemon.url).port
    return False


def default_region() -> str:
    """The region of the environment, or the toolkit's."""
    return next(filter(None, map(os.environ.get, REGION_VARIABLES)), DEFAULT_REGION)


def make_observer(say: Say | None) -> Observer:
    """An observer of a deployment that says each new state once."""
    last = ""

    def observe(progress: Progress) -> None:
        nonlocal last
        line = " | ".join(filter(None, (progress.state, progress.line)))
        if say is not None and last != line:
            last = line
            say(line)

    return observe
