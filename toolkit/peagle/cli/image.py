"""``peagle image``: build and push container images of plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click

from peagle.aws.images import (
    ImageRequest,
    build_image,
    build_image_on_aws,
    no_images_in_sandbox,
    push_image,
)
from peagle.cli.context import PeagleCommand, command_text
from peagle.cli.options import FILE, add_options, refuse_errors, region_option
from peagle.cli.plan_options import plan_options
from peagle.cli.project import CHOICE, ProjectCommand
from peagle.cli.session import Session, account_options
from peagle.cli.view.console import (
    StatusLine,
    json_option,
    print_document,
    print_json,
    print_line,
    print_status,
    print_written,
)
from peagle.errors import OptionMissing, Unsupported
from peagle.images.build import Built, findings_for_build
from peagle.images.docker import Image, connect_docker, show_image
from peagle.options import Options, arguments
from peagle.planning import Plan
from peagle.planning.runtime import DEFAULT_REGION
from peagle.project import EndpointChoice
from peagle.render.image import RuntimeKind, parse_tag
from peagle.render.requests import deploy_arguments, label_arguments, pair_arguments
from peagle.store import write_output
from peagle.text import plain


@click.group(epilog="Example: peagle image build tiny --runtime cpu")
def image() -> None:
    """Build and push container images of plans."""


_BUILD_OPTIONS = (
    click.Option(["--runtime"], type=click.Choice(["gpu", "cpu"]), default="gpu", show_default=True,
                 help="gpu: based on AWS's image, for SageMaker. cpu: based on --base, for this "
                 "machine."),
    click.Option(["--tag"], metavar="NAME:TAG",
                 help="Image name and tag.  [default: derived from pair and content]"),
    click.Option(["--base"], metavar="IMAGE", help="Base image.  [default: AWS's, or Python's]"),
    click.Option(["--bake-weights"], is_flag=True, help="Copy the weights into the image."),
    click.Option(["--push"], is_flag=True, help="Push the image to ECR afterwards."),
    click.Option(["--builder"], type=click.Choice(["docker", "codebuild"]), default="docker",
                 show_default=True,
                 help="docker: on this machine. codebuild: on AWS, which pushes the image too."),
    click.Option(["--if-configured"], is_flag=True,
                 help="Build nothing unless the project file has build_image for the endpoint."),
    click.Option(["--address-file"], metavar="FILE", type=FILE,
                 help="Write the pushed address, with its digest, to this file, for deploy "
                 "--image-from."),
)  # fmt: skip


@image.command("build", cls=ProjectCommand, epilog="Example: peagle image build gpt-oss-20b --push")
@partial(plan_options, tag_flag="--resource-tag")
@add_options(_BUILD_OPTIONS)
@account_options
@json_option
@click.pass_context
def build_(
    ctx: click.Context,
    /,
    plan: Plan,
    runtime: RuntimeKind,
    tag: str | None,
    base: str | None,
    bake_weights: bool,
    push: bool,
    builder: str,
    if_configured: bool,
    address_file: Path | None,
    session: Session,
    as_json: bool,
) -> None:
    """Build the image of PAIR or PLAN.

    Adds a small layer to the runtime's image: labels, and the entrypoint, which checks environment
    and pair before the engine starts. Weights are mounted by default. The same plan gives the same
    build context, byte for byte.
    """
    if if_configured:
        choice: EndpointChoice | None = ctx.meta.get(CHOICE)
        if choice is None:
            raise OptionMissing(
                "--if-configured needs an endpoint of a project file", "add --environment"
            )
        if not choice.builds_image:
            print_status("Nothing to build: the endpoint has no build_image in the project file.")
            return print_json({"pushed": None, "next": None}) if as_json else None
    if address_file is not None and builder == "docker" and not push:
        raise OptionMissing("--address-file needs a pushed image", "add --push")
    request = ImageRequest(plan, session.catalog, runtime, tag, base, bake_weights)
    refuse_errors(findings_for_build(plan))
    overrides = Options(pair=plan.pair, **plan.overrides.model_dump())
    served = [*pair_arguments(plan), *arguments(overrides)]
    pushed: str | None = None
    built: Built | None = None
    if builder == "codebuild":
        if runtime == "cpu":
            raise Unsupported(
                "CodeBuild cannot build CPU images: the CPU engine is on this machine only",
                "omit --builder codebuild",
                code="codebuild-without-cpu",
            )
        session.start()
        pushed = build_image_on_aws(session.aws(plan.region), request, print_status)
    else:
        built, pushed = _build_here(request, session, push, as_json)
    if pushed is not None and address_file is not None:
        write_output(address_file, f"{pushed}\n".encode())
        print_written(address_file)
    if as_json and built is not None:
        seconds = round(built.seconds, 1)
        return print_json({**plain(built.image), "seconds": seconds, "pushed": pushed})
    if pushed is None:
        assert built is not None
        return print_status("Next", next_command(plan, built.image, served))
    return _show_pushed(pushed, served, bake_weights, plan.region, as_json)


def _build_here(
    request: ImageRequest, session: Session, push: bool, as_json: bool
) -> tuple[Built, str | None]:
    """Build with Docker, and push if asked; the image, and its address in ECR."""
    plan = request.plan
    if push:  # what would prevent it is said before a long build
        if session.sandbox:
            raise no_images_in_sandbox("NAME")
        account = session.aws(plan.region).account
        print_status(f"The image will be pushed to account {account}, {plan.region}.")
    built = build_with_status(request, session)
    if not as_json:
        document = plain(built.image)
        print_document({key: document[key] for key in _SHOWN})
        print_line(f"built in {built.seconds:.1f} s")
    tags = plan.company.tags
    return built, _push(built.image, None, plan.region, session, tags) if push else None


@image.command(
    "push",
    cls=PeagleCommand,
    epilog="Example: peagle image push peagle-tiny:0.28.0-gpu-3f2a9c1b7d20",
)
@click.argument("name")
@click.option(
    "--registry", metavar="HOST", help="Registry.  [default: ECR of the account and region]"
)
@region_option("the repository")
@account_options
@json_option
def push_(name: str, registry: str | None, region: str, session: Session, as_json: bool) -> None:
    """Push the image NAME to ECR.

    Creates the repository if needed, with scans on push, immutable tags, and expiry of untagged
    images after a week. No credentials are written to disk.
    """
    parse_tag(name)
    image = show_image(connect_docker(), name)
    session.start()
    address = _push(image, registry, region, session)
    _show_pushed(address, label_arguments(image.pair), image.baked, region, as_json)


_SHOWN = ("name", "pair", "runtime", "base", "size_bytes", "layer_bytes")


def build_with_status(request: ImageRequest, session: Session) -> Built:
    """Build the image with Docker, with progress on stderr."""
    with StatusLine() as status:
        progress = partial(status.show, "building the image")
        return build_image(request, session.aws, progress)


def _push(
    built: Image, registry: str | None, region: str, session: Session, tags: Mapping[str, str] = {}
) -> str:
    aws = None if registry and not session.sandbox else session.aws(region)
    with StatusLine() as status:
        progress = partial(status.show, f"pushing {built.name}")
        return push_image(built, aws, registry, print_status, progress, tags)


def next_command(plan: Plan, built: Image, served: Sequence[str]) -> str:
    """The command after a build: an image for GPUs is pushed, one for CPUs runs here."""
    if built.runtime != "gpu":
        up = ("peagle", "local", "up", *served, "--engine", "docker", "--image", built.name)
        return command_text(up)
    region = ("--region", plan.region) if plan.region != DEFAULT_REGION else ()
    return command_text(("peagle", "image", "push", built.name, *region))


def _show_pushed(
    address: str, pair: Sequence[str], baked: bool, region: str, as_json: bool
) -> None:
    command = deploy_arguments(pair, address, baked, region)
    deploy = command_text(command) if command else None
    if as_json:
        return print_json({"pushed": address, "next": deploy})
    click.echo(address)
    if deploy:
        return print_status("Deploy it", deploy)
    return print_status("SageMaker pulls images from ECR only, not from here.")
