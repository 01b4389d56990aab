"""From a plan to the complete requests: role, bucket and names filled in, and a fingerprint.

Pure, apart from reading the folders that will be uploaded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from peagle.aws.client import Aws
from peagle.aws.iam import Role, find_role
from peagle.aws.s3 import Upload, default_bucket
from peagle.aws.sagemaker import BROKEN, Endpoint
from peagle.checkpoints.contents import contents_of, files_below
from peagle.data import weights_folder
from peagle.deploy.state import Deployment, Revision, served_by_requests
from peagle.errors import Refused
from peagle.planning.plan import EXECUTION_ROLE, MODEL_BUCKET, Plan
from peagle.planning.weights import (
    UPLOAD_FOLDER,
    local_weights,
    planned_contents,
    portable_pair,
    with_contents,
)
from peagle.render.requests import CREATE_COMPONENT, Request, requests, with_replaced
from peagle.s3uri import S3Uri
from peagle.text import json_digest
from peagle.weights.pins import CHANGED

MODEL, CONFIG, ENDPOINT = "create_model", "create_endpoint_config", "create_endpoint"
"""The operations of a plan's requests."""

UPLOADS = f"/{UPLOAD_FOLDER}"

_FINGERPRINT_DIGITS = 8
_HASH_AT_END = re.compile(r"-[0-9a-f]{8}$")

Action = Literal["nothing", "scale", "prove", "create", "update"]
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

    The prefix of uploaded weights has the hash of their files, also for a plan that was made
    without it. Names are the plan's own, unless the record holds a model of that name made with
    another role: then they get a hash of the difference, so that nothing in service is overwritten.
    Raises UserError when a folder of weights does not exist, and Refused when it has other files
    than the plan was made of.
    """
    folders = [files_below(weights_folder(weights.location)) for weights in local_weights(plan)]
    contents = contents_of(folders)
    plan = _of_files(plan, contents) if folders else plan
    planned = {request.operation: request.parameters for request in requests(plan)}
    filled = {EXECUTION_ROLE: role, MODEL_BUCKET: bucket or ""}
    uris = [str(with_replaced(weights.s3_uri, filled)) for weights in local_weights(plan)]
    fingerprint = json_digest([with_replaced(_untagged(plan), filled), contents])[
        :_FINGERPRINT_DIGITS
    ]
    renamed = _other_names(planned, fingerprint, record)
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
            for uri, files in zip(uris, folders, strict=True)
            for place in [S3Uri.parse(uri).folder]
        ),
        complete[MODEL],
        complete[CONFIG],
        complete[ENDPOINT],
        component,
    )


def role_and_bucket(
    aws: Aws,
    plan: Plan,
    record: Deployment | None,
    role: str | None = None,
    bucket: str | None = None,
) -> tuple[Role, str | None]:
    """The role, and the bucket of uploaded weights: the user's choice, else those of the
    deployment, whose change would be an update, else what the account has."""
    current = record.current if record else None
    if current and role is None:
        used = Role(current.role, "as deployed before")
    else:
        used = find_role(aws, role)
    if not local_weights(plan):
        return used, None
    earlier = bucket or (current.bucket if current else None)
    return used, earlier or default_bucket(aws.account, aws.region)


def _of_files(plan: Plan, contents: str) -> Plan:
    """The plan with the hash of its files. Raises Refused if it was made of others."""
    made_of = planned_contents(plan)
    if made_of is None:
        return with_contents(plan, contents)
    if made_of != contents:
        folders = " and ".join(weights.location for weights in local_weights(plan))
        message = f"the weights in {folders} have changed since the plan was made"
        raise Refused(message, "make the plan again", CHANGED)
    return plan


def _untagged(plan: Plan) -> dict[str, Any]:
    """The requests without the user's tags and without the path of a head: with others of these,
    the same instances serve."""
    company = plan.company.model_copy(update={"tags": {}})
    plain = requests(plan.model_copy(update={"company": company, "pair": portable_pair(plan.pair)}))
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


def required_change(
    record: Deployment | None, live: Endpoint | None, desired: DesiredState
) -> Action:
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
