"""The plan as requests to the SageMaker API, its uploads, and its `peagle plan` command line.

Role and bucket are known only when the plan is applied; the placeholders ``${ExecutionRoleArn}``
and ``${ModelBucket}`` represent them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from peagle.catalog.tables import domain
from peagle.checkpoints.entries import OWN
from peagle.checkpoints.models import is_folder
from peagle.checks.facts import parse_ecr_image
from peagle.data import CATALOG_PREFIX
from peagle.planning.pins import pin_arguments
from peagle.planning.plan import EXECUTION_ROLE, MODEL_BUCKET, Overrides, Plan
from peagle.planning.runtime import DEFAULT_REGION, MAX_NAME_LENGTH
from peagle.s3uri import is_s3_uri


@dataclass(frozen=True)
class Request:
    """One call of the AWS API, as boto3 takes it."""

    service: str
    operation: str
    parameters: dict[str, Any]


def openai_base_url(region: str, endpoint: str) -> str:
    """The base URL for OpenAI clients; ``endpoint`` may be a template's reference."""
    return f"https://runtime.sagemaker.{region}.{domain(region)}/endpoints/{endpoint}/openai/v1"


VARIANT = "AllTraffic"
"""The only production variant."""

DEPLOYMENT_TAG = "peagle:deployment"
"""Tag with the name of the deployment, on everything that a plan creates."""

PAIR_TAG = "peagle:pair"

PLAN_TAG = "peagle:plan"
"""Tag with a hash of the plan's requests."""

OWNER_TAG = "peagle:owner"
"""Tag with the render format whose program made the resource, and changes it."""

STACK_TAG = "peagle:stack"
"""Tag with the name of the CloudFormation stack."""

REVISION_TAG = "peagle:revision"
"""Tag with the fingerprint of the revision: on its model and configuration, and on the endpoint
that serves it."""

PROOF_TAG = "peagle:proof"
"""Tag of an endpoint with the result of its last proof."""

_HASH_DIGITS = 8


def requests(plan: Plan) -> tuple[Request, ...]:
    """CreateModel, CreateEndpointConfig and CreateEndpoint.

    Names of model and configuration contain a hash of their contents: the same plan gives the same
    names, and a changed plan new resources, to which the endpoint is updated.
    """
    nameless = _requests(plan, "", [])
    canonical = json.dumps([r.parameters for r in nameless], sort_keys=True, ensure_ascii=True)
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:_HASH_DIGITS]
    stem = plan.name[: MAX_NAME_LENGTH - _HASH_DIGITS - 1].rstrip("-")
    tags = [
        {"Key": DEPLOYMENT_TAG, "Value": plan.name},
        {"Key": PAIR_TAG, "Value": tag_value(plan.pair)},
        {"Key": PLAN_TAG, "Value": digest},
    ]
    return _requests(plan, f"{stem}-{digest}", tags)


def with_replaced(value: Any, replacements: Mapping[str, str]) -> Any:
    """``value`` with every old text, such as a placeholder, replaced by the new one in all strings
    of its objects and lists."""
    if isinstance(value, dict):
        return {key: with_replaced(item, replacements) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_replaced(item, replacements) for item in value]
    if isinstance(value, str):
        for old, new in replacements.items():
            value = value.replace(old, new)
    return value


def owned_requests(plan: Plan, owner: str) -> tuple[Request, ...]:
    """``requests`` with the tag of a render format as the owner."""
    tag = {"Key": OWNER_TAG, "Value": owner}
    return tuple(
        replace(one, parameters=one.parameters | {"Tags": [*one.parameters["Tags"], tag]})
        for one in requests(plan)
    )


def tag_value(text: str) -> str:
    """``text`` as a valid tag value: at most 256 letters, digits, spaces and ``_.:/=+-@``."""
    allowed = (c if c.isalnum() or c in " _.:/=+-@" else "_" for c in text)
    return "".join(allowed)[:256]


def _requests(plan: Plan, name: str, tags: list[dict[str, str]]) -> tuple[Request, ...]:
    model = {
        "ModelName": name,
        "PrimaryContainer": _container(plan),
        "ExecutionRoleArn": EXECUTION_ROLE,
    }
    config = {"EndpointConfigName": name, "ProductionVariants": [_variant(plan, name)]}
    endpoint = {"EndpointName": plan.name if name else "", "EndpointConfigName": name}
    calls: dict[str, dict[str, Any]] = {
        "model": model,
        "endpoint_config": config,
        "endpoint": endpoint,
    }
    return tuple(
        Request("sagemaker", f"create_{what}", {**parameters, "Tags": tags})
        for what, parameters in calls.items()
    )


def _container(plan: Plan) -> dict[str, Any]:
    container: dict[str, Any] = {
        "Image": plan.runtime.image,
        "Environment": dict(plan.environment),
    }
    additional = []
    for mount in plan.mounts:
        s3 = {"S3Uri": mount.s3_uri, "S3DataType": "S3Prefix", "CompressionType": "None"}
        if mount.channel is None:
            container["ModelDataSource"] = {"S3DataSource": s3}
        else:
            additional.append({"ChannelName": mount.channel, "S3DataSource": s3})
    return container | ({"AdditionalModelDataSources": additional} if additional else {})


