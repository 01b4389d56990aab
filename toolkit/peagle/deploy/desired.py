"""From the plan's requests to those that are sent: nothing left open, and a fingerprint.

Pure, apart from reading the folders that will be uploaded.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from peagle.aws.s3 import LocalFile, Upload, files_below
from peagle.data import weights_folder
from peagle.deploy.state import Deployment, Generation
from peagle.planning.plan import EXECUTION_ROLE, MODEL_BUCKET, Plan, Weights
from peagle.render.requests import Request, requests
from peagle.s3uri import S3Uri

MODEL, CONFIG, ENDPOINT = "create_model", "create_endpoint_config", "create_endpoint"
"""The operations of a plan's requests."""

UPLOADS = "/peagle-toolkit/"
"""In a bucket, below this lie the folders of weights, one for each endpoint."""

_FINGERPRINT_DIGITS = 8
_HASH_AT_END = re.compile(r"-[0-9a-f]{8}$")


@dataclass(frozen=True)
class Wanted:
    """What deploy wants in the account: the generation, its uploads and the three requests."""

    generation: Generation
    uploads: tuple[Upload, ...]
    model: dict[str, Any]
    config: dict[str, Any]
    endpoint: dict[str, Any]

    @property
    def plan(self) -> Plan:
        """The plan behind it."""
        return self.generation.plan

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints: applying changes nothing."""
        return self.generation.fingerprint

    @property
    def requests(self) -> tuple[Request, ...]:
        """The three requests, in the order in which they are made."""
        made = ((MODEL, self.model), (CONFIG, self.config), (ENDPOINT, self.endpoint))
        return tuple(Request("sagemaker", name, parameters) for name, parameters in made)

    @property
    def model_name(self) -> str:
        """Name of the SageMaker model."""
        return str(self.model["ModelName"])

    @property
    def config_name(self) -> str:
        """Name of the endpoint configuration."""
        return str(self.config["EndpointConfigName"])

    @property
    def tags(self) -> list[dict[str, str]]:
        """The tags of the endpoint."""
        return list(self.endpoint.get("Tags", ()))


def directories(plan: Plan) -> tuple[Weights, ...]:
    """The weights that lie on this machine and must be uploaded."""
    drafter = plan.drafter.weights if plan.drafter else None
    return tuple(w for w in (plan.target.weights, drafter) if w and w.kind == "directory")


def complete(
    plan: Plan,
    role: str,
    bucket: str | None,
    record: Deployment | None = None,
) -> Wanted:
    """The plan with role and bucket put in.

    Names and prefix are the plan's own, unless the record holds a model of that name made with
    another role or from other files, or other files below that prefix: then they take a hash of
    the difference, so that nothing that serves is ever written over. Raises UserError when a
    folder of weights is not there.
    """
    planned = {request.operation: request.parameters for request in requests(plan)}
    folders = [(w, files_below(weights_folder(w.location))) for w in directories(plan)]
    opened = {EXECUTION_ROLE: role, MODEL_BUCKET: bucket or ""}
    contents = _digest([[(file.name, file.sha256) for file in files] for _, files in folders])
    fingerprint = _digest([_replaced(planned, opened), contents])
    uris = [str(_replaced(weights.s3_uri, opened)) for weights, _ in folders]
    apart = _other_folder(plan, uris, contents, record) | _other_names(planned, fingerprint, record)
    sent = _replaced(planned, opened | apart)
    return Wanted(
        Generation(
            fingerprint=fingerprint,
            plan=plan,
            role=role,
            bucket=bucket if folders else None,
            config=sent[CONFIG]["EndpointConfigName"],
        ),
        tuple(
            _upload(str(_replaced(uri, apart)), files, contents)
            for uri, (_, files) in zip(uris, folders, strict=True)
        ),
        sent[MODEL],
        sent[CONFIG],
        sent[ENDPOINT],
    )


def _other_names(
    planned: dict[str, Any], fingerprint: str, record: Deployment | None
) -> dict[str, str]:
    """New names for old ones, if the plan's own belong to another generation."""
    names = (str(planned[MODEL]["ModelName"]), str(planned[CONFIG]["EndpointConfigName"]))
    renamed = {name: _HASH_AT_END.sub(f"-{fingerprint}", name) for name in names}
    earlier = {r.name: r.generation for r in record.of_type("Model")} if record else {}
    if renamed[names[0]] in earlier or earlier.get(names[0], fingerprint) != fingerprint:
        return renamed
    return {}


def _other_folder(
    plan: Plan, uris: list[str], contents: str, record: Deployment | None
) -> dict[str, str]:
    """A new folder in the bucket for the plan's own, if that holds other files."""
    folder = f"{UPLOADS}{plan.name}"
    moved = {f"{folder}/": f"{folder}.{contents}/"}
    earlier = {r.name: r.contents for r in record.of_type("S3Objects")} if record else {}
    if any(_replaced(uri, moved) in earlier for uri in uris):
        return moved
    return moved if any(earlier.get(uri, contents) != contents for uri in uris) else {}


def _replaced(value: Any, replacements: dict[str, str]) -> Any:
    """``value`` with every old text replaced by the new one in all strings."""
    if isinstance(value, dict):
        return {key: _replaced(item, replacements) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replaced(item, replacements) for item in value]
    if isinstance(value, str):
        for old, new in replacements.items():
            value = value.replace(old, new)
    return value


def _upload(uri: str, files: tuple[LocalFile, ...], contents: str) -> Upload:
    place = S3Uri.parse(uri).folder
    return Upload(place.bucket, place.key, files, contents)


def _digest(document: Any) -> str:
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:_FINGERPRINT_DIGITS]
