"""``peagle warm``: start a pair once and keep its compile caches for all later starts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from peagle.aws.client import Aws
from peagle.cli.context import command_text, own_command
from peagle.cli.deploy import show_and_refuse
from peagle.cli.local import local_image
from peagle.cli.options import (
    OneOf,
    command_catalog,
    deploy_options,
    names_own_image,
    refuse_errors,
)
from peagle.cli.plan_options import plan_options
from peagle.cli.project import ProjectCommand
from peagle.cli.session import Session, account_options
from peagle.cli.view.console import confirm, json_option, print_json, print_status
from peagle.cli.view.deploy import show_remaining_resources
from peagle.cli.view.progress import DeploymentProgress, StatusLine, show_hashing
from peagle.cli.view.warm import (
    collected_document,
    local_document,
    print_collected,
    print_local,
    say_interrupt,
    say_interrupted,
    show_intent,
)
from peagle.deploy.preflight import Preflight
from peagle.deploy.preflight import preflight as run_preflight
from peagle.deploy.records import deployment_lock, load_record
from peagle.deploy.state import Deployment
from peagle.deploy.status import require_known_price
from peagle.engine.runner import LocalOptions
from peagle.engine.state import read_local_engine, warm_folder
from peagle.errors import (
    Fix,
    OptionMissing,
    OptionsConflict,
    PeagleError,
    Refused,
    UserError,
    command_line,
)
from peagle.findings import errors
from peagle.images.build import findings_on_this_machine
from peagle.planning import Plan
from peagle.render.requests import pair_arguments
from peagle.sandbox.client import check_sandbox_engine
from peagle.warm import (
    COLLECTING_SUFFIX,
    CollectedWarmStart,
    check_writable,
    collect_locally,
    collect_on_aws,
    collecting_plan,
    prefix_of_weights,
)
from peagle.weights.layout import WeightsPrefix
from peagle_serve.contract import is_s3_uri


@click.command(
    cls=ProjectCommand,
    epilog="""\b
Examples:
  peagle warm gpt-oss-20b --model-source s3://my-models/gpt-oss-20b/target/ \\
    --drafter s3://my-models/gpt-oss-20b/drafter/ --image URI
  peagle warm tiny --local