def _variant(plan: Plan, model: str) -> dict[str, Any]:
    variant: dict[str, Any] = {
        "VariantName": VARIANT,
        "ModelName": model,
        "InitialInstanceCount": plan.instance_count,
        "InstanceType": plan.instance_type,
        "InitialVariantWeight": 1.0,
        "ContainerStartupHealthCheckTimeoutInSeconds": plan.startup_timeout_seconds,
    }
    if plan.mounts:
        variant["ModelDataDownloadTimeoutInSeconds"] = plan.download_timeout_seconds
    if plan.runtime.ami is not None:
        variant["InferenceAmiVersion"] = plan.runtime.ami
    if plan.instance_count > 1:
        variant["RoutingConfig"] = {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}
    return variant


@dataclass(frozen=True)
class Folder:
    """A local folder of weights: ``part`` is ``target`` or ``drafter``, ``location`` its path and
    ``prefix`` its destination in the bucket, with a trailing slash."""

    part: str
    location: str
    prefix: str

    @property
    def described(self) -> str:
        inside = self.location.removeprefix(CATALOG_PREFIX)
        shipped = inside != self.location
        return f"model_catalog/{inside} of peagle-toolkit" if shipped else self.location


def folders(plan: Plan) -> tuple[Folder, ...]:
    """All folders that the plan uploads; empty if no weights are local."""
    root = f"s3://{MODEL_BUCKET}/"
    parts = {"target": plan.target, "drafter": plan.drafter}
    found = {part: model.weights for part, model in parts.items() if model and model.weights}
    return tuple(
        Folder(part, weights.location, weights.s3_uri.removeprefix(root))
        for part, weights in found.items()
        if weights.s3_uri is not None
    )


def plan_arguments(plan: Plan) -> list[str]:
    """PAIR and the options of `peagle plan` that reproduce this plan, except its image."""
    weights = plan.target.weights
    options = {
        "--name": plan.name,
        "--region": plan.region,
        "--instance-type": plan.instance_type,
        "--instance-count": plan.instance_count,
        "--k": plan.speculation.k if plan.speculation else None,
        "--max-model-len": plan.max_model_len,
        "--concurrency": plan.concurrency,
        "--vllm": plan.runtime.vllm,
        "--model-source": weights.location if weights.kind == "s3" else None,
        "--weights-by": "stream" if weights.streamed else None,
    }
    given = [(name, str(value)) for name, value in options.items() if value is not None]
    words = (word for option in given for word in option)
    own = [*override_arguments(plan.overrides), *pin_arguments(plan.pins)]
    return [*pair_arguments(plan), *words, *own]


def override_arguments(own: Overrides) -> list[str]:
    """The options that set what the user sets in place of the plan."""
    options = [("--set", f"{name}={value}") for name, value in own.settings.items()]
    options += [("--env", f"{name}={value}") for name, value in own.environment.items()]
    options += [("--ami", own.ami)] if own.ami is not None else []
    timeouts = {"startup": own.startup_timeout, "download": own.download_timeout}
    options += [
        (f"--{kind}-timeout", f"{seconds}s")
        for kind, seconds in timeouts.items()
        if seconds is not None
    ]
    return [word for option in options for word in option]


def label_arguments(pair: str) -> list[str]:
    """The argument for an image's pair: a placeholder if its head is a folder or in S3."""
    head = pair.partition("+")[2]
    return ["PAIR" if is_s3_uri(head) or is_folder(head) else pair]


def deploy_arguments(
    pair: Sequence[str], image: str, baked: bool, region: str
) -> tuple[str, ...] | None:
    """The command that deploys a pushed image; ``None`` if SageMaker cannot pull it."""
    if parse_ecr_image(image) is None:
        return None
    options = ["--baked-weights"] if baked else []
    options += ["--region", region] if region != DEFAULT_REGION else []
    return ("peagle", "deploy", *pair, "--image", image, *options)


def pair_arguments(plan: Plan) -> list[str]:
    """The pair; a head of the user's own follows as ``--drafter``. The user's own target is its
    location."""
    drafter, speculation = plan.drafter, plan.speculation
    is_own = plan.target.id.startswith(f"{OWN}/")
    if drafter is None or speculation is None:
        if is_own:
            return [plan.target.weights.location]
        return [plan.target.id, "--no-speculation"]
    if is_own:
        return [plan.target.weights.location, "--drafter", drafter.id]
    if drafter.name != OWN and drafter.id == drafter.name:
        return [plan.pair]
    revision = drafter.weights.revision if drafter.weights else None
    head = f"{drafter.id}@{revision}" if revision else drafter.id
    kind = "+eagle3" if drafter.name == OWN and not speculation.parallel_drafting else ""
    return [f"{plan.target.id}{kind}", "--drafter", head]
