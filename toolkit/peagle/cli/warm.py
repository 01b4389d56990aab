"""``peagle warm``: start a pair once and keep its compile caches for all later starts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from peagle.cli.context import command_text, own_command
from peagle.cli.deploy import show_and_refuse
from peagle.cli.local import local_image
from peagle.cli.options import deploy_options, names_own_image, refuse_errors
from peagle.cli.plan_options import plan_options
from peagle.cli.project import ProjectCommand
from peagle.cli.session import Session, account_options
from peagle.cli.view.console import (
    confirm,
    json_option,
    print_document,
    print_facts,
    print_json,
    print_line,
    print_next,
    print_status,
)
from peagle.cli.view.deploy import show_remaining_resources
from peagle.cli.view.progress import StatusLine, show_hashing
from peagle.deploy.preflight import preflight as run_preflight
from peagle.deploy.records import deployment_lock, load_record
from peagle.deploy.state import Deployment
from peagle.deploy.status import require_known_price
from peagle.deploy.wait import limit_seconds
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
from peagle.text import format_price, format_usd
from peagle.warm.collect import (
    COLLECTING_SUFFIX,
    check_writable,
    collect_locally,
    collect_on_aws,
    collecting_plan,
    prefix_of_weights,
)
from peagle.warm.transfer import WarmArtifact
from peagle_serve.contract import WARM_FOLDER, is_s3_uri

_USUAL_MINUTES = 15
"""An instance, the weights, a cold start of two or three minutes, the proof, and the removal."""

_SANDBOX_MINUTES = 3

_NOT_REPEATED = ("--yes", "-y", "--json")


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
    type=click.Choice(["process", "docker"]),
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
    if not local:
        if engine_kind or gpus or folder:
            raise OptionsConflict(
                "--engine, --gpus and --to are for starts on this machine", "add --local"
            )
        return _collect_on_aws(plan, session, role, yes, accept_unknown_price, as_json)
    if session.sandbox or session.profile:
        raise OptionsConflict(
            "--local cannot be combined with --sandbox or --profile",
            "omit one: --local starts an engine on this machine",
        )
    return _collect_locally(plan, engine_kind or "process", gpus, folder, as_json)


def _collect_locally(
    plan: Plan, engine_kind: str, gpus: bool, to: str | None, as_json: bool
) -> None:
    """Collect from an engine of this machine, into the folder ``to`` or ``$PEAGLE_HOME/warm``. On a
    CPU the model is compiled for this purpose."""
    folder = warm_folder() if to is None else Path(to).expanduser().absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if is_s3_uri(to or "") or not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UserError(
            f"cannot write to {to or folder}", "use a folder that you may write to", "not-writable"
        )
    refuse_errors(findings_on_this_machine(plan, engine_kind))
    if gpus and engine_kind != "docker":
        raise OptionMissing("--gpus requires a container", "add --engine docker")
    image = local_image(plan, gpus) if engine_kind == "docker" else None
    again = own_command(click.get_current_context(), without=_NOT_REPEATED)
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
            print_status("Interrupted: nothing was kept. Start over", command_line(again))
        raise
    folder.chmod(0o755)  # the container's own user reads it
    document = {"pair": plan.pair, "file": str(artifact.archive), **_artifact_document(artifact)}
    if as_json:
        return print_json(document)
    print_line(f"{artifact.archive} is stored", bold=True)
    print_document(document)
    if to:
        return print_line(
            "An engine restores it when PEAGLE_WARM_FOLDER is set to the folder, and "
            "PEAGLE_WARM_SHA256 to this SHA-256."
        )
    # The words of this command for `peagle local up`: the caches depend on its options.
    words = [word for word in again if word != "--local"]
    at = words.index("warm")  # behind the folder of --catalog
    words[at : at + 1] = ["local", "up"]
    return print_next("Restore it", command_line(words if gpus else [*words, "--compile"]))


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C: a cancelled pipeline must not leave an endpoint or an engine."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _artifact_document(artifact: WarmArtifact) -> dict[str, Any]:
    return {
        "key": artifact.key,
        "bytes": artifact.size,
        "sha256": artifact.sha256,
        "files": artifact.files,
        "unpacked_bytes": artifact.unpacked_bytes,
        "seconds_cold": artifact.seconds_cold,
    }


def _collect_on_aws(
    plan: Plan,
    session: Session,
    role: str | None,
    yes: bool,
    accept_unknown_price: bool,
    as_json: bool,
) -> None:
    """Collect from a temporary endpoint, which is removed whatever happens; if that fails, what is
    left is shown."""
    if errors(plan.findings):
        refuse_errors(plan.findings)
    place, collecting = prefix_of_weights(plan), collecting_plan(plan)
    if session.sandbox:
        check_sandbox_engine(compiles=True)
    if not names_own_image(plan):
        build = ("peagle", "image", "build", *pair_arguments(plan))
        raise Refused(
            "the stock image cannot export compile caches",
            Fix("build and push an image, then pass it as --image URI", (*build, "--push")),
            code="image-cannot-collect",
        )
    again = own_command(click.get_current_context(), without=_NOT_REPEATED)
    name, causes = collecting.name, list[BaseException]()
    with session.starting(plan.region) as aws, deployment_lock(aws.scope, plan.region, name):
        with show_hashing():
            preflight = run_preflight(aws, collecting, session.catalog.instances, role)
        show_and_refuse(preflight, session)
        usd = preflight.desired.plan.price_per_hour_usd
        at_most = limit_seconds(preflight.desired.revision) / 60
        minutes = _SANDBOX_MINUTES if session.sandbox else _USUAL_MINUTES
        cost = "" if usd is None else f", about {format_usd(usd * minutes / 60)}"
        free = " on AWS (free in the sandbox)" if session.sandbox and cost else ""
        folder = place.part_uri(WARM_FOLDER)
        print_facts(
            (
                ("then", f"stores compile caches in {folder}, removes the endpoint"),
                ("takes", f"about {minutes} minutes, {at_most:.0f} at most{cost}{free}"),
            )
        )
        require_known_price(preflight.desired.plan, accept_unknown_price)
        check_writable(aws, place)
        if not yes:
            confirm("Start the temporary endpoint?", "not started")

        def failed(error: BaseException, record: Deployment) -> None:
            causes.append(error)
            if isinstance(error, KeyboardInterrupt) and record.of_type("Endpoint"):
                price = format_price(usd, session.sandbox)
                print_status(
                    f"Interrupted: removing {name}, which SageMaker may allow only when it has "
                    f"been created, in up to {at_most:.0f} minutes. A second Ctrl-C leaves the "
                    f"endpoint running, at {price}."
                )

        try:
            with _sigterm_as_interrupt(), session.progress() as observe:
                stored = collect_on_aws(aws, preflight, place, observe, failed)
        except BaseException as error:
            if left := load_record(aws.scope, aws.region, name):
                if causes and causes[0] is not error and isinstance(causes[0], PeagleError):
                    print_status(f"The error before the removal failed: {causes[0]}")
                show_remaining_resources(aws, left, session, again)
            elif isinstance(error, KeyboardInterrupt):
                print_status("Interrupted: nothing was kept. Start over", command_line(again))
            raise
    planned = preflight.desired.plan
    document = {
        "pair": planned.pair,
        "uri": stored.uri,
        **_artifact_document(stored.artifact),
        "region": planned.region,
        "instance_type": planned.instance_type,
        "endpoint": planned.name,
        "endpoint_seconds": round(stored.seconds, 1),
        "stand_in": stored.stand_in,
        "others": [{"key": key, "bytes": size} for key, size in stored.others.items()],
    }
    if as_json:
        return print_json(document)
    print_line(f"{stored.uri} is stored", bold=True)
    print_document(document)
    if usd is not None and not session.sandbox:
        cost = format_usd(usd * stored.seconds / 3600)
        print_line(f"The endpoint is removed; it cost about {cost}.")
    print_line(
        "Only the sandbox can use it."
        if stored.stand_in
        else "The next deploy of the same image, GPU and options pins and restores it. What is "
        "deployed now restores only what its plan pins."
    )
    if stored.others:
        listing = command_text(("peagle", "weights", "list", stored.place.uri))
        print_line("Every start downloads the others too", listing)
    return None
