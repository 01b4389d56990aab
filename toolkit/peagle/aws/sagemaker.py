"""SageMaker's models, configurations, endpoints and inference components: one function per call."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from peagle.aws.client import Aws, Clock, send_until_visible
from peagle.aws.errors import AccessDenied, AlreadyExists, Missing
from peagle.errors import Refused
from peagle.render.requests import KEPT_COUNT


def update_component(aws: Aws, parameters: Mapping[str, Any], running: int) -> None:
    """UpdateInferenceComponent to ``parameters``, which are those of CreateInferenceComponent. New
    copies start before the earlier ones end, without a DeploymentConfig half of the ``running``
    ones at a time."""
    keys = ("InferenceComponentName", "Specification", "RuntimeConfig")
    request = {key: parameters[key] for key in keys}
    copies = min(parameters["RuntimeConfig"]["CopyCount"], running)
    if "DeploymentConfig" in parameters:
        request["DeploymentConfig"] = parameters["DeploymentConfig"]
    elif copies > 1:
        batch = {"Type": "COPY_COUNT", "Value": copies // 2}
        policy = {"MaximumBatchSize": batch, "WaitIntervalInSeconds": 60}
        request["DeploymentConfig"] = {"RollingUpdatePolicy": policy}
    aws.call("sagemaker", "update_inference_component", **request)


ResourceKind = Literal["Model", "EndpointConfig", "Endpoint"]

KINDS: tuple[ResourceKind, ...] = ("Model", "EndpointConfig", "Endpoint")
"""In the order of creation: each needs the one before. One request creates each."""

ID_TAG = "peagle:id"
"""Tag with the id of the deployment: the resource is ours."""

BUSY = frozenset({"Creating", "Updating", "SystemUpdating", "RollingBack", "Deleting"})
"""States that end by themselves."""

BROKEN = frozenset({"Failed", "OutOfService", "UpdateRollbackFailed"})
"""States that an endpoint leaves only by deletion."""

VISIBLE_AFTER_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Pauses in which a configuration that was created becomes visible to the requests that name it."""

_UNSEEN = re.compile(r"could not find endpoint config", re.IGNORECASE)

Tag = dict[str, str]
"""A tag as SageMaker's API has it: ``Key`` and ``Value``."""

_NOUN = {"Model": "model", "EndpointConfig": "endpoint_config", "Endpoint": "endpoint"}
"""The kinds as boto3's operations name them."""


@dataclass(frozen=True)
class Endpoint:
    """An endpoint as SageMaker describes it. ``created`` and ``changed`` are epoch seconds,
    ``running`` and ``desired`` instances by variant. ``revision`` is the configuration that serves,
    ``pending_revision`` the one that replaces it, ``stage`` that of an update that turns on traffic
    or waits for alarms. ``component`` is DescribeInferenceComponent's answer. With one, ``status``
    is the component's once the instances run, ``revision`` its model (empty before there is one),
    and ``instances_config`` the configuration of the instances."""

    name: str
    arn: str
    status: str
    revision: str
    failure: str | None
    created: float
    changed: float
    pending_revision: str | None = None
    running: dict[str, int] = field(default_factory=dict)
    desired: dict[str, int] = field(default_factory=dict)
    stage: str | None = None
    instances_config: str = ""
    component: Mapping[str, Any] | None = None

    @property
    def hosts_components(self) -> bool:
        """Whether copies of a model run on its instances, or will."""
        return bool(self.instances_config)

    @property
    def endpoint_config(self) -> str:
        """The name of its endpoint configuration."""
        return self.instances_config or self.revision

    def serves_steadily(self, revision: str) -> bool:
        """Whether it serves that revision, and nothing is being changed."""
        return self.status == "InService" and self.revision == revision

    @property
    def engine_count(self) -> int:
        """How many engines answer: the copies, or one on each instance."""
        return self._copies("Current") if self.component else self.instance_count

    @property
    def desired_copies(self) -> int:
        """How many copies will run once SageMaker has started or ended some."""
        return self._copies("Desired")

    def _copies(self, which: str) -> int:
        runtime = (self.component or {}).get("RuntimeConfig") or {}
        return int(runtime.get(f"{which}CopyCount") or 0)

    @property
    def instance_count(self) -> int:
        """How many instances of all variants run."""
        return sum(self.running.values())

    @property
    def desired_count(self) -> int:
        """How many instances of all variants will run once SageMaker has started or ended some."""
        return sum((self.running | self.desired).values())


