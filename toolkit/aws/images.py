"""What `peagle image` has made in an account, written down before it is made.

``$PEAGLE_HOME/images/<scope>/<region>.json``: `peagle destroy --images` removes what stands there
and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from toolkit.aws import pushed, storage
from toolkit.aws.errors import Missing
from toolkit.aws.session import Aws
from toolkit.home import home, read_json, write_json

Kind = Literal["Repository", "Project", "LogGroup", "Role", "Object", "Bucket"]
ORDER: tuple[Kind, ...] = ("Project", "LogGroup", "Role", "Object", "Bucket", "Repository")
"""In which they are removed: what uses another one first."""

Say = Callable[[str], object]


@dataclass(frozen=True)
class Made:
    """Something in the account; the name of an Object is ``bucket/key``."""

    kind: Kind
    name: str


def listed(aws: Aws) -> tuple[Made, ...]:
    """All that was made in that account and region, in the order in which it can be removed."""
    found = [Made(**entry) for entry in read_json(_file(aws)) or ()]
    return tuple(sorted(found, key=lambda made: (ORDER.index(made.kind), made.name)))


@contextmanager
def making(aws: Aws, kind: Kind, name: str) -> Iterator[None]:
    """Around the making of a resource: what may exist is written down."""
    made = Made(kind, name)
    if made not in listed(aws):
        _write(aws, (*listed(aws), made))
    yield


def remove_all(aws: Aws, say: Say) -> tuple[Made, ...]:
    """Remove everything that is listed, images included. May be repeated after a failure."""
    removed = []
    for made in listed(aws):
        say(f"removing {made.kind} {made.name}")
        _REMOVERS[made.kind](aws, made.name)
        _write(aws, tuple(one for one in listed(aws) if one != made))
        removed.append(made)
    pushed.forget(aws)
    return tuple(removed)


def _write(aws: Aws, entries: tuple[Made, ...]) -> None:
    if entries:
        write_json(_file(aws), [asdict(made) for made in entries])
    else:
        _file(aws).unlink(missing_ok=True)


def _file(aws: Aws) -> Path:
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
