"""How ``peagle warm`` ends when it is told to, on AWS and on this machine.

``peagle warm --local``: what an engine of this machine compiled, kept on it.

``peagle warm``: start a pair once, and keep what its engine compiled for all later starts.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import click

from peagle.aws.client import Aws
from peagle.cli.account import Account, account_options
from peagle.cli.context import PeagleCommand
from peagle.cli.deploy import explain, refuse_unknown_price, show_and_refuse
from peagle.cli.image_push import findings_here
from peagle.cli.local import docker_runner
from peagle.cli.options import (
    build_command,
    command_catalog,
    command_words,
    names_own_image,
    peagle_words,
    plan_options,
    refuse_errors,
)
from peagle.cli.output.console import json_option, print_json, say
from peagle.cli.output.deploy import show_left
from peagle.cli.output.progress import StatusLine, Ticker
from peagle.cli.output.warm import (
    kept_document,
    print_kept,
    print_stored,
    say_ended,
    show_heard,
    show_intent,
    stored_document,
)
from peagle.deploy import state as records_of_aws
from peagle.deploy.context import DeploymentContext
from peagle.deploy.destroy import destroy
from peagle.deploy.preflight import AccountChoices, Preflight, preflight
from peagle.deploy.state import Deployment
from peagle.engine import state as records
from peagle.engine.installed import check_compiler, find_engine
from peagle.engine.runner import ProcessRunner, Runner
from peagle.engine.state import warm_folder
from peagle.errors import PeagleError, Refused, UserError
from peagle.planning import Plan, errors
from peagle.s3uri import is_s3_uri
from peagle.sandbox.state import engine_version, read_engine_kind
from peagle.warm import endpoint as warming
from peagle.warm.endpoint import Stored
from peagle.warm.local import COLLECTING_SUFFIX, collect_locally
from peagle.weights import Place


@contextmanager
def ended_politely() -> Iterator[None]:
    """SIGTERM as Ctrl-C: a pipeline that is cancelled must not leave an endpoint or an engine
    behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def keep_here(plan: Plan, engine_kind: str, gpus: bool, to: str | None, as_json: bool) -> None:
    """Collect from an engine of this machine into the folder ``to``, else into the toolkit's home.

    On a CPU the model is compiled for it, which it is not usually.
    """
    folder = _folder(to)
    refuse_errors(findings_here(plan, engine_kind))
    runner = _runner(plan, engine_kind, gpus)
    try:
        with ended_politely(), StatusLine() as status:
            artefact = collect_locally(plan, runner, folder, status.show)
    except KeyboardInterrupt:
        name = f"{plan.name}{COLLECTING_SUFFIX}"
        engine = records.read(name)
        if engine is not None and engine.state != "dead":  # a second Ctrl-C
            say(f"Its engine still runs. End it: peagle local down {name}")
        else:
            say_ended("its engine has ended", _again(engine_kind, gpus, to))
        raise
    folder.chmod(0o755)  # the container's own user reads it
    if as_json:
        print_json(kept_document(plan.pair, artefact))
        return
    print_kept(artefact, "" if to else _next(engine_kind, gpus))


def _folder(to: str | None) -> Path:
    if to is None:
        return warm_folder()
    if is_s3_uri(to):
        raise UserError(
            f"--to {to}: a start on this machine is kept on this machine",
            "leave out --local, and `peagle warm` stores one beside the weights in S3, made on the "
            "GPU that it is for",
        )
    folder = Path(to).expanduser().absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(f"nothing can be kept in {to}", "name a folder that you may write to")
    return folder


def _runner(plan: Plan, engine_kind: str, gpus: bool) -> Runner:
    if engine_kind == "docker":
        runner = docker_runner(plan, gpus, build_first=False)
        return replace(runner, compiled=not gpus, collecting=True)
    if gpus:
        raise UserError("--gpus is for containers", "add --engine docker")
    return ProcessRunner(compiled=True, collecting=True)


def _again(engine_kind: str, gpus: bool, to: str | None) -> str:
    """The command as it was given."""
    ctx = click.get_current_context()
    words = [*peagle_words(ctx), "warm", *command_words(ctx), "--local"]
    words += ["--engine", "docker"] if engine_kind == "docker" else []
    words += ["--gpus"] if gpus else []
    words += ["--to", to] if to else []
    return shlex.join(words)


def _next(engine_kind: str, gpus: bool) -> str:
    """The command that restores it, with the options that were given."""
    ctx = click.get_current_context()
    words = [*peagle_words(ctx), "local", "up", *command_words(ctx)]
    words += ["--engine", "docker"] if engine_kind == "docker" else []
    words += ["--gpus"] if gpus else ["--compile"]
    return shlex.join(words)


@click.command(
    cls=PeagleCommand,
    epilog="Examples: peagle warm gpt-oss-20b --model-source s3://my-models/gpt-oss-20b/target/ "
    "--drafter s3://my-models/gpt-oss-20b/drafter/ --image URI    peagle warm tiny --local",
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
    with records_of_aws.held(aws.scope, plan.region, own.name):
        with account.stopped_on_refusal(started):
            instances = command_catalog().instances
            found = preflight(aws, own, AccountChoices(role), instances)
            show_and_refuse(found, account)
            show_intent(found.desired, place, account.sandbox)
            refuse_unknown_price(found.desired.plan, asked.unknown_price)
            warming.check_writable(aws, place)
            if not asked.yes:
                _ask()
        words = shlex.join(command_words(click.get_current_context()))
        again = f"peagle warm {words}{account.option}"
        stored, seconds = _Run(aws, found, account, place, again).collect()
    if as_json:
        print_json(stored_document(found.desired.plan, stored, seconds))
    else:
        print_stored(found.desired.plan, stored, seconds, account.sandbox)


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
            context = DeploymentContext(self.aws, self._record(), ticker.show, explain)
            try:
                with tempfile.TemporaryDirectory(prefix="peagle-warm-") as folder:
                    stored = warming.collect(
                        context, self.found.change, self.found.desired, self.place, Path(folder)
                    )
            except BaseException as error:
                self._remove(context, error)
                if isinstance(error, KeyboardInterrupt):
                    ending.callback(say_ended, f"{context.record.name} is removed", self.again)
                raise
            return stored, self._remove(context)

    def _record(self) -> Deployment:
        name, aws = self.found.desired.plan.name, self.aws
        return self.found.record or Deployment(
            name=name, scope=aws.scope, account=aws.account, region=aws.region
        )

    def _remove(self, context: DeploymentContext, because: BaseException | None = None) -> float:
        """Remove all that was deployed; where that fails too, say what is left. The seconds that
        the endpoint lived."""
        begun = context.record.billing_since
        try:
            if isinstance(because, KeyboardInterrupt):
                show_heard(self.found.desired, context.record, self.account.sandbox)
            destroy(context)
        except BaseException:
            if isinstance(because, PeagleError):
                say(f"Before it could not be removed: {because}")
            left = records_of_aws.load(
                context.record.scope, context.record.region, context.record.name
            )
            show_left(left or context.record, self.account, self.again)
            raise
        return context.clock.now() - begun if begun else 0.0


def _ask() -> None:
    if not sys.stdin.isatty():
        raise UserError("there is no terminal to ask on", "read the lines above, then add --yes")
    if not click.confirm("Start it?", err=True):
        raise UserError("not started", "nothing was changed")
