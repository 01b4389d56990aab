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
from peagle.options import Options, arguments, select_file_keys
from peagle.planning.company import model_network
from peagle.planning.operation import alarm_kinds
from peagle.planning.plan import EXECUTION_ROLE, MODEL_BUCKET, Plan
from peagle.planning.runtime import DEFAULT_REGION, MAX_NAME_LENGTH
from peagle.s3uri import S3Uri
from peagle_serve.contract import is_s3_uri


@dataclass(frozen=True)
class Request:
    """One call of the AWS API, as boto3 takes it."""

    service: str
    operation: str
    parameters: dict[str, Any]


def openai_base_url(region: str, endpoint: str, component: str = "") -> str:
    """The base URL for OpenAI clients; ``endpoint`` may be a template's reference. ``component`` is
    the ``component_path`` of a plan with copies."""
    host = f"https://runtime.sagemaker.{region}.{domain(region)}"
    return f"{host}/endpoints/{endpoint}{component}/openai/v1"


VARIANT = "AllTraffic"
"""The only production variant."""

CREATE_MODEL, CREATE_CONFIG = "create_model", "create_endpoint_config"
CREATE_ENDPOINT, CREATE_COMPONENT = "create_endpoint", "create_inference_component"
"""The operations of a plan's requests; the last makes its copies, under the endpoint's name."""

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

KEPT_COUNT = {
    "RetainAllVariantProperties": True,
    "ExcludeRetainedVariantProperties": [
        {"VariantPropertyType": "DesiredWeight"},
        {"VariantPropertyType": "DataCaptureConfig"},
    ],
}
"""UpdateEndpoint's parameters to keep the numbers of instances, which scaling chose, and nothing
else."""

_HASH_DIGITS = 8
_LEAST_OUTSTANDING = {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}


def requests(plan: Plan) -> tuple[Request, ...]:
    """CreateModel, CreateEndpointConfig and CreateEndpoint; CreateInferenceComponent for copies.

    Names of model and configuration contain a hash of their contents: the same plan gives the same
    names, and a changed plan new resources, to which the endpoint is updated.
    """
    nameless = _requests(plan, "", "", [])
    digest = compute_digest([request.parameters for request in nameless])
    stem = plan.name[: MAX_NAME_LENGTH - _HASH_DIGITS - 1].rstrip("-")
    tags = [
        {"Key": DEPLOYMENT_TAG, "Value": plan.name},
        {"Key": PAIR_TAG, "Value": tag_value(plan.pair)},
        {"Key": PLAN_TAG, "Value": digest},
        *plan.company.tag_list,
    ]
    name = f"{stem}-{digest}"
    # Copies of another model run on the same instances, so their configuration has its own hash.
    config = name if plan.copies is None else f"{stem}-{compute_digest(nameless[1].parameters)}"
    return _requests(plan, name, config, tags)


def owned_requests(plan: Plan, owner: str) -> tuple[Request, ...]:
    """``requests`` with the tag of a render format as the owner."""
    tag = {"Key": OWNER_TAG, "Value": owner}
    return tuple(
        replace(
            request, parameters=request.parameters | {"Tags": [*request.parameters["Tags"], tag]}
        )
        for request in requests(plan)
    )


