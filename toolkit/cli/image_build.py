"""Building an image: with Docker on this machine, or with CodeBuild on AWS."""

from __future__ import annotations

from toolkit.aws import codebuild, ecr
from toolkit.aws.pushed import Pushed, remember
from toolkit.aws.session import Aws
from toolkit.checks.images import in_ecr
from toolkit.cli.cloud import Account
from toolkit.cli.console import say
from toolkit.cli.image_push import logins_for
from toolkit.cli.image_recipes import Request, cpu_recipe, gpu_recipe, weights_of
from toolkit.cli.waiting import StatusLine
from toolkit.errors import CloudError
from toolkit.images import Built, Docker, build, image_name
from toolkit.images.build import context
from toolkit.images.push import logged_in
from toolkit.images.source import source_revision
from toolkit.rendering.image import Recipe, content_digest
from toolkit.rendering.image_names import has_host, parse_tag, pinned, split_image, without_tag


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
    recipe = Recipe("gpu", base, source_revision(), weights_of(request, say))
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
        remember(aws, where, Pushed(plan.pair, recipe.bakes_weights))
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
