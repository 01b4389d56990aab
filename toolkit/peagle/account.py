"""The AWS to work with: an account, or the sandbox of this machine; and the deployments in it.

When ``AWS_ENDPOINT_URL`` is the running sandbox, everything works as if the sandbox was chosen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from peagle.aws.client import NO_ANSWER, Aws, Keys, connect
from peagle.aws.errors import LOOPBACK_HOSTS, AccessDenied
from peagle.aws.runtime import require_component
from peagle.catalog.tables import Instance
from peagle.deploy.discover import Prices, complete_deployment, current_deployment
from peagle.deploy.records import (
    Ambiguous,
    DamagedRecord,
    deployment_names,
    find_record,
)
from peagle.deploy.state import Deployment
from peagle.deploy.status import endpoint_created
from peagle.errors import CloudError, EngineError, NotFound, OptionsConflict, PeagleError, UserError
from peagle.planning.runtime import DEFAULT_REGION, REGION_VARIABLES
from peagle.sandbox import client as sandbox_client
from peagle.store import SANDBOX

IN_SANDBOX = "in-sandbox"
"""A name that the account does not know, and the sandbox does."""

NOT_SEARCHED = "account-unknown"
"""A name that this machine does not know, while the account cannot be searched.

Fix: get credentials, or name the profile that may look
"""


def _quiet(line: str) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Account:
    """A profile's account, or the sandbox.

    ``say`` gets a line when the sandbox starts or stops; ``own_instances`` are the instance types
    of the user's own catalogue, which the sandbox then offers too.
    """

    profile: str | None = None
    sandbox: bool = False
    say: Callable[[str], object] = field(default=_quiet, compare=False, repr=False)
    own_instances: Callable[[], Sequence[Instance]] = field(
        default=tuple, compare=False, repr=False
    )

    @property
    def scope(self) -> str | None:
        """The scope of its records, as far as it is known without calling AWS."""
        return SANDBOX if self.sandbox else None

    @property
    def is_available(self) -> bool:
        """False for a sandbox that does not run."""
        return not self.sandbox or sandbox_client.running_sandbox() is not None

    def where(self, region: str) -> str:
        """The region, and that it is the sandbox's: for people."""
        return f"{region}, sandbox" if self.sandbox else region

    def start(self) -> bool:
        """Start the sandbox if it is chosen and does not run; whether it was started."""
        started = not self.is_available
        if started:
            self.say("Starting the sandbox")
            sandbox_client.start_sandbox()
        with self.stopped_on_error(started):
            if self.sandbox and (more := self.own_instances()):
                sandbox_client.add_instances(more)
        return started

    def start_and_connect(self, region: str) -> tuple[bool, Aws]:
        """``start``, then ``connect``, whose error stops the sandbox again."""
        started = self.start()
        with self.stopped_on_error(started):
            return started, self.connect(region)

    @contextmanager
    def stopped_on_error(self, started: bool) -> Iterator[None]:
        """If the block ends with an error, stop the sandbox that was ``started`` for it, unless it
        is in use or the error's command changes it."""
        try:
            yield
        except BaseException as error:
            command = error.command if isinstance(error, PeagleError) else ()
            is_kept = tuple(command[:2]) == ("peagle", "sandbox") or not started or _is_used()
            if not is_kept:
                sandbox_client.stop_sandbox()
                self.say("Stopped the sandbox.")
            raise

    @contextmanager
    def sandbox_loss_reported(self) -> Iterator[None]:
        """If the sandbox ends while the block uses it, raise NotFound with the engines that still
        run, in place of the error that AWS cannot be reached."""
        try:
            yield
        except CloudError as error:
            if not self.sandbox or error.code not in NO_ANSWER or not sandbox_client.has_ended():
                raise
            raise sandbox_client.sandbox_not_running() from error

    def connect(self, region: str) -> Aws:
        """A connection. Raises NotFound when the sandbox is chosen and does not run."""
        if not self.sandbox:
            return connect(region, self.profile)
        address = sandbox_client.running_sandbox()
        if address is None:
            raise sandbox_client.sandbox_not_running()
        given = address.environment(region)
        keys = Keys(given["AWS_ACCESS_KEY_ID"], given["AWS_SECRET_ACCESS_KEY"])
        return connect(region, endpoint_url=address.url, keys=keys, scope=SANDBOX)


def _is_used() -> bool:
    """Whether the sandbox that runs has anything of a user; true where it does not answer."""
    try:
        return bool(deployment_names(SANDBOX) or sandbox_client.sandbox_status().endpoints)
    except PeagleError:
        return True


def leads_to_sandbox(environment: Mapping[str, str]) -> bool:
    """Whether AWS clients reach the running sandbox, as after ``peagle sandbox env``."""
    url, address = environment.get("AWS_ENDPOINT_URL"), sandbox_client.running_sandbox()
    if not url or address is None:
        return False
    try:
        endpoint, sandbox = urlsplit(url), urlsplit(address.url)
        return endpoint.hostname in LOOPBACK_HOSTS and endpoint.port == sandbox.port
    except ValueError:
        return False