""",
)
@plan_options
@account_options
@deploy_options
@click.option(
    "--local", "local", is_flag=True, help="Run on this machine and store the caches here."
)
@click.option(
    "--engine",
    "engine_kind",
    type=OneOf(["process", "docker"]),
    help="Local: as a process or in a container.  [default: process]",
)
@click.option("--gpus", is_flag=True, help="Local, Docker: use the GPU image and all GPUs.")
@click.option(
    "--to",
    "folder",
    metavar="FOLDER",
    help="Local: folder for the warm start. [default: $PEAGLE_HOME/warm]",
)
@json_option
def warm(
    plan: Plan,
    session: Session,
    role: str | None,
    yes: bool,
    accept_unknown_price: bool,
    local: bool,
    engine_kind: str | None,
    gpus: bool,
    folder: str | None,
    as_json: bool,
) -> None:
    """Start PAIR once and keep its compile caches, so that later starts need not compile.

    On AWS: deploys a temporary endpoint NAME-warm, proves it, stores its compile and kernel caches
    next to the weights, and always removes it. The weights must be in S3 (`peagle weights sync`).
    Shows the price and asks first. `peagle deploy` with the same options then starts warm.
    Repeating the command replaces the stored caches.
    """
    if local:
        if session.sandbox or session.profile:
            raise OptionsConflict("--local cannot be combined with --sandbox or --profile",
                            "omit one: --local starts an engine on this machine")  # fmt: skip
        return _collect_locally(plan, engine_kind or "process", gpus, folder, as_json)
    if engine_kind or gpus or folder:
        raise OptionsConflict(
            "--engine, --gpus and --to are for starts on this machine", "add --local"
        )
    return _collect_on_aws(plan, session, role, yes, accept_unknown_price, as_json)


def _collect_locally(
    plan: Plan, engine_kind: str, gpus: bool, to: str | None, as_json: bool
) -> None:
    """Collect from an engine of this machine, into the folder ``to`` or ``$PEAGLE_HOME/warm``. On a
    CPU the model is compiled for this purpose."""
    ctx = click.get_current_context()
    folder = _writable_folder(to)
    refuse_errors(findings_on_this_machine(plan, engine_kind))
    if gpus and engine_kind != "docker":
        raise OptionMissing("--gpus requires a container", "add --engine docker")
    image = local_image(plan, gpus) if engine_kind == "docker" else None
    try:
        with _sigterm_as_interrupt(), StatusLine() as status:
            artifact = collect_locally(plan, folder, status.show, LocalOptions(image, gpus))
    except KeyboardInterrupt:
        name = f"{plan.name}{COLLECTING_SUFFIX}"
        engine = read_local_engine(name)
        if engine is not None and engine.state != "dead":  # a second Ctrl-C
            stop = command_text(("peagle", "local", "down", name))
            print_status("The engine is still running. Stop it", stop)
        else:
            again = own_command(ctx, without=("--yes", "-y", "--json"))
            say_interrupted("the engine has stopped", again)
        raise
    folder.chmod(0o755)  # the container's own user reads it
    if as_json:
        print_json(local_document(plan.pair, artifact))
        return
    restore = [] if to else _command_to_restore(ctx)
    if restore and not gpus:
        restore.append("--compile")
    print_local(plan.pair, artifact, command_line(restore))


def _command_to_restore(ctx: click.Context) -> list[str]:
    """The words of this command for `peagle local up`: the caches depend on its options."""
    words = own_command(ctx, without=("--yes", "-y", "--json", "--local"))
    at = words.index("warm")  # behind the folder of --catalog
    return [*words[:at], "local", "up", *words[at + 1 :]]


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C: a cancelled pipeline must not leave an endpoint or an engine."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _writable_folder(to: str | None) -> Path:
    if to is None:
        return warm_folder()
    if is_s3_uri(to):
        raise UserError(
            f"--to {to}: a local warm start can only be stored in a local folder",
            "omit --local: then the endpoint's GPU compiles, and the caches are stored with "
            "the weights in S3",
        )
    folder = Path(to).expanduser().absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UserError(
            f"cannot write to {to}", "use a folder that you may write to", "not-writable"
        )
    return folder


def _collect_on_aws(
    plan: Plan,
    session: Session,
    role: str | None,
    yes: bool,
    accept_unknown_price: bool,
    as_json: bool,
) -> None:
    if errors(plan.findings):
        refuse_errors(plan.findings)
    ctx = click.get_current_context()
    place = prefix_of_weights(plan)
    collecting = collecting_plan(plan)
    if session.sandbox:
        check_sandbox_engine(compiles=True)
    if not names_own_image(plan):
        build = ("peagle", "image", "build", *pair_arguments(plan))
        raise Refused(
            "the stock image cannot export compile caches",
            Fix("build and push an image, then pass it as --image URI", (*build, "--push")),
            code="image-cannot-collect",
        )
    started, aws = session.start_and_connect(plan.region)
    with deployment_lock(aws.scope, plan.region, collecting.name):
        with session.stopped_on_error(started):
            instances = command_catalog().instances
            with show_hashing():
                preflight = run_preflight(aws, collecting, instances, role)
            show_and_refuse(preflight, session)
            show_intent(preflight.desired, place, session.sandbox)
            require_known_price(preflight.desired.plan, accept_unknown_price)
            check_writable(aws, place)
            if not yes:
                confirm("Start the temporary endpoint?", "not started")
        again = own_command(ctx, without=("--yes", "-y", "--json"))
        stored = _collect(aws, preflight, session, place, again)
    if as_json:
        print_json(collected_document(preflight.desired.plan, stored))
    else:
        print_collected(preflight.desired.plan, stored, session.sandbox)


def _collect(
    aws: Aws, preflight: Preflight, session: Session, place: WeightsPrefix, again: Sequence[str]
) -> CollectedWarmStart:
    """Collect from the temporary endpoint, after the confirmation; if its removal fails, show what
    is left. ``again`` is the argv that starts over."""
    name = preflight.desired.plan.name
    causes: list[BaseException] = []

    def failed(error: BaseException, record: Deployment) -> None:
        causes.append(error)
        if isinstance(error, KeyboardInterrupt):
            say_interrupt(preflight.desired, record, session.sandbox)

    progress = DeploymentProgress(session.sandbox)
    with _sigterm_as_interrupt(), ExitStack() as at_end, progress as status:
        try:
            return collect_on_aws(aws, preflight, place, status.observe, failed)
        except BaseException as error:
            if left := load_record(aws.scope, aws.region, name):
                if causes and causes[0] is not error and isinstance(causes[0], PeagleError):
                    print_status(f"The error before the removal failed: {causes[0]}")
                show_remaining_resources(aws, left, session, again)
            elif isinstance(error, KeyboardInterrupt):
                at_end.callback(say_interrupted, f"{name} is removed", again)
            raise