def describe(aws: Aws, name: str) -> Endpoint | None:
    """The endpoint, or ``None`` when there is none of that name."""
    with suppress(Missing):
        return with_component(aws, description(aws, "Endpoint", name))
    return None


def with_component(aws: Aws, response: Mapping[str, Any]) -> Endpoint:
    """The endpoint in DescribeEndpoint's answer, with the copies on it."""
    live = _described_endpoint(response)
    variants = response.get("ProductionVariants") or ()
    if not any(variant.get("ManagedInstanceScaling") for variant in variants):
        return live  # only those of components manage their instances
    live = replace(live, revision="", pending_revision=None, instances_config=live.revision)
    named = {"InferenceComponentName": live.name}
    component = aws.find("sagemaker", "describe_inference_component", **named)
    if component is None:
        return live
    return replace(
        live,
        revision=component["Specification"].get("ModelName", ""),
        status=component["InferenceComponentStatus"] if live.status == "InService" else live.status,
        failure=live.failure or component.get("FailureReason"),
        changed=max(live.changed, component["LastModifiedTime"].timestamp()),
        component=component,
    )


def _described_endpoint(response: Mapping[str, Any]) -> Endpoint:
    pending = response.get("PendingDeploymentSummary", {})
    variants = response.get("ProductionVariants", ())
    stages = (
        stage["Status"]
        for variant in pending.get("ProductionVariants", ())
        for stage in variant.get("VariantStatus", ())
        if stage["Status"] != "Creating"  # as in most of an update
    )
    return Endpoint(
        name=response["EndpointName"],
        arn=response["EndpointArn"],
        status=response["EndpointStatus"],
        revision=response.get("EndpointConfigName", ""),
        failure=response.get("FailureReason"),
        created=response["CreationTime"].timestamp(),
        changed=response["LastModifiedTime"].timestamp(),
        pending_revision=pending.get("EndpointConfigName"),
        stage=next(stages, None),
        running={
            variant["VariantName"]: variant.get("CurrentInstanceCount", 0) for variant in variants
        },
        desired={
            variant["VariantName"]: variant["DesiredInstanceCount"]
            for variant in variants
            if "DesiredInstanceCount" in variant
        },
    )


def description(aws: Aws, kind: ResourceKind, name: str) -> dict[str, Any]:
    """The answer of the resource's Describe call. Raises Missing when there is none."""
    return aws.call("sagemaker", f"describe_{_NOUN[kind]}", **{f"{kind}Name": name})


def read_tags(aws: Aws, arn: str) -> dict[str, str]:
    """The tags of a SageMaker resource."""
    listed = aws.items("sagemaker", "list_tags", "Tags", ResourceArn=arn)
    return {entry["Key"]: entry["Value"] for entry in listed}


def readable_tags(aws: Aws, live: Endpoint | None) -> dict[str, str] | None:
    """The endpoint's tags; ``None`` without an endpoint, or when tags may not be read."""
    if live is None:
        return None
    try:
        return read_tags(aws, live.arn)
    except AccessDenied:
        return None


def owner(aws: Aws, kind: ResourceKind, name: str) -> str | None:
    """The resource's deployment id ("" without one); ``None`` when it does not exist."""
    with suppress(Missing):
        return read_tags(aws, description(aws, kind, name)[f"{kind}Arn"]).get(ID_TAG, "")
    return None