def choose_account(
    profile: str | None = None,
    sandbox: bool = False,
    say: Callable[[str], object] = _quiet,
    own_instances: Callable[[], Sequence[Instance]] = tuple,
) -> Account:
    """The account that the options and AWS_ENDPOINT_URL choose. Raises UserError when they
    contradict each other."""
    if profile and sandbox:
        raise OptionsConflict("--profile and --sandbox are mutually exclusive", "omit one of them")
    is_sandbox = leads_to_sandbox(os.environ)
    if profile and is_sandbox:
        raise OptionsConflict(
            "AWS_ENDPOINT_URL points to the sandbox, but --profile selects an AWS account",
            "unset AWS_ENDPOINT_URL, or omit --profile",
        )
    return Account(profile, sandbox or is_sandbox, say, own_instances)


def default_region() -> str:
    """The region of the environment, or the toolkit's."""
    return next(filter(None, map(os.environ.get, REGION_VARIABLES)), DEFAULT_REGION)


def find_deployed(
    account: Account, name: str, region: str | None, prices: Prices, complete: bool = False
) -> tuple[Deployment, Aws]:
    """The deployment as the account has it, and a connection to its account and region: by this
    machine's record, else by the tags of its resources; with ``complete`` by both.

    Raises NotFound for an unknown name, AccessDenied when the account may not be searched, and
    UserError for another account's deployment.
    """
    if not account.is_available:
        raise sandbox_client.sandbox_not_running()
    try:
        record = find_record(name, account.scope, region)
        aws = account.connect(record.region)
    except NotFound as unknown:
        return _find_by_tag(account, name, region, prices, unknown)
    except DamagedRecord as damaged:
        account.say(f"{damaged.message}; {name} is read from its tags in the account.")
        return _find_by_tag(account, name, region or damaged.region, prices, damaged)
    except Ambiguous:
        aws = account.connect(region or DEFAULT_REGION)
        record = find_record(name, aws.scope, region)
        aws = aws.in_region(record.region)
    if aws.scope != record.scope:
        raise UserError(
            f"{name} was deployed in account {record.account}; these credentials are for "
            f"{aws.account}",
            "choose a different --profile",
            code="other-account",
        )
    current = current_deployment(aws, name, record, prices) or record
    if current.current.served.copies is not None:
        require_component(aws, name)
    return (complete_deployment(aws, current, prices) if complete else current), aws


def _find_by_tag(
    account: Account, name: str, region: str | None, prices: Prices, unknown: UserError
) -> tuple[Deployment, Aws]:
    """A deployment of another machine or template; raises ``unknown`` when there is none."""
    try:
        aws = account.connect(region or default_region())
        found = current_deployment(aws, name, None, prices)
    except UserError as error:  # such as without credentials
        if not account.sandbox and _sandbox_serves(name):
            raise _in_sandbox(unknown) from None
        if isinstance(unknown, DamagedRecord):
            raise unknown from error
        message = f"{unknown.message} on this machine, and the account is unknown: {error.message}"
        raise NotFound(message, error.remedy, code=NOT_SEARCHED) from error
    if found is None:
        if not account.sandbox and _sandbox_serves(name):
            raise _in_sandbox(unknown)
        if isinstance(unknown, DamagedRecord):
            unknown.is_alone = True
            unknown.fix = "nothing of it is in the account; remove the record"
            unknown.command = ("peagle", "destroy", name)
        raise unknown
    if found.current.served.copies is not None:
        require_component(aws, name)
    return found, aws


def find_served(
    account: Account, name: str, region: str | None, prices: Prices
) -> tuple[Deployment | None, Aws]:
    """The deployment if there is one; else the account must have an endpoint of that name.

    Without the permission to look, the endpoint is assumed to exist. Raises what ``find_deployed``
    does.
    """
    try:
        return find_deployed(account, name, region, prices)
    except AccessDenied:
        return None, account.connect(region or default_region())
    except NotFound as unknown:
        if not account.is_available or unknown.code in (NOT_SEARCHED, IN_SANDBOX):
            raise
        aws = account.connect(region or default_region())
        with suppress(AccessDenied):
            if endpoint_created(aws, name) is None:
                raise
        return None, aws


def _sandbox_serves(name: str) -> bool:
    """Whether the sandbox has an endpoint of that name, also one of another program."""
    if name in deployment_names(SANDBOX):
        return True
    with suppress(EngineError):  # the sandbox does not respond
        return any(one.name == name for one in sandbox_client.sandbox_status().endpoints)
    return False


def _in_sandbox(unknown: UserError) -> NotFound:
    return NotFound(unknown.message, "it is in the sandbox: choose that", IN_SANDBOX)