def _requests(
    plan: Plan, name: str, config_name: str, tags: list[dict[str, str]]
) -> tuple[Request, ...]:
    endpoint, network = plan.name if name else "", model_network(plan.company)
    startup = {"ContainerStartupHealthCheckTimeoutInSeconds": plan.startup_timeout_seconds}
    if plan.mounts:
        startup["ModelDataDownloadTimeoutInSeconds"] = plan.download_timeout_seconds
    config: dict[str, Any] = {
        "EndpointConfigName": config_name,
        "ProductionVariants": [_variant(plan, name, startup)],
    }
    if capture := plan.observe.capture if plan.observe else None:
        config["DataCaptureConfig"] = {
            "EnableCapture": True,
            "InitialSamplingPercentage": capture.percent,
            "DestinationS3Uri": capture.s3_uri,
            **({"KmsKeyId": capture.kms_key} if capture.kms_key else {}),
            "CaptureOptions": [{"CaptureMode": "Input"}, {"CaptureMode": "Output"}],
            "CaptureContentTypeHeader": {"JsonContentTypes": ["application/json"]},
        }
    if plan.company.kms_key is not None:
        config["KmsKeyId"] = plan.company.kms_key
    calls: dict[str, dict[str, Any]] = {
        CREATE_MODEL: {
            "ModelName": name,
            "PrimaryContainer": _container(plan),
            "ExecutionRoleArn": EXECUTION_ROLE,
            **network,
        },
        CREATE_CONFIG: config,
        CREATE_ENDPOINT: {"EndpointName": endpoint, "EndpointConfigName": config_name},
    }
    if plan.copies is not None:
        config |= {**network, "ExecutionRoleArn": EXECUTION_ROLE}
        calls[CREATE_COMPONENT] = {
            "InferenceComponentName": endpoint,
            "EndpointName": endpoint,
            "VariantName": VARIANT,
            "Specification": {
                "ModelName": name,
                "StartupParameters": dict(sorted(startup.items(), reverse=True)),
                "ComputeResourceRequirements": {
                    "NumberOfAcceleratorDevicesRequired": plan.copies.gpus,
                    "NumberOfCpuCoresRequired": plan.copies.cpu_cores,
                    "MinMemoryRequiredInMb": plan.copies.memory_mib,
                },
            },
            "RuntimeConfig": {"CopyCount": plan.engines},
        }
    return tuple(
        Request("sagemaker", operation, {**parameters, "Tags": tags})
        for operation, parameters in calls.items()
    )


def _container(plan: Plan) -> dict[str, Any]:
    """Image, environment, and the prefixes in S3 that SageMaker mounts."""
    container: dict[str, Any] = {
        "Image": plan.runtime.image,
        "Environment": dict(plan.environment),
    }
    for mount in plan.mounts:
        s3 = {"S3Uri": mount.s3_uri, "S3DataType": "S3Prefix", "CompressionType": "None"}
        if mount.channel is None:
            container["ModelDataSource"] = {"S3DataSource": s3}
        else:
            source = {"ChannelName": mount.channel, "S3DataSource": s3}
            container.setdefault("AdditionalModelDataSources", []).append(source)
    return container


def _variant(plan: Plan, model: str, startup: Mapping[str, int]) -> dict[str, Any]:
    """The instances, with the ``model`` or, for copies, without one."""
    instances = {"InitialInstanceCount": plan.instance_count, "InstanceType": plan.instance_type}
    ami = {"InferenceAmiVersion": plan.runtime.ami} if plan.runtime.ami is not None else {}
    several = plan.instance_count > 1 or plan.scaling is not None
    routing = {"RoutingConfig": _LEAST_OUTSTANDING}
    shared = {**ami, **(routing if several else {})}
    if plan.copies is not None:
        least, most = managed_instances(plan)
        bounds = {"Status": "ENABLED", "MinInstanceCount": least, "MaxInstanceCount": most}
        managed = {"ManagedInstanceScaling": bounds}
        return {"VariantName": VARIANT, **instances, **shared, **managed, **routing}
    weight = {"InitialVariantWeight": 1.0}
    return {
        "VariantName": VARIANT, "ModelName": model, **instances, **weight, **startup, **shared
    }  # fmt: skip


def managed_instances(plan: Plan) -> tuple[int, int]:
    """The fewest and the most instances of copies: one more than planned may start while an update
    replaces copies, which need GPUs before the earlier ones release theirs."""
    scaling, count = plan.scaling, plan.instance_count
    if scaling is None:
        return count, count + 1
    return scaling.min_instances, scaling.max_instances + 1


def component_path(plan: Plan) -> str:
    """The part of an endpoint's address that names the plan's component; empty without copies."""
    return f"/inference-components/{plan.name}" if plan.copies else ""


def compute_digest(document: Any) -> str:
    """A short hash of a document, for the name of what has this content."""
    canonical = json.dumps(document, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:_HASH_DIGITS]


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


def tag_value(text: str) -> str:
    """``text`` as a valid tag value: at most 256 letters, digits, spaces and ``_.:/=+-@``."""
    return "".join(c if c.isalnum() or c in " _.:/=+-@" else "_" for c in text)[:256]


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
    root = str(S3Uri(MODEL_BUCKET))
    return tuple(
        Folder(part, weights.location, weights.s3_uri.removeprefix(root))
        for part, weights in plan.weights.items()
        if weights.s3_uri is not None
    )


