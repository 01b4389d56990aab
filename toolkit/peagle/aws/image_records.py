"""Which images `peagle image` has pushed from this machine, and what is in them.

``$PEAGLE_HOME/images/<scope>/<region>.pushed.json``, by address. ECR itself tells no labels, so
what is written down here lets `peagle deploy` see that an image is not for its plan.

What `peagle image` has made in an account, written down before it is made.

``$PEAGLE_HOME/images/<scope>/<region>.json``: `peagle destroy --images` removes what stands there
and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from peagle.aws import s3 as storage
from peagle.aws.client import Aws
from peagle.aws.errors import Missing
from peagle.case import OWN
from peagle.findings import Finding, error
from peagle.planning.plan import Plan
from peagle.store import home, read_json, write_json


@dataclass(frozen=True)
class PushedImage:
    """The pair that an image was built for, and whether that pair's weights are in it."""

    pair: str
    baked: bool


def record_push(aws: Aws, address: str, pushed: PushedImage) -> None:
    """Write down what was pushed to that address."""
    write_json(_pushed_file(aws), {**(read_json(_pushed_file(aws)) or {}), address: asdict(pushed)})


def pushed_image(aws: Aws, address: str) -> PushedImage | None:
    """What is in the image, if it was pushed from here."""
    found = (read_json(_pushed_file(aws)) or {}).get(address)
    return PushedImage(**found) if found else None


def forget_pushes(aws: Aws) -> None:
    """When the repositories are gone."""
    _pushed_file(aws).unlink(missing_ok=True)


def image_findings(aws: Aws, plan: Plan) -> Iterator[Finding]:
    """Whether the plan's image is one for the plan. Nothing of images that others pushed."""
    image = plan.runtime.image
    found = pushed_image(aws, image)
    if found is None:
        return
    planned = plan.target.weights.kind == "image"
    if found.baked and not planned:
        yield error(
            "image-has-weights", "image",
            f"{image} has the weights of {found.pair} in it, and would serve those instead of "
            "the plan's",
            "add --baked-weights, or build an image without --bake-weights",
        )  # fmt: skip
    elif planned and not found.baked:
        message = f"{image} has no weights in it, and the plan mounts none"
        fix = "leave out --baked-weights, or build the image with --bake-weights"
        yield error("image-without-weights", "image", message, fix)
    elif _is_anothers(found, plan):
        yield error(
            "image-of-another-pair", "image",
            f"{image} was built for {found.pair}, and the plan is for {plan.pair}: the container "
            "would not start",
            f"plan for {found.pair}, or build an image for this plan: peagle image build",
        )  # fmt: skip


def _is_anothers(found: PushedImage, plan: Plan) -> bool:
    """As the container's entrypoint sees it, which takes the target alone as well. What a head of
    the user's own is nobody knows, unless it is in the image."""
    if found.pair.partition("+")[0] != plan.target.id:
        return True
    if plan.drafter is None or (plan.drafter.name == OWN and not found.baked):
        return False
    return found.pair != plan.pair


def _pushed_file(aws: Aws) -> Path:
    return home() / "images" / aws.scope / f"{aws.region}.pushed.json"


Kind = Literal["Repository", "Project", "LogGroup", "Role", "Object", "Bucket"]
ORDER: tuple[Kind, ...] = ("Project", "LogGroup", "Role", "Object", "Bucket", "Repository")
"""In which they are removed: what uses another one first."""

Say = Callable[[str], object]


@dataclass(frozen=True)
class ImageResource:
    """Something in the account; the name of an Object is ``bucket/key``."""

    kind: Kind
    name: str


def image_resources(aws: Aws) -> tuple[ImageResource, ...]:
    """All that was made in that account and region, in the order in which it can be removed."""
    found = [ImageResource(**entry) for entry in read_json(_resources_file(aws)) or ()]
    return tuple(sorted(found, key=lambda made: (ORDER.index(made.kind), made.name)))


@contextmanager
def recorded(aws: Aws, kind: Kind, name: str) -> Iterator[None]:
    """Around the recorded of a resource: what may exist is written down."""
    made = ImageResource(kind, name)
    if made not in image_resources(aws):
        _write(aws, (*image_resources(aws), made))
    yield


def remove_image_resources(aws: Aws, say: Say) -> tuple[ImageResource, ...]:
    """Remove everything that is resources, images included. May be repeated after a failure."""
    removed = []
    for made in image_resources(aws):
        say(f"removing {made.kind} {made.name}")
        _REMOVERS[made.kind](aws, made.name)
        _write(aws, tuple(one for one in image_resources(aws) if one != made))
        removed.append(made)
    forget_pushes(aws)
    return tuple(removed)


def _write(aws: Aws, entries: tuple[ImageResource, ...]) -> None:
    if entries:
        write_json(_resources_file(aws), [asdict(made) for made in entries])
    else:
        _resources_file(aws).unlink(missing_ok=True)


def _resources_file(aws: Aws) -> Path:
    return home() / "images" / aws.scope / f"{aws.region}.json"


def _remove_repository(aws: Aws, name: str) -> None:
    try:
        aws.call("ecr", "delete_repository", repositoryName=name, force=True)
    except Missing:
        return


def _remove_project(aws: Aws, name: str) -> None:
    aws.call("codebuild", "delete_project", name=name)


def _remove_log_group(aws: Aws, name: str) -> None:
    """CodeBuild makes it when a first build begins to write."""
    try:
        aws.call("logs", "delete_log_group", logGroupName=name)
    except Missing:
        return


def _remove_role(aws: Aws, name: str) -> None:
    try:
        for policy in aws.call("iam", "list_role_policies", RoleName=name)["PolicyNames"]:
            aws.call("iam", "delete_role_policy", RoleName=name, PolicyName=policy)
        aws.call("iam", "delete_role", RoleName=name)
    except Missing:
        return


def _remove_object(aws: Aws, name: str) -> None:
    bucket, _, key = name.partition("/")
    try:
        storage.delete_objects(aws, bucket, (key,))
    except Missing:
        return


def _remove_bucket(aws: Aws, name: str) -> None:
    """Only if it is empty: deployments keep their weights in the same one."""
    if storage.bucket_exists(aws, name) and storage.is_our_bucket(aws, name):
        storage.delete_bucket(aws, name)


_REMOVERS: dict[Kind, Callable[[Aws, str], None]] = {
    "Repository": _remove_repository,
    "Project": _remove_project,
    "LogGroup": _remove_log_group,
    "Role": _remove_role,
    "Object": _remove_object,
    "Bucket": _remove_bucket,
}