def create(
    aws: Aws,
    kind: ResourceKind,
    name: str,
    parameters: dict[str, Any],
    deployment_id: str,
    more_tags: Sequence[Tag] = (),
    clock: Clock | None = None,
) -> None:
    """Create a model, configuration or endpoint with the tag of the deployment and ``more_tags``.
    One of the same deployment is left as it is: names contain a hash of the content. Raises Refused
    when another owner has the name."""
    id_tag = {"Key": ID_TAG, "Value": deployment_id}
    tags = [*parameters.get("Tags", ()), id_tag, *more_tags]
    request = {**parameters, "Tags": tags}
    try:
        _once_visible(lambda: aws.call("sagemaker", f"create_{_NOUN[kind]}", **request), clock)
    except AlreadyExists as error:
        if owner(aws, kind, name) != deployment_id:
            raise Refused(
                f"the {kind} {name} already exists and was not created by this deployment",
                "choose another --name",
                code="name-in-use",
            ) from error


def _once_visible(send: Callable[[], object], clock: Clock | None) -> None:
    """Send a request that names an endpoint configuration created a moment ago."""
    send_until_visible(
        send,
        VISIBLE_AFTER_SECONDS,
        lambda error: isinstance(error, Missing) and bool(_UNSEEN.search(error.message)),
        clock or Clock(),
    )


def update(
    aws: Aws,
    parameters: dict[str, Any],
    instance_count: int,
    clock: Clock | None = None,
    *,
    keep_count: bool = False,
) -> None:
    """Move the endpoint to another configuration, in the way of the DeploymentConfig in
    ``parameters``. Without one, several instances are replaced in the smallest batches that
    SageMaker accepts (5 %), because a second fleet of scarce GPUs is rarely available. With
    ``keep_count`` it keeps the number of its instances, which scaling chose."""
    batch = {"Type": "INSTANCE_COUNT", "Value": update_batch_size(instance_count)}
    rolling = {"RollingUpdatePolicy": {"MaximumBatchSize": batch, "WaitIntervalInSeconds": 60}}
    request = {key: parameters[key] for key in ("EndpointName", "EndpointConfigName")}
    if "DeploymentConfig" in parameters:
        request["DeploymentConfig"] = parameters["DeploymentConfig"]
    elif instance_count > 1:
        request["DeploymentConfig"] = rolling
    if keep_count:
        request |= KEPT_COUNT
    _once_visible(lambda: aws.call("sagemaker", "update_endpoint", **request), clock)


def update_batch_size(instance_count: int) -> int:
    """How many additional instances an endpoint uses during an update."""
    return math.ceil(instance_count / 20)


def set_variant(
    aws: Aws,
    endpoint: str,
    variant: str,
    *,
    count: int | None = None,
    weight: float | None = None,
) -> None:
    """Let SageMaker start or end instances of the variant until ``count`` run, or change its
    ``weight``."""
    changes: dict[str, Any] = {"DesiredInstanceCount": count, "DesiredWeight": weight}
    desired = {key: value for key, value in changes.items() if value is not None}
    aws.call(
        "sagemaker", "update_endpoint_weights_and_capacities",
        EndpointName=endpoint,
        DesiredWeightsAndCapacities=[{"VariantName": variant, **desired}],
    )  # fmt: skip


def retag(aws: Aws, arn: str, tags: Sequence[Tag]) -> None:
    """Update the tags of an updated endpoint (UpdateEndpoint accepts none)."""
    if tags:
        aws.call("sagemaker", "add_tags", ResourceArn=arn, Tags=list(tags))


def delete(aws: Aws, kind: ResourceKind, name: str) -> None:
    """Request deletion; ignores what does not exist."""
    aws.delete("sagemaker", f"delete_{_NOUN[kind]}", **{f"{kind}Name": name})
