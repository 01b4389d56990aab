"""From a plan to the complete requests: role, bucket and names filled in, and a fingerprint.

Pure, apart from reading the folders that will be uploaded.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from peagle.aws.s3 import Upload, files_below
from peagle.aws.sagemaker import BROKEN, Endpoint
from peagle.data import weights_folder
from peagle.deploy.served import served_by_requests, weight_prefixes
from peagle.deploy.state import Deployment, Resource, Revision
from peagle.planning.plan import EXECUTION_ROLE, MODEL_BUCKET, Plan, Weights
from peagle.render.requests import Request, requests, with_replaced
from peagle.s3uri import S3Uri

MODEL, CONFIG, ENDPOINT = "create_model", "create_endpoint_config", "create_endpoint"
"""The operations of a plan's requests."""

UPLOADS = "/peagle-toolkit/"
"""Prefix of uploaded weights in a bucket; one folder per endpoint below it."""

_FINGERPRINT_DIGITS = 8
_HASH_AT_END = re.compile(r"-[0-9a-f]{8}$")

Change = Literal["nothing", "prove", "create", "update"]


@dataclass(frozen=True)
class DesiredState:
    """What deploy creates in the account: the revision, its uploads, its three requests."""

    plan: Plan
    revision: Revision
    uploads: tuple[Upload, ...]
    model: dict[str, Any]
    config: dict[str, Any]
    endpoint: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """With an equal fingerprint, applying changes nothing."""
        return self.revision.fingerprint

    @property
    def requests(self) -> tuple[Request, ...]:
        """The three requests, in the order of creation."""
        made = ((MODEL, self.model), (CONFIG, self.config), (ENDPOINT, self.endpoint))
        return tuple(Request("sagemaker", name, parameters) for name, parameters in made)

    @property
    def model_name(self) -> str:
        return self.revision.model

    @property
    def config_name(self) -> str:
        return self.revision.config


def local_weights(plan: Plan) -> tuple[Weights, ...]:
    """The plan's weights in folders of this machine, which deploy uploads."""
    drafter = plan.drafter.weights if plan.drafter else None
    return tuple(w for w in (plan.target.weights, drafter) if w and w.kind == "directory")


def desired_state(
    plan: Plan, role: str, bucket: str | None, record: Deployment | None = None
) -> DesiredState:
    """The plan with role and bucket filled in.

    Names and prefix are the plan's own, unless the record holds a model of that name made with
    another role or other files, or other files below that prefix: then they get a hash of the
    difference, so that nothing in service is overwritten. Raises UserError when a folder of
    weights does not exist.
    """
    planned = {request.operation: request.parameters for request in requests(plan)}
    folders = [(w, files_below(weights_folder(w.location))) for w in local_weights(plan)]
    filled = {EXECUTION_ROLE: role, MODEL_BUCKET: bucket or ""}
    contents = _digest([[(file.name, file.sha256) for file in files] for _, files in folders])
    fingerprint = _digest([with_replaced(planned, filled), contents])
    uris = [str(with_replaced(weights.s3_uri, filled)) for weights, _ in folders]
    other_folder = _other_folder(plan, uris, contents, fingerprint, record)
    renamed = other_folder | _other_names(planned, fingerprint, record)
    complete = with_replaced(planned, filled | renamed)
    return DesiredState(
        plan,
        Revision(
            fingerprint=fingerprint,
            served=served_by_requests(plan, complete[MODEL], complete[CONFIG]),
            plan=plan,
            role=role,
            bucket=bucket if folders else None,
            model=complete[MODEL]["ModelName"],
            config=complete[CONFIG]["EndpointConfigName"],
        ),
        tuple(
            Upload(place.bucket, place.key, files, contents)
            for uri, (_, files) in zip(uris, folders, strict=True)
            for place in [S3Uri.parse(str(with_replaced(uri, renamed))).folder]
        ),
        complete[MODEL],
        complete[CONFIG],
        complete[ENDPOINT],
    )


def _other_names(
    planned: dict[str, Any], fingerprint: str, record: Deployment | None
) -> dict[str, str]:
    """Replacements for the plan's names, if those belong to another revision."""
    names = (str(planned[MODEL]["ModelName"]), str(planned[CONFIG]["EndpointConfigName"]))
    renamed = {name: _HASH_AT_END.sub(f"-{fingerprint}", name) for name in names}
    earlier = {r.name: r.revision for r in record.of_type("Model")} if record else {}
    if renamed[names[0]] in earlier or earlier.get(names[0], fingerprint) != fingerprint:
        return renamed
    return {}


def _other_folder(
    plan: Plan, uris: list[str], contents: str, fingerprint: str, record: Deployment | None
) -> dict[str, str]:
    """A replacement for the plan's folder in the bucket, if that holds other files."""
    folder = f"{UPLOADS}{plan.name}"
    moved = {f"{folder}/": f"{folder}.{contents}/"}
    earlier = record.of_type("S3Objects") if record else ()
    for uri in uris:
        if any(str(with_replaced(uri, moved)).startswith(one.name) for one in earlier):
            return moved
        below = [one for one in earlier if uri.startswith(one.name)]
        revisions = record.revisions if record else ()
        sharing = {one.fingerprint for one in revisions if _reads(one, uri)}
        if below and not _hold(below, sharing, contents, fingerprint):
            return moved
    return {}


def _reads(revision: Revision, uri: str) -> bool:
    """Whether the revision mounts the folder, or one above it."""
    return any(uri.startswith(prefix) for prefix in weight_prefixes(revision.served))


def _hold(folder: list[Resource], sharing: set[str], contents: str, fingerprint: str) -> bool:
    """Whether these records of one folder are about the files. What another machine uploaded has no
    ``contents``: there, the revision decides, and one of those ``sharing`` the folder is enough,
    because nothing replaces the files of a folder."""
    if known := {one.contents for one in folder if one.contents}:
        return known == {contents}
    return fingerprint in {*(one.revision for one in folder), *sharing}


def _digest(document: Any) -> str:
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:_FINGERPRINT_DIGITS]


def required_change(
    record: Deployment | None, live: Endpoint | None, desired: DesiredState
) -> Change:
    """What deploying ``desired`` would do."""
    if record is None or live is None or live.status in (*BROKEN, "Deleting"):
        return "create"
    if desired.config_name not in (live.config, live.pending_config):
        return "update"
    if live.status == "Creating":
        return "create"
    if live.status != "InService":
        return "update"
    serving = record.serving
    if serving is None or serving.fingerprint != desired.fingerprint or record.pending:
        return "prove"
    return "nothing" if serving.proof and serving.proof.passed else "prove"
