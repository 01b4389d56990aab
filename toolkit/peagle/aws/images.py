"""Build the image of a plan with Docker or CodeBuild, and push it to a registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peagle.aws import codebuild, ecr
from peagle.aws.client import Aws, Connect
from peagle.aws.image_records import PushedImage, record_push
from peagle.catalog.schema import Catalog
from peagle.checks.facts import parse_ecr_image
from peagle.engine.install import engine_packages
from peagle.errors import CloudError, Fix, Unsupported
from peagle.images import Built, Docker, Image, Login, build, engine_image, push
from peagle.images.build import context, for_gpus, logged_in, named_by_content
from peagle.images.context import baked, source_revision, with_digest
from peagle.images.docker import Progress, connect_docker
from peagle.images.inspect import show_image
from peagle.planning import Plan
from peagle.render.image import Recipe, RuntimeKind, content_digest, image_name
from peagle.render.image_names import (
    has_host,
    parse_tag,
    pinned,
    pinned_base,
    split_image,
    without_tag,
)


@dataclass(frozen=True)
class ImageRequest:
    """The image to build for ``plan``, with the user's own ``tag`` and ``base``, if any.

    Raises UserError for a name that Docker or a registry would reject.
    """

    plan: Plan
    catalog: Catalog
    runtime: RuntimeKind
    tag: str | None = None
    base: str | None = None
    bake_weights: bool = False

    def __post_init__(self) -> None:
        if self.base is not None:
            split_image(self.base)
        if self.tag is not None:
            parse_tag(self.tag)

    @property
    def base_image(self) -> str:
        """The image in FROM; for a CPU, that of the engine's own image."""
        if self.base is not None:
            return self.base
        if self.runtime == "gpu":
            return pinned_base(self.plan, self.catalog.runtimes)
        return f"python:{engine_packages(self.plan.runtime.vllm).python}-slim-bookworm"


def _recipe(request: ImageRequest, base: str, progress: Progress) -> Recipe:
    """The recipe of the image FROM ``base``, with baked weights if requested."""
    weights = baked(request.plan, progress) if request.bake_weights else ()
    target = request.catalog.targets.get(request.plan.target.id)
    return Recipe(request.runtime, base, target, source_revision(), weights)


def build_image(request: ImageRequest, connect: Connect, progress: Progress) -> Built:
    """Build the image with Docker; unchanged layers come from its cache.

    ``connect`` is called only to pull a base from ECR. Raises as ``Docker.run``.
    """
    docker = connect_docker()
    base = request.base_image
    registry = parse_ecr_image(base)
    logins: Sequence[Login] = ()
    if registry is not None and docker.inspect("image", base) is None:
        logins = (ecr.login(connect(registry.region), base.partition("/")[0]),)
    with logged_in(docker, logins) as engine:
        if request.runtime == "gpu":
            base = with_digest(for_gpus(engine), base, progress)
        else:
            packages = engine_packages(request.plan.runtime.vllm)
            base = engine_image(engine, base, packages, progress)
        recipe = _recipe(request, base, progress)
        return build(engine, request.plan, recipe, request.tag, progress)


def build_image_on_aws(aws: Aws, request: ImageRequest, say: Progress) -> str:
    """Build and push the image with CodeBuild; returns its address with digest."""
    plan = request.plan
    base = _with_ecr_digest(aws, request.base_image, say)
    recipe = _recipe(request, base, say)
    repository, tag = parse_tag(request.tag or image_name(plan, recipe))
    order = codebuild.BuildRequest(
        repository=repository,
        tag=tag,
        base_registry=base.partition("/")[0] if parse_ecr_image(base) else "",
        context=context(plan, recipe),
        digest=content_digest(plan, recipe),
        company=plan.company,
    )
    found = codebuild.build(aws, order, say)
    address = pinned(without_tag(found.address), found.digest) if found.digest else found.address
    record_push(aws, PushedImage(plan.pair, bool(recipe.weights)), found.address, address)
    return address


def image_to_push(name: str) -> Image:
    """The image ``name`` of this machine. Raises UserError for a name that ECR would refuse,
    DockerMissing, and what ``show_image`` raises."""
    parse_tag(name)
    return show_image(connect_docker(), name)


def push_image(
    image: Image,
    aws: Aws | None,
    registry: str | None = None,
    say: Progress = lambda line: None,
    progress: Progress = lambda line: None,
    tags: Mapping[str, str] = {},
) -> str:
    """Push the image to ECR, or to ``registry``; returns its address with digest. A new repository
    has ``tags``.

    With ``aws``, the repository is created if needed, and the push is recorded for `peagle deploy`.
    An image that is named by its content and exists is not pushed again, as ECR would reject it.
    Raises Unsupported for the sandbox's ECR, which stores no images: there a ``registry`` is
    needed. Raises CloudError when the registry rejects the image.
    """
    docker = Docker()
    repository, tag = parse_tag(image.name)
    if aws is None:
        return push(docker, image.name, f"{registry}/{image.name}", (), progress)
    uri = ecr.ensure_repository(aws, repository, tags)
    host = registry or uri.partition("/")[0]
    address = f"{host}/{repository}:{tag}"
    digest = None if registry else ecr.image_digest(aws, repository, tag)
    if digest and named_by_content(image):
        say(f"{address} exists already")
        pushed = pinned(without_tag(address), digest)
    elif aws.scope == "sandbox" and not registry:
        raise Unsupported(
            f"{uri} is in the sandbox, whose ECR stores no images",
            Fix(
                "push to a registry of this machine",
                ("peagle", "image", "push", image.name, "--registry", "HOST"),
            ),
            code="sandbox-stores-no-images",
        )
    else:
        pushed = push(docker, image.name, address, (ecr.login(aws, host),), progress)
    record_push(aws, PushedImage(image.pair, image.baked), address, pushed)
    return pushed


def _with_ecr_digest(aws: Aws, base: str, say: Progress) -> str:
    """``base`` with its digest in ECR, or as it is when ECR does not report one."""
    name, digest = split_image(base)
    if digest:
        return base
    try:
        digest = ecr.digest_by_address(aws, name)
    except CloudError as error:
        say(error.message)
    if digest is None and has_host(name):
        say(f"FROM {name} by tag, without a pinned digest: ECR reports none")
    return pinned(name, digest)
