"""Building an image: with Docker on this machine, or with CodeBuild on AWS.

Removing an image, and what to end first where containers use it.

``peagle image``: the container images of plans.
"""

from __future__ import annotations

from typing import Any

import click

from peagle.aws import codebuild, ecr
from peagle.aws.client import Aws
from peagle.aws.image_records import PushedImage, record_push
from peagle.checks.facts import in_ecr
from peagle.cli.account import DEFAULT_REGION, Account, account_options
from peagle.cli.context import PeagleCommand
from peagle.cli.image_push import (
    Request,
    check_pushing,
    cpu_recipe,
    deploy_command,
    findings_for_building,
    gpu_recipe,
    logins_for,
    next_command,
    push_built,
    push_image,
    weights_of,
    words_for,
)
from peagle.cli.options import command_catalog, plan_options, refuse_errors
from peagle.cli.output.columns import WIDE, room
from peagle.cli.output.console import json_option, print_json, say
from peagle.cli.output.image import table
from peagle.cli.output.progress import StatusLine
from peagle.engine import state as records
from peagle.engine.container import container_name
from peagle.errors import CloudError, EngineError, Unsupported, UserError
from peagle.images import Built, Docker, Image, build, image_name, images, remove, show, users
from peagle.images.build import context
from peagle.images.context import source_revision
from peagle.images.push import logged_in
from peagle.planning import Plan
from peagle.render.image import Recipe, RuntimeKind, content_digest
from peagle.render.image_names import has_host, parse_tag, pinned, split_image, without_tag
from peagle.render.requests import pair_arguments


def build_here(docker: Docker, request: Request, account: Account) -> Built:
    """Build it with Docker; what has not changed is quick."""
    with StatusLine() as status:

        def progress(line: str) -> None:
            status.show("building the image", line)

        with logged_in(docker, logins_for(docker, request.below, account)) as engine:
            recipe_of = gpu_recipe if request.runtime == "gpu" else cpu_recipe
            recipe = recipe_of(engine, request, progress)
            return build(engine, request.plan, recipe, request.tag, progress)


def build_there(request: Request, account: Account) -> str:
    """Build and push on AWS; the address with digest."""
    plan = request.plan
    aws = account.connect(plan.region)
    base = _with_digest(aws, request.below)
    recipe = Recipe("gpu", base, request.target, source_revision(), weights_of(request, say))
    repository, tag = parse_tag(request.tag or image_name(plan, recipe))
    order = codebuild.BuildOrder(
        repository=repository,
        tag=tag,
        base_registry=base.partition("/")[0] if in_ecr(base) else "",
        context=context(plan, recipe),
        digest=content_digest(plan, recipe),
    )
    found = codebuild.build(aws, order, say)
    tagged = found.address
    address = pinned(without_tag(tagged), found.digest) if found.digest else tagged
    for where in (tagged, address):
        record_push(aws, where, PushedImage(plan.pair, recipe.bakes_weights))
    return address


def _with_digest(aws: Aws, base: str) -> str:
    """As ECR knows it; by its name alone where ECR does not say."""
    name, digest = split_image(base)
    if digest:
        return base
    try:
        digest = ecr.digest_of(aws, name)
    except CloudError as error:
        say(error.message)
    if digest is None and has_host(name):
        say(f"FROM {name} by its tag: ECR tells no digest of it")
    return pinned(name, digest)


def remove_unused(docker: Docker, name: str) -> Image:
    """Remove the image; what it was. Raises UserError with the commands that end what uses it."""
    try:
        return remove(docker, name)
    except EngineError as error:
        containers = users(docker, name)
        if not containers:
            raise
        engines = _engines()
        called = [engines.get(container, container) for container in containers]
        ends = [_ends(container, engines.get(container)) for container in containers]
        raise UserError(f"{name} is in use by {', '.join(called)}", "; ".join(ends)) from error


def _engines() -> dict[str, str]:
    """Container -> the engine of ``peagle local`` that runs in it."""
    found = records.listing()
    return {one.process.container: one.name for one in found if one.process.container}


def _ends(container: str, engine: str | None) -> str:
    if engine:
        return f"end it first: peagle local down {engine}"
    if _is_in_sandbox(container):
        return "an endpoint of the sandbox runs in it: destroy that, or peagle sandbox stop"
    return f"end it first: docker rm --force {container}"


def _is_in_sandbox(container: str) -> bool:
    """Whether the sandbox of this home started it."""
    before, after = container_name("sandbox", " ").split(" ")
    return container.startswith(before) and container.endswith(after)


_MB = 1e6


@click.group(epilog="Example: peagle image build tiny --runtime cpu")
def image() -> None:
    """Build, list, push and remove container images of plans."""


