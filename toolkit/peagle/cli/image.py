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
from peagle.cli import view
from peagle.cli.context import command_text
from peagle.cli.options import command, option, print_and_refuse, region_option
from peagle.cli.plan_options import plan_options
from peagle.cli.project import CHOICE, ProjectCommand
from peagle.cli.session import Session, account_options
from peagle.errors import OptionMissing, Unsupported
from peagle.images.build import Built, findings_with_own_image
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


@command("peagle image build gpt-oss-20b --push", name="build", of=image, cls=ProjectCommand)
@partial(plan_options, tag_flag="--resource-tag")
@option("--runtime", "gpu: based on AWS's image, for SageMaker. cpu: based on --base, for "
        "this machine.", ("gpu", "cpu"), default="gpu")  # fmt: skip
@option("--tag NAME:TAG", "Image name and tag.  [default: derived from pair and content]")
@option("--base IMAGE", "Base image.  [default: AWS's, or Python's]")
@option("--bake-weights", "Copy the weights into the image.", bool)
@option("--push", "Push the image to ECR afterwards.", bool)
@option("--builder", "docker: on this machine. codebuild: on AWS, which pushes the image too.",
        ("docker", "codebuild"), default="docker")  # fmt: skip
@option("--if-configured", "Build nothing unless the project file has build_image for the "
        "endpoint.", bool)  # fmt: skip
@option("--address-file FILE", "Write the pushed address, with its digest, to this file, for "
        "deploy --image-from.", "file")  # fmt: skip
@account_options
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
) -> None:
    """Build the image of PAIR or PLAN.

    Adds a small layer to the runtime's image: labels, and the entrypoint, which checks environment
    and pair before the engine starts. Weights are mounted by default. The same plan gives the same
    build context, byte for byte.
    """
    if if_configured:
        choice: EndpointChoice | None = ctx.meta.get(CHOICE)
        if choice is None:
            message = "--if-configured needs an endpoint of a project file"
            raise OptionMissing(message, "add --environment")
        if not choice.builds_image:
            text = "Nothing to build: the endpoint has no build_image in the project file."
            view.print_status(text)
            return view.print_json({"pushed": None, "next": None})
    if address_file is not None and builder == "docker" and not push:
        raise OptionMissing("--address-file needs a pushed image", "add --push")
    request = ImageRequest(plan, session.catalog, runtime, tag, base, bake_weights)
    print_and_refuse([each for each in findings_with_own_image(plan) if each.level != "note"])
    overrides = Options(pair=plan.pair, **plan.overrides.model_dump())
    served = [*pair_arguments(plan), *arguments(overrides)]
    pushed: str | None = None
    built: Built | None = None
    if builder == "codebuild":
        if runtime == "cpu":
            message = "CodeBuild cannot build CPU images: the CPU engine is on this machine only"
            raise Unsupported(message, "omit --builder codebuild", "codebuild-without-cpu")
        session.start()
        pushed = build_image_on_aws(session.aws(plan.region), request, view.print_status)
    else:
        built, pushed = _build_here(request, session, push)
    if pushed is not None and address_file is not None:
        write_output(address_file, f"{pushed}\n".encode())
        view.print_written(address_file)
    if view.wants_json() and built is not None:
        seconds = round(built.seconds, 1)
        return view.print_json({**plain(built.image), "seconds": seconds, "pushed": pushed})
    if pushed is None:
        assert built is not None
        return view.print_status("Next", next_command(plan, built.image, served))
    return _show_pushed(pushed, served, bake_weights, plan.region)


def _build_here(request: ImageRequest, session: Session, push: bool) -> tuple[Built, str | None]:
    """Build with Docker, and push if asked; the image, and its address in ECR."""
    plan = request.plan
    if push:  # what would prevent it is said before a long build
        if session.sandbox:
            raise no_images_in_sandbox("NAME")
        account = session.aws(plan.region).account
        view.print_status(f"The image will be pushed to account {account}, {plan.region}.")
    built = build_with_status(request, session)
    document = plain(built.image)
    view.print_document({key: document[key] for key in _SHOWN})
    view.print_line(f"built in {built.seconds:.1f} s")
    tags = plan.company.tags
    return built, _push(built.image, None, plan.region, session, tags) if push else None


@command("peagle image push peagle-tiny:0.28.0-gpu-3f2a9c1b7d20", name="push", of=image)
@click.argument("name")
@option("--registry HOST", "Registry.  [default: ECR of the account and region]")
@region_option("the repository")
@account_options
def push_(name: str, registry: str | None, region: str, session: Session) -> None:
    """Push the image NAME to ECR.

    Creates the repository if needed, with scans on push, immutable tags, and expiry of untagged
    images after a week. No credentials are written to disk.
    """
    parse_tag(name)
    image = show_image(connect_docker(), name)
    session.start()
    address = _push(image, registry, region, session)
    _show_pushed(address, label_arguments(image.pair), image.baked, region)


_SHOWN = ("name", "pair", "runtime", "base", "size_bytes", "layer_bytes")


def build_with_status(request: ImageRequest, session: Session) -> Built:
    """Build the image with Docker, with progress on stderr."""
    with view.StatusLine() as status:
        progress = partial(status.show, "building the image")
        return build_image(request, session.aws, progress)


def _push(
    built: Image, registry: str | None, region: str, session: Session, tags: Mapping[str, str] = {}
) -> str:
    aws = None if registry and not session.sandbox else session.aws(region)
    with view.StatusLine() as status:
        progress = partial(status.show, f"pushing {built.name}")
        return push_image(built, aws, registry, view.print_status, progress, tags)


def next_command(plan: Plan, built: Image, served: Sequence[str]) -> str:
    """The command after a build: an image for GPUs is pushed, one for CPUs runs here."""
    if built.runtime != "gpu":
        up = ("peagle", "local", "up", *served, "--engine", "docker", "--image", built.name)
        return command_text(up)
    region = ("--region", plan.region) if plan.region != DEFAULT_REGION else ()
    return command_text(("peagle", "image", "push", built.name, *region))


def _show_pushed(address: str, pair: Sequence[str], baked: bool, region: str) -> None:
    command = deploy_arguments(pair, address, baked, region)
    deploy = command_text(command) if command else None
    view.print_json({"pushed": address, "next": deploy})
    view.print_text(address)
    if deploy:
        return view.print_status("Deploy it", deploy)
    return view.print_status("SageMaker pulls images from ECR only, not from here.")
