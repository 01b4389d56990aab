"""Images on AWS: built and pushed by CodeBuild, without Docker or disk space on this machine."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from peagle.aws import ecr, s3
from peagle.aws.client import Aws, Clock, Connect, send_until_visible
from peagle.aws.ecr import document, record_resource
from peagle.aws.errors import AlreadyExists, Missing
from peagle.aws.runtime import Tail
from peagle.catalog.schema import Catalog
from peagle.checks.facts import parse_ecr_image
from peagle.engine.machine import engine_packages
from peagle.errors import CloudError, Fix, Unsupported
from peagle.images.build import (
    Built,
    Login,
    Member,
    baked,
    build,
    context,
    engine_image,
    explain_full_disk,
    for_gpus,
    logged_in,
    push,
    with_digest,
)
from peagle.images.docker import Docker, Image, Progress, connect_docker
from peagle.planning import Plan
from peagle.planning.company import NO_COMPANY, Company, prefixed, role_parameters
from peagle.render.image import (
    DIGITS,
    Recipe,
    RuntimeKind,
    content_digest,
    has_host,
    image_name,
    parse_tag,
    pinned,
    pinned_base,
    split_image,
    without_tag,
)
from peagle.render.resources import trust_policy
from peagle.text import format_size

_SERVICE = "codebuild.amazonaws.com"


def ensure_build_role(
    aws: Aws,
    name: str,
    repository: str,
    context: str,
    project: str,
    company: Company = NO_COMPANY,
) -> str:
    """The ARN of CodeBuild's role, which is created if needed. It may push to ``repository``, read
    below ``context`` (``bucket/prefix``) and write the log of ``project``."""
    try:
        role = aws.call("iam", "get_role", RoleName=name)["Role"]
    except Missing:
        record_resource(aws, "Role", name)
        role = aws.call(
            "iam", "create_role",
            RoleName=name,
            AssumeRolePolicyDocument=json.dumps(trust_policy(aws.account, _SERVICE)),
            Description="CodeBuild builds images of peagle-toolkit with this role",
            **role_parameters(company, "images"),
        )["Role"]  # fmt: skip
    # AWS keeps the runtimes' images in accounts of its own, one per region, so pulling is allowed
    # from every account's registry. GetAuthorizationToken has no resource.
    policy = json.dumps(
        document(
            "build-role-policy",
            partition=aws.partition,
            region=aws.region,
            account=aws.account,
            repository=repository,
            context=context,
            log_group=f"/aws/codebuild/{project}",
        )
    )
    aws.call("iam", "put_role_policy", RoleName=name, PolicyName="build-one-image",
             PolicyDocument=policy)  # fmt: skip
    return str(role["Arn"])


PREFIX = "peagle-images/"
"""Prefix of the build contexts in the bucket."""

_ENVIRONMENT = {
    "type": "LINUX_CONTAINER",
    "image": "aws/codebuild/standard:7.0",
    # The smallest with enough disk for an image of more than 10 GB (128 GB, 8 vCPUs).
    "computeType": "BUILD_GENERAL1_LARGE",
    "privilegedMode": True,
}

_LIMIT_MINUTES = 120
_POLL_SECONDS = 5.0
_ROLE_PAUSES = (5.0,) * 11
_EARLIEST = (1980, 1, 1, 0, 0, 0)
_MAX_ROLE_NAME = 64

BUILDSPEC = document("buildspec")
"""What CodeBuild runs. Everything that differs between builds comes as a variable. SageMaker
accepts an image manifest, and no index with attestations."""


@dataclass(frozen=True)
class BuildRequest:
    """``context`` is built FROM an image of ``base_registry`` ("" for one that needs no login) and
    pushed as ``repository:tag``; ``digest`` is the context's. ``company`` is about what the build
    creates in the account."""

    repository: str
    tag: str
    base_registry: str
    context: Sequence[Member]
    digest: str
    company: Company = NO_COMPANY


def build_remotely(
    aws: Aws, order: BuildRequest, say: Progress, clock: Clock | None = None
) -> tuple[str, str | None]:
    """Build and push the image; its address, and its digest once ECR reports it. ``say`` receives
    the log line by line. An existing image of that tag is not built again; every step may be
    repeated, and an interrupt stops the build."""
    clock = clock or Clock()
    uri = ecr.ensure_repository(aws, order.repository, order.company.tags)
    address, registry = f"{uri}:{order.tag}", uri.partition("/")[0]
    existing = ecr.digest_by_address(aws, address)
    if existing:
        say(f"{address} exists already, and tags are immutable")
        return address, existing
    bucket, key = _upload(aws, order, say)
    source = f"{bucket}/{key}"
    project = _ensure_project(aws, order, bucket, source, clock)
    say(f"CodeBuild project {project}: building {address}")
    base_registry = order.base_registry or registry
    variables = {"ADDRESS": address, "REGISTRY": registry, "BASE_REGISTRY": base_registry}
    record_resource(aws, "LogGroup", f"/aws/codebuild/{project}")
    response = aws.call(
        "codebuild", "start_build",
        projectName=project,
        sourceLocationOverride=source,
        environmentVariablesOverride=[
            {"name": name, "value": value, "type": "PLAINTEXT"} for name, value in variables.items()
        ],
    )  # fmt: skip
    build_id = str(response["build"]["id"])
    try:
        _wait(aws, build_id, say, clock)
    except KeyboardInterrupt:  # a build costs money
        say(f"stopping it: aws codebuild stop-build --id {build_id} --region {aws.region}")
        with suppress(CloudError):
            aws.call("codebuild", "stop_build", id=build_id)
        raise
    return address, ecr.digest_by_address(aws, address)


def _ensure_project(aws: Aws, order: BuildRequest, bucket: str, source: str, clock: Clock) -> str:
    """The name of the repository's project, which is created if needed, with its role."""
    project = project_name(order.repository)
    role_name = f"{prefixed(project, order.company.name_prefix)}-{aws.region}"
    if len(role_name) > _MAX_ROLE_NAME:
        role_name = f"{role_name[: _MAX_ROLE_NAME - 9]}-{_short_hash(role_name)}"
    role = ensure_build_role(
        aws, role_name, order.repository, f"{bucket}/{PREFIX}", project, order.company
    )
    record_resource(aws, "Project", project)
    tags = [{"key": key, "value": value} for key, value in sorted(order.company.tags.items())]
    definition = {
        "name": project,
        "description": "Builds images of peagle-toolkit",
        "source": {"type": "S3", "location": source, "buildspec": json.dumps(BUILDSPEC)},
        "artifacts": {"type": "NO_ARTIFACTS"},
        "environment": _ENVIRONMENT,
        "serviceRole": role,
        "timeoutInMinutes": _LIMIT_MINUTES,
        "tags": [{"key": "peagle:toolkit", "value": "images"}, *tags],
    }
    with suppress(AlreadyExists):
        # A new role is visible to other services only after some seconds; CodeBuild reports every
        # invalid input with one code, so AWS's text decides.
        send_until_visible(
            lambda: aws.call("codebuild", "create_project", **definition),
            _ROLE_PAUSES,
            lambda error: "AssumeRole" in error.message and not isinstance(error, AlreadyExists),
            clock,
        )
    return project


