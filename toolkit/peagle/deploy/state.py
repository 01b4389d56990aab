"""What deploy created, written down before and after every step: the deployment record.

One JSON file per endpoint, ``$PEAGLE_HOME/deployments/<scope>/<region>/<name>.json``. It is the
only memory between commands: ``destroy`` removes what stands here and nothing else. Knows no
boto3, so that listing and completing names is quick.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from pydantic import Field, ValidationError

from peagle.errors import NotFound, UserError, nearest
from peagle.planning.plan import Frozen, Plan
from peagle.store import home, locked, write_json

SANDBOX = "sandbox"
"""The scope of records that belong to the AWS sandbox of this machine."""


class Ambiguous(UserError):
    """A name alone does not say which deployment is meant."""


ResourceType = Literal["Endpoint", "EndpointConfig", "Model", "S3Objects", "S3Bucket"]


class Resource(Frozen):
    """Something in the account. ``made`` is false from the intent until AWS confirmed it.

    ``keys`` are the objects of an ``S3Objects``, whose name is their ``s3://`` prefix, and
    ``contents`` a hash of the files.
    """

    type: ResourceType
    name: str
    made: bool = False
    generation: str
    keys: tuple[str, ...] = ()
    contents: str = ""


class Proved(Frozen):
    """What the proof measured. Without speculation an answer was proof enough."""

    acceptance_length: float | None
    drafts: int
    acceptance_per_position: tuple[float, ...] = ()
    floor: float | None = None
    passed: bool


class Generation(Frozen):
    """One plan as applied: with role, bucket, and the names it got.

    ``fingerprint`` is a hash of the requests with nothing left open and of the uploaded files:
    equal fingerprints mean that applying again would change nothing.
    """

    fingerprint: str
    plan: Plan
    role: str
    bucket: str | None
    config: str
    proof: Proved | None = None


class Deployment(Frozen):
    """All that is known about one endpoint.

    ``serving`` is the generation that AWS confirmed in service, ``wanted`` the one being applied
    (or that failed). ``billing_since`` is when the endpoint was asked for, in epoch seconds.
    """

    format: Literal[1] = 1
    id: str = Field(default_factory=lambda: uuid4().hex)
    name: str
    scope: str
    account: str
    region: str
    serving: Generation | None = None
    wanted: Generation | None = None
    resources: tuple[Resource, ...] = ()
    billing_since: float | None = None
    failure: str | None = None

    @property
    def current(self) -> Generation:
        """The generation that the last deploy was about."""
        generation = self.wanted or self.serving
        if generation is None:
            raise ValueError(f"the record of {self.name} names no plan")
        return generation

    def with_resource(self, resource: Resource) -> Deployment:
        """The record with ``resource``, in place of an earlier entry of that type and name."""
        by_name = {(r.type, r.name): r for r in self.resources}
        by_name[resource.type, resource.name] = resource
        return self.model_copy(update={"resources": tuple(by_name.values())})

    def without(self, kind: str, name: str) -> Deployment:
        """The record without that resource."""
        kept = tuple(r for r in self.resources if (r.type, r.name) != (kind, name))
        return self.model_copy(update={"resources": kept})

    def of_type(self, kind: ResourceType) -> tuple[Resource, ...]:
        """The resources of one type."""
        return tuple(resource for resource in self.resources if resource.type == kind)


def record_path(scope: str, region: str, name: str) -> Path:
    """Where the record of that deployment is."""
    return home() / "deployments" / scope / region / f"{name}.json"


def save(record: Deployment) -> None:
    """Write the record; a reader sees the old one or the new one."""
    path = record_path(record.scope, record.region, record.name)
    write_json(path, record.model_dump(mode="json"))


def load(scope: str, region: str, name: str) -> Deployment | None:
    """The record, or ``None``. Raises UserError when the file was damaged."""
    path = record_path(scope, region, name)
    return _read(path) if path.is_file() else None


def remove(record: Deployment) -> None:
    """Forget the deployment."""
    record_path(record.scope, record.region, record.name).unlink(missing_ok=True)


def all_records(scope: str | None = None) -> tuple[Deployment, ...]:
    """Every record of ``scope`` (``None``: of all accounts, but not of the sandbox), by name."""
    return tuple(_read(path) for path in _paths(scope))


def names(scope: str | None = None) -> tuple[str, ...]:
    """The names of those deployments, without reading the records."""
    return tuple(sorted({path.stem for path in _paths(scope)}))


def find(name: str, scope: str | None = None, region: str | None = None) -> Deployment:
    """The deployment called ``name``; raises NotFound, or Ambiguous when there are several."""
    found = [
        path
        for path in _paths(scope)
        if path.stem == name and (region is None or path.parent.name == region)
    ]
    if not found:
        raise _not_found(name, scope, region)
    if len(found) > 1:
        places = ", ".join(f"{path.parent.name} of {path.parent.parent.name}" for path in found)
        raise Ambiguous(f"{name} is deployed more than once: {places}", "choose with --region")
    return _read(found[0])


def _not_found(name: str, scope: str | None, region: str | None) -> NotFound:
    """With the nearest names, or the place where the name is known after all."""
    where = f" in {region}" if region and name in names(scope) else ""
    if name in names(None if scope == SANDBOX else SANDBOX):
        fix = "leave out --sandbox" if scope == SANDBOX else "it is in the sandbox: add --sandbox"
    else:
        fix = nearest(name, names(scope)) or "see `peagle list`"
    return NotFound(f"no deployment is called {name!r}{where}", fix)


@contextmanager
def held(scope: str, region: str, name: str) -> Iterator[None]:
    """Keep other peagle commands from changing this deployment meanwhile.

    The lock file stays beside the record, and goes when there is no record any more.
    """
    record = record_path(scope, region, name)
    path = record.with_name(f".{name}.lock")
    with ExitStack() as holding:
        try:
            holding.enter_context(locked(path, wait=False))
        except BlockingIOError as error:
            raise UserError(
                f"another peagle command is changing {name}", "wait until it has ended"
            ) from error
        try:
            yield
        finally:
            if not record.exists():
                path.unlink(missing_ok=True)


def _paths(scope: str | None) -> list[Path]:
    root = home() / "deployments"
    scopes = [root / scope] if scope else [f for f in root.glob("*") if f.name != SANDBOX]
    return sorted(path for folder in scopes for path in folder.glob("*/[!.]*.json"))


def _read(path: Path) -> Deployment:
    """Damage is the user's business: nothing may guess what is in the account."""
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        return Deployment.model_validate_json(json.dumps(document))
    except (ValueError, ValidationError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"the deployment record {path} cannot be read: {reason}",
            f"look in the account for resources tagged peagle:deployment={path.stem}",
        ) from error