@image.command("build", cls=PeagleCommand, epilog="Example: peagle image build gpt-oss-20b --push")
@plan_options
@click.option(
    "--runtime",
    type=click.Choice(["gpu", "cpu"]),
    default="gpu",
    show_default=True,
    help="gpu: on AWS's image, for SageMaker. cpu: on --base, for this machine.",
)
@click.option("--tag", metavar="NAME:TAG", help="Its name.  [default: from pair and content]")
@click.option("--base", metavar="IMAGE", help="Image to build on.  [default: AWS's, or Python's]")
@click.option("--bake-weights", is_flag=True, help="Copy the weights into the image.")
@click.option("--push", is_flag=True, help="Push it to ECR afterwards.")
@click.option(
    "--builder",
    type=click.Choice(["docker", "codebuild"]),
    default="docker",
    show_default=True,
    help="Where: on this machine, or on AWS, which pushes it too.",
)
@account_options
@json_option
def build_(
    plan: Plan,
    runtime: RuntimeKind,
    tag: str | None,
    base: str | None,
    bake_weights: bool,
    push: bool,
    builder: str,
    account: Account,
    as_json: bool,
) -> None:
    """Build the image of PAIR or PLAN.

    A small layer on the runtime's image: the entrypoint, which checks the environment and the
    pair before the engine starts, and labels. Weights stay outside. The same plan gives the same
    build context, byte for byte.
    """
    request = Request(plan, command_catalog(), runtime, tag, base, bake_weights)
    refuse_errors(findings_for_building(plan))
    if builder == "codebuild":
        if runtime == "cpu":
            raise Unsupported(
                "CodeBuild has no CPU engine to copy in", "leave out --builder codebuild"
            )
        account.start()
        there = build_there(request, account)
        use = deploy_command(pair_arguments(plan), there, bake_weights, plan.region, account)
        return _pushed(there, use, as_json)
    if push:
        check_pushing(account, plan.region)
    docker = Docker()
    docker.check()
    built = build_here(docker, request, account)
    if not as_json:
        _describe(built.image)
        click.echo(f"built in {built.seconds:.1f} s")
    address = push_built(docker, built.image, plan.region, account) if push else None
    if as_json:
        told = {"seconds": round(built.seconds, 1), "pushed": address}
        return print_json({**document(built.image), **told})
    if address is None:
        return say(f"Next: {next_command(plan, built.image, account)}")
    use = deploy_command(pair_arguments(plan), address, bake_weights, plan.region, account)
    return _pushed(address, use, as_json)


@image.command(
    "push",
    cls=PeagleCommand,
    epilog="Example: peagle image push peagle-tiny:0.28.0-gpu-3f2a9c1b7d20",
)
@click.argument("name")
@click.option(
    "--registry", metavar="HOST", help="Push there.  [default: ECR of the account and region]"
)
@click.option("--region", envvar=["AWS_REGION", "AWS_DEFAULT_REGION"], default=DEFAULT_REGION,
              show_default=True, help="Region of the repository.")  # fmt: skip
@account_options
@json_option
def push_(name: str, registry: str | None, region: str, account: Account, as_json: bool) -> None:
    """Push the image NAME to ECR.

    Its repository is made when it is not there: images in it are scanned, tags never change, and
    layers without a tag go after a week. The login is written to no disk.
    """
    parse_tag(name)
    docker = Docker()
    docker.check()
    image = show(docker, name)
    account.start()
    address = push_image(docker, image, registry, region, account)
    use = deploy_command(words_for(image.pair), address, image.baked, region, account)
    _pushed(address, use, as_json)


def _pushed(address: str, use: str | None, as_json: bool) -> None:
    if as_json:
        print_json({"pushed": address, "next": use})
        return
    click.echo(address)
    say(f"deploy it: {use}" if use else "SageMaker takes images from ECR only, so not from there.")


@image.command(
    "show",
    cls=PeagleCommand,
    epilog="Example: peagle image show peagle-tiny:0.28.0-cpu-3f2a9c1b7d20",
)
@click.argument("name")
@json_option
def show_(name: str, as_json: bool) -> None:
    """Show what the image NAME is: pair, runtime, plan, licences, sizes."""
    found = show(Docker(), name)
    if as_json:
        print_json(document(found))
        return
    _describe(found)
    for label, value in found.labels.items():
        click.echo(f"  {label}: {value}")


@image.command("list", cls=PeagleCommand, epilog="Example: peagle image list --json")
@json_option
def list_(as_json: bool) -> None:
    """List the images of this machine that the toolkit built, the newest first."""
    docker = Docker()
    docker.check()
    found = images(docker)
    if as_json:
        return print_json({"images": [document(one) for one in found]})
    if not found:
        return say("There are none (peagle image build PAIR).")
    return click.echo("\n".join(table(found, room(WIDE))))


@image.command(
    "remove",
    cls=PeagleCommand,
    epilog="Example: peagle image remove peagle-tiny:0.28.0-cpu-3f2a9c1b7d20",
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@json_option
def remove_(names: tuple[str, ...], as_json: bool) -> None:
    """Remove images from this machine; what was pushed stays where it is."""
    docker = Docker()
    docker.check()
    removed = [remove_unused(docker, name).name for name in names]
    if as_json:
        return print_json({"removed": removed})
    for name in removed:
        click.echo(f"removed {name}")
    return None


def document(image: Image) -> dict[str, Any]:
    """The image as one JSON document."""
    return {
        "name": image.name,
        "id": image.id,
        "created": image.created,
        "pair": image.pair,
        "runtime": image.runtime,
        "base": image.base,
        "size_bytes": image.size,
        "layer_bytes": image.layer_bytes,
        "user": image.user,
        "digests": list(image.digests),
        "labels": dict(image.labels),
    }


def _describe(image: Image) -> None:
    click.echo(image.name)
    click.echo(f"  {image.pair}, {image.runtime}, {image.size / _MB:.0f} MB")
    if image.layer_bytes is not None:
        click.echo(f"  {image.layer_bytes / _MB:.3f} MB of it on top of {image.base}")