def project_name(repository: str) -> str:
    """The project of a repository. CodeBuild allows fewer characters: a hash then keeps names
    distinct."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "-", repository)
    return plain if plain == repository else f"{plain}-{_short_hash(repository)}"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def zip_file(members: Iterable[Member], path: Path) -> None:
    """Write the context as CodeBuild expects it; equal members give equal bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        for member in sorted(members, key=lambda member: member.path):
            info = zipfile.ZipInfo(member.path, _EARLIEST)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            with archive.open(info, "w", force_zip64=True) as stream, member.open() as content:
                shutil.copyfileobj(content, stream)


def _upload(aws: Aws, order: BuildRequest, say: Progress) -> tuple[str, str]:
    """Upload the context; its bucket and key."""
    bucket, key = s3.default_bucket(aws.account, aws.region), f"{PREFIX}{order.digest}.zip"
    if not s3.bucket_exists(aws, bucket):
        record_resource(aws, "Bucket", bucket)
        s3.create_bucket(aws, bucket, order.company.tag_list)
    size = sum(member.size for member in order.context)
    with (
        explain_full_disk(f"the build context of {format_size(size)}"),
        tempfile.TemporaryDirectory(prefix="peagle-context-") as folder,
    ):
        path = Path(folder) / "context.zip"
        zip_file(order.context, path)
        say(f"uploading the build context ({format_size(path.stat().st_size)})")
        record_resource(aws, "Object", f"{bucket}/{key}")
        aws.upload(path, bucket, key, {}, lambda count: None, order.company.kms_key)
    return bucket, key