def reproduce_options(plan: Plan) -> Options:
    """The options that make this plan again: what the user asked for, with what planning chose."""
    weights, batch = plan.target.weights, plan.batch
    pair, drafter, speculation = _read_pair(plan)
    copies = 1 if plan.fit.gpu_count > 1 else None
    return plan.options.model_copy(
        update={
            **{name: value for group in (plan.company, plan.overrides) for name, value in group},
            "pair": pair,
            "drafter": drafter,
            "speculation": speculation,
            "k": plan.speculation.k if plan.speculation else None,
            "name": plan.name,
            "region": plan.region,
            "instance_type": plan.instance_type,
            "instance_count": plan.instance_count,
            "copies": plan.copies.per_instance if plan.copies else copies,
            "max_model_len": plan.max_model_len,
            "concurrency": plan.concurrency,
            "workload": plan.workload,
            "prompt_tokens": plan.prompt_tokens,
            "cached_prompt_tokens": plan.cached_prompt_tokens or None,
            "shared_prompt_tokens": plan.shared_prompt_tokens or None,
            "output_tokens": plan.output_tokens,
            "requests": batch.requests if batch else None,
            "within": batch.within_seconds if batch else None,
            "min_tokens_per_second": None,
            "max_price_per_hour": None,
            "vllm": plan.runtime.vllm,
            "image": plan.runtime.image if plan.options.image else None,
            "model_source": weights.location if weights.kind == "s3" else None,
            "warm_sha256": plan.pins.warm,
            "allow_unpinned_warm": plan.pins.any_warm,
        }
    )


_NOT_OF_THE_ENDPOINT = (
    "workload", "prompt_tokens", "cached_prompt_tokens", "shared_prompt_tokens", "output_tokens",
    "requests", "within", "image",
)  # fmt: skip
"""Options that change no resource of a plan whose instances are chosen, and the image."""


def command_options(plan: Plan) -> Options:
    """The options of a command that makes the same endpoint, except its image. Of archives it has
    those that the user pins: a deploy pins what is next to the weights."""
    update: dict[str, Any] = dict.fromkeys(_NOT_OF_THE_ENDPOINT)
    if not (alarm_kinds(plan) or plan.scaling):
        update["slo"] = None
    update |= {"warm_sha256": plan.options.warm_sha256, "baked_weights": False}
    return reproduce_options(plan).model_copy(update=update)


def plan_arguments(plan: Plan, tag_flag: str = "--tag") -> list[str]:
    """PAIR and the words of ``command_options``. ``tag_flag`` is that of the user's tags, which
    differs in `peagle image build`."""
    options = command_options(plan)
    return [options.pair, *arguments(options, tag_flag)]


def deploy_command(plan: Plan) -> tuple[str, ...]:
    """The command that deploys the plan again, with its image if the user chose that; empty for a
    plan with keys of ``peagle.yaml``, which no command has."""
    if select_file_keys(command_options(plan)):
        return ()
    image = ("--image", plan.runtime.image) if plan.options.image is not None else ()
    baked = ("--baked-weights",) if image and plan.options.baked_weights else ()
    return ("peagle", "deploy", *plan_arguments(plan), *image, *baked)


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
    """The pair; a head of the user's own follows as ``--drafter``."""
    pair, drafter, speculation = _read_pair(plan)
    words = [pair, "--drafter", drafter] if drafter else [pair]
    return words if speculation else [*words, "--no-speculation"]


def _read_pair(plan: Plan) -> tuple[str, str | None, bool]:
    """PAIR, ``--drafter`` and whether it speculates. The user's own target is its location, and has
    no drafter unless the user names one."""
    drafter, speculation, target = plan.drafter, plan.speculation, plan.target
    is_own = target.id.startswith(f"{OWN}/")
    if drafter is None or speculation is None:
        return (target.weights.location, None, True) if is_own else (target.id, None, False)
    if is_own and (drafter.name == OWN or drafter.weights is None):
        return target.weights.location, drafter.id, True
    if drafter.name != OWN and drafter.id == drafter.name:
        return plan.pair, None, True
    revision = drafter.weights.revision if drafter.weights else None
    head = f"{drafter.id}@{revision}" if revision else drafter.id
    kind = "+eagle3" if drafter.name == OWN and not speculation.parallel_drafting else ""
    return f"{target.id}{kind}", head, True
