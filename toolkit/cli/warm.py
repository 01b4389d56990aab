"""``peagle warm``: start a pair once, and keep what its engine compiled for all later starts."""

from __future__ import annotations

import shlex
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click

from toolkit.aws import records, warming
from toolkit.aws.destruction import destroy
from toolkit.aws.preflight import Choices, Preflight, preflight
from toolkit.aws.records import Deployment
from toolkit.aws.session import Aws
from toolkit.aws.warming import Stored
from toolkit.aws.weights import Place
from toolkit.aws.work import Work
from toolkit.cli.cloud import Account, account_options
from toolkit.cli.console import json_option, print_json, say
from toolkit.cli.deploy import explain, refuse_unknown_price, show_and_refuse
from toolkit.cli.deploy_words import show_left
from toolkit.cli.local_warm import keep_here
from toolkit.cli.options import build_command, command_words, plan_options, refuse_errors
from toolkit.cli.progress import Ticker
from toolkit.cli.resolving import names_own_image
from toolkit.cli.warm_ending import ended_politely
from toolkit.cli.warm_words import print_stored, say_ended, show_heard, show_intent, stored_document
from toolkit.errors import PeagleError, Refused, UserError
from toolkit.local.compiler import check_compiler
from toolkit.local.engine import find_engine
from toolkit.planning import Plan, errors
from toolkit.sandbox.bundled import engine_version
from toolkit.sandbox.state import read_engine_kind


@click.command(
    epilog="Examples: peagle warm gpt-oss-20b --model-source s3://my-models/gpt-oss-20b/target/ "
    "--drafter s3://my-models/gpt-oss-20b/drafter/ --image URI    peagle warm tiny --local"
)
@plan_options
@account_options
@click.option("--role", envvar="PEAGLE_ROLE", help="Execution role: ARN or name.  [default: found]")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--accept-unknown-price", is_flag=True, help="Start what has no known price.")
@click.option("--local", "here", is_flag=True, help="On this machine, and kept on it.")
@click.option(
    "--engine",
    "engine_kind",
    type=click.Choice(["process", "docker"]),
    help="Local: as a process of this machine, or in a container.  [default: process]",
)
@click.option("--gpus", is_flag=True, help="Local, Docker: the image for GPUs, with all of them.")
@click.option("--to", "folder", metavar="FOLDER", help="Local: keep it there.")
@json_option
def warm(
    plan: Plan,
    account: Account,
    role: str | None,
    yes: bool,
    accept_unknown_price: bool,
    here: bool,
    engine_kind: str | None,
    gpus: bool,
    folder: str | None,
    as_json: bool,
) -> None:
    """Start PAIR once, and keep what its engine compiles, so that later starts need not.

    On AWS: deploys a temporary endpoint NAME-warm, proves it, stores its compile and kernel caches
    beside the weights, and removes it whatever happens. The weights must be in S3 already
    (`peagle weights sync`). Shows what it does and at what price, and asks. With the same options
    `peagle deploy` starts from there. Doing it again replaces what is there.
    """
    if here:
        if account.sandbox or account.profile:
            raise UserError("--local is about this machine, --sandbox and --profile are not",
                            "leave one out")  # fmt: skip
        return keep_here(plan, engine_kind or "process", gpus, folder, as_json)
    if engine_kind or gpus or folder:
        raise UserError("--engine, --gpus and --to are for starts on this machine", "add --local")
    return _keep_in_s3(plan, account, role, _Asked(yes, accept_unknown_price), as_json)


@dataclass(frozen=True)
class _Asked:
    """What was agreed to beforehand."""

    yes: bool
    unknown_price: bool


def _keep_in_s3(
    plan: Plan, account: Account, role: str | None, asked: _Asked, as_json: bool
) -> None:
    if errors(plan.findings):
        refuse_errors(plan.findings)
    place = warming.place_beside_weights(plan)
    own = warming.collecting(plan)
    if account.sandbox:
        _check_engine()
    elif not names_own_image(plan):
        raise Refused(
            "AWS's image cannot tell what its engine compiled",
            "build and push ours, then give --image URI: "
            f"{build_command(click.get_current_context(), '--push')}",
        )
    started = account.start()
    aws = account.connect(plan.region)
    with records.held(aws.scope, plan.region, own.name):
        with account.deciding(started):
            found = preflight(aws, own, Choices(role))
            show_and_refuse(found, account)
            show_intent(found.wanted, place, account.sandbox)
            refuse_unknown_price(found.wanted.plan, asked.unknown_price)
            warming.check_writable(aws, place)
            if not asked.yes:
                _ask()
        words = shlex.join(command_words(click.get_current_context()))
        again = f"peagle warm {words}{account.option}"
        stored, seconds = _Run(aws, found, account, place, again).collect()
    if as_json:
        print_json(stored_document(found.wanted.plan, stored, seconds))
    else:
        print_stored(found.wanted.plan, stored, seconds, account.sandbox)


def _check_engine() -> None:
    """The sandbox compiles on this machine."""
    engine = find_engine(engine_version())
    if read_engine_kind() == "process":
        check_compiler(engine.python)


@dataclass(frozen=True)
class _Run:
    """One warm start, after the question; ``again`` is the command that goes on with it."""

    aws: Aws
    found: Preflight
    account: Account
    place: Place
    again: str

    def collect(self) -> tuple[Stored, float]:
        """The artefact in S3, and the seconds for which the endpoint was paid. The endpoint is
        gone afterwards, whatever happened."""
        ticking = Ticker(free=self.account.sandbox)
        with ended_politely(), ExitStack() as ending, ticking as ticker:
            work = Work(self.aws, self._record(), ticker.show, explain)
            try:
                with tempfile.TemporaryDirectory(prefix="peagle-warm-") as folder:
                    stored = warming.collect(
                        work, self.found.change, self.found.wanted, self.place, Path(folder)
                    )
            except BaseException as error:
                self._remove(work, error)
                if isinstance(error, KeyboardInterrupt):
                    ending.callback(say_ended, f"{work.record.name} is removed", self.again)
                raise
            return stored, self._remove(work)

    def _record(self) -> Deployment:
        name, aws = self.found.wanted.plan.name, self.aws
        return self.found.record or Deployment(
            name=name, scope=aws.scope, account=aws.account, region=aws.region
        )

    def _remove(self, work: Work, because: BaseException | None = None) -> float:
        """Remove all that was deployed; where that fails too, say what is left. The seconds that
        the endpoint lived."""
        begun = work.record.billing_since
        try:
            if isinstance(because, KeyboardInterrupt):
                show_heard(self.found.wanted, work.record, self.account.sandbox)
            destroy(work)
        except BaseException:
            if isinstance(because, PeagleError):
                say(f"Before it could not be removed: {because}")
            left = records.load(work.record.scope, work.record.region, work.record.name)
            show_left(left or work.record, self.account, self.again)
            raise
        return work.clock.now() - begun if begun else 0.0


def _ask() -> None:
    if not sys.stdin.isatty():
        raise UserError("there is no terminal to ask on", "read the lines above, then add --yes")
    if not click.confirm("Start it?", err=True):
        raise UserError("not started", "nothing was changed")