def _wait(aws: Aws, build_id: str, say: Progress, clock: Clock) -> None:
    tail, last, fix = None, "", f"aws codebuild batch-get-builds --ids {build_id}"
    while True:
        build = aws.call("codebuild", "batch_get_builds", ids=[build_id])["builds"][0]
        place = build.get("logs", {})
        if tail is None and place.get("groupName") and place.get("streamName"):
            tail = Tail(aws, "", 0.0, group=place["groupName"], prefix=place["streamName"])
        for event in tail.new() if tail else ():
            if line := event.raw.rstrip():
                say(last := line)
        status = build["buildStatus"]
        if status == "SUCCEEDED":
            return
        if status != "IN_PROGRESS":
            message = f"the build failed ({status}) in {build.get('currentPhase')}: {last}"
            raise CloudError(message, fix, "build-failed")
        clock.sleep(_POLL_SECONDS)


@dataclass(frozen=True)
class ImageRequest:
    """The image to build for ``plan``, with the user's own ``tag`` and ``base``, if any. Raises
    UserError for a name that Docker or a registry would reject."""

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

    def recipe(self, base: str, progress: Progress) -> Recipe:
        """The recipe of the image FROM ``base``, with baked weights if requested."""
        weights = baked(self.plan, progress) if self.bake_weights else ()
        target = self.catalog.targets.get(self.plan.target.id)
        return Recipe(self.runtime, base, target, weights)


def build_image(request: ImageRequest, connect: Connect, progress: Progress) -> Built:
    """Build the image with Docker. ``connect`` is called only to pull a base from ECR."""
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
        recipe = request.recipe(base, progress)
        return build(engine, request.plan, recipe, request.tag, progress)


def build_image_on_aws(aws: Aws, request: ImageRequest, say: Progress) -> str:
    """Build and push the image with CodeBuild; returns its address with digest."""
    plan, base = request.plan, request.base_image
    name, digest = split_image(base)
    if not digest:  # pinned where ECR knows the image
        try:
            digest = ecr.digest_by_address(aws, name)
        except CloudError as error:
            say(error.message)
        if digest is None and has_host(name):
            say(f"FROM {name} by tag, without a pinned digest: ECR reports none")
        base = pinned(name, digest)
    recipe = request.recipe(base, say)
    repository, tag = parse_tag(request.tag or image_name(plan, recipe))
    order = BuildRequest(
        repository=repository,
        tag=tag,
        base_registry=base.partition("/")[0] if parse_ecr_image(base) else "",
        context=context(plan, recipe),
        digest=content_digest(plan, recipe),
        company=plan.company,
    )
    tagged, built = build_remotely(aws, order, say)
    return pinned(without_tag(tagged), built) if built else tagged


def no_images_in_sandbox(name: str) -> Unsupported:
    """The error of a push of the image ``name`` to the sandbox."""
    return Unsupported(
        "the sandbox's ECR stores no images, so a push has no target",
        Fix(
            "push to a registry of your own",
            ("peagle", "image", "push", name, "--registry", "HOST"),
        ),
        code="sandbox-stores-no-images",
    )


def push_image(
    image: Image,
    aws: Aws | None,
    registry: str | None = None,
    say: Progress = lambda line: None,
    progress: Progress = lambda line: None,
    tags: Mapping[str, str] = {},
) -> str:
    """Push the image to ECR, whose new repository has ``tags``, or to ``registry``; returns its
    address with digest. Raises Unsupported for the sandbox's ECR, which stores no images."""
    docker = Docker()
    repository, tag = parse_tag(image.name)
    if aws is None:
        return push(docker, image.name, f"{registry}/{image.name}", (), progress)
    uri = ecr.ensure_repository(aws, repository, tags)
    host = registry or uri.partition("/")[0]
    address = f"{host}/{repository}:{tag}"
    digest = None if registry else ecr.digest_by_address(aws, address)
    # Images of a name that ends so have the same content.
    if digest and image.content and image.name.endswith(f"-{image.content[:DIGITS]}"):
        say(f"{address} exists already")
        return pinned(without_tag(address), digest)
    if aws.scope == "sandbox" and not registry:
        raise no_images_in_sandbox(image.name)
    return push(docker, image.name, address, (ecr.login(aws, host),), progress)
