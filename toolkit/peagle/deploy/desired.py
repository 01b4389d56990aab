"""From a plan to the complete requests: role, bucket and names filled in, and a fingerprint.

Pure, apart from reading the folders that will be uploaded.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from peagle.aws.s3 import Upload
from peagle.aws.sagemaker import BROKEN, Endpoint
from peagle.checkpoints.contents import contents_of, files_below
from peagle.data import weights_folder
from peagle.deploy.served import served_by_requests, weight_prefixes
from peagle.deploy.state import Deployment, Resource, Revision
from peagle.errors import Refused
from peagle.planning.local_weights import UPLOAD_FOLDER, local_weights, planned_contents
from peagle.planning.plan import EXECUTION_ROLE, MODEL_BUCKET, Plan
from peagle.render.components import CREATE_COMPONENT
from peagle.render.requests import Request, requests, with_replaced
from peagle.s3uri import S3Uri
from peagle.weights.pins import CHANGED

MODEL, CONFIG, ENDPOINT = "create_model", "create_endpoint_config", "create_endpoint"
"""The operations of a plan's requests."""

UPLOADS = f"/{UPLOAD_FOLDER}"

_FINGERPRINT_DIGITS = 8
_HASH_AT_END = re.compile(r"-[0-9a-f]{8}$")

Change = Literal["nothing", "scale", "prove", "create", "update"]
"""``scale``: only the automatic scaling changes."""


@dataclass(frozen=True)
class DesiredState:
    """What deploy creates in the account: the revision, its uploads, its requests. ``component`` is
    CreateInferenceComponent for copies, ``None`` without."""

    plan: Plan
    revision: Revision
    uploads: tuple[Upload, ...]
    model: dict[str, Any]
    config: dict[str, Any]
    endpoint: dict[str, Any]
    component: dict[str, Any] | None = None

    @property
    def fingerprint(self) -> str:
        """With an equal fingerprint, applying changes nothing."""
        return self.revision.fingerprint

    @property
    def requests(self) -> tuple[Request, ...]:
        """The requests, in the order of creation."""
        made = [(MODEL, self.model), (CONFIG, self.config), (ENDPOINT, self.endpoint)]
        made += [(CREATE_COMPONENT, self.component)] if self.component else []
        return tuple(Request("sagemaker", name, parameters) for name, parameters in made)

    @property
    def model_name(self) -> str:
        return self.revision.model


def desired_state(
    plan: Plan, role: str, bucket: str | None, record: Deployment | None = None
) -> DesiredState:
    """The plan with role and bucket filled in.

    Names and prefix are the plan's own, unless the record holds a model of that name made with
    another role or other files, or other files below that prefix: then they get a hash of the
    difference, so that nothing in service is overwritten. Raises UserError when a folder of
    weights does not exist, and Refused when it has other files than the plan was made of.
    """
    planned = {request.operation: request.parameters for request in requests(plan)}
    folders = [(w, files_below(weights_folder(w.location))) for w in local_weights(plan)]
    filled = {EXECUTION_ROLE: role, MODEL_BUCKET: bucket or ""}
    contents = contents_of(files for _, files in folders)
    if planned_contents(plan) not in (None, contents):
        raise Refused(
            f"the weights in {' and '.join(w.location for w, _ in folders)} have changed since "
            "the plan was made",
            "make the plan again",
            CHANGED,
        )
    fingerprint = _digest([with_replaced(_untagged(plan), filled), contents])
    uris = [str(with_replaced(weights.s3_uri, filled)) for weights, _ in folders]
    other_folder = _other_folder(plan, uris, contents, fingerprint, record)
    renamed = other_folder | _other_names(planned, fingerprint, record)
    complete = with_replaced(planned, filled | renamed)
    component = complete.get(CREATE_COMPONENT)
    model, config = complete[MODEL]["ModelName"], complete[CONFIG]["EndpointConfigName"]
    return DesiredState(
        plan,
        Revision(
            fingerprint=fingerprint,
            served=served_by_requests(plan, complete[MODEL], complete[CONFIG], component),
            plan=plan,
            role=role,
            bucket=bucket if folders else None,
            model=model,
            name=model if component else config,
            instances_config=config if component else "",
        ),
        tuple(
            Upload(place.bucket, place.key, files, contents)
            for uri, (_, files) in zip(uris, folders, strict=True)
            for place in [S3Uri.parse(str(with_replaced(uri, renamed))).folder]
        ),
        complete[MODEL],
        complete[CONFIG],
        complete[ENDPOINT],
        component,
    )


def _untagged(plan: Plan) -> dict[str, Any]:
    """The requests without the user's tags: other tags need no other instances."""
    company = plan.company.model_copy(update={"tags": {}})
    plain = requests(plan.model_copy(update={"company": company}))
    return {request.operation: request.parameters for request in plain}


def _other_names(
    planned: dict[str, Any], fingerprint: str, record: Deployment | None
) -> dict[str, str]:
    """Replacements for the plan's names, if those belong to another revision."""
    names = (str(planned[MODEL]["ModelName"]), str(planned[CONFIG]["EndpointConfigName"]))
    # Copies of another model run on the same instances: their configuration keeps its name.
    changed = names[:1] if CREATE_COMPONENT in planned else names
    renamed = {name: _HASH_AT_END.sub(f"-{fingerprint}", name) for name in changed}
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
    if desired.revision.name not in (live.revision, live.pending_revision):
        return "update"
    if live.status == "Creating":
        return "create"
    if live.status != "InService":
        return "update"
    serving = record.serving
    if serving is None or serving.fingerprint != desired.fingerprint or record.pending:
        return "prove"
    return "nothing" if serving.proof and serving.proof.passed else "prove"
