"""``peagle image``: the container images of plans."""

from __future__ import annotations

from typing import Any

import click

from toolkit.cli.cloud import DEFAULT_REGION, Account, account_options
from toolkit.cli.console import json_option, print_json, say
from toolkit.cli.image_push import build_there, logins_for, push_image
from toolkit.cli.image_recipes import cpu_recipe, findings_of_own, gpu_recipe
from toolkit.cli.options import plan_options, refuse_errors
from toolkit.cli.waiting import StatusLine
from toolkit.errors import Unsupported
from toolkit.images import Docker, Image, build, show
from toolkit.images.push import logged_in
from toolkit.planning import Plan

_MB = 1e6


@click.group(epilog="Example: peagle image build tiny --runtime cpu")
def image() -> None:
    """Build, show and push container images of plans."""


@image.command("build", epilog="Example: peagle image build gpt-oss-20b --push")
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
    runtime: str,
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
    refuse_errors(findings_of_own(plan))
    if builder == "codebuild":
        if runtime == "cpu":
            raise Unsupported(
                "CodeBuild has no CPU engine to copy in", "leave out --builder codebuild"
            )
        account.start()
        there = build_there(plan, gpu_recipe(plan, base, bake_weights), tag, account)
        return _pushed(there, as_json)
    docker = Docker()
    docker.check()
    name, seconds = _built_here(docker, plan, runtime, tag, base, bake_weights, account)
    address = push_image(docker, name, None, plan.region, account) if push else None
    built = show(docker, name)
    if as_json:
        return print_json({**document(built), "seconds": round(seconds, 1), "pushed": address})
    _describe(built)
    click.echo(f"built in {seconds:.1f} s")
    return _pushed(address, as_json) if address else None


def _built_here(
    docker: Docker,
    plan: Plan,
    runtime: str,
    tag: str | None,
    base: str | None,
    bake_weights: bool,
    account: Account,
) -> tuple[str, float]:
    """The name of the image, and the seconds that building it took."""
    with StatusLine() as status:

        def progress(line: str) -> None:
            status.show("building", line)

        if runtime == "cpu":
            recipe = cpu_recipe(docker, plan, base, bake_weights, progress)
        else:
            recipe = gpu_recipe(plan, base, bake_weights)
        with logged_in(docker, logins_for(recipe.base, plan.region, account)) as engine:
            built = build(engine, plan, recipe, tag, progress)
    return built.image.name, built.seconds


@image.command("push", epilog="Example: peagle image push peagle-tiny:0.28.0-gpu-3f2a9c1b7d20")
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
    docker = Docker()
    docker.check()
    show(docker, name)
    account.start()
    _pushed(push_image(docker, name, registry, region, account), as_json)


def _pushed(address: str, as_json: bool) -> None:
    if as_json:
        print_json({"pushed": address})
        return
    click.echo(address)
    say(f"deploy it: peagle deploy PAIR --image {address}")


@image.command("show", epilog="Example: peagle image show peagle-tiny:0.28.0-cpu-3f2a9c1b7d20")
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
