"""SageMaker's models, endpoint configurations and endpoints: one typed function per call."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AccessDenied, AlreadyExists, Missing
from peagle.errors import CloudError, Refused

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
    """An endpoint as SageMaker describes it. ``created`` and ``changed`` are epoch seconds.

    ``pending_config`` is set while SageMaker replaces ``config``. ``running`` is the number of
    instances by variant.
    """

    name: str
    arn: str
    status: str
    config: str
    failure: str | None
    created: float
    changed: float
    pending_config: str | None = None
    running: dict[str, int] = field(default_factory=dict)

    @property
    def instance_count(self) -> int:
        """How many instances of all variants run."""
        return sum(self.running.values())


def describe(aws: Aws, name: str) -> Endpoint | None:
    """The endpoint, or ``None`` when there is none of that name."""
    try:
        return described_endpoint(description(aws, "Endpoint", name))
    except Missing:
        return None


def described_endpoint(found: Mapping[str, Any]) -> Endpoint:
    """The endpoint in DescribeEndpoint's answer."""
    pending = found.get("PendingDeploymentSummary") or {}
    return Endpoint(
        name=found["EndpointName"],
        arn=found["EndpointArn"],
        status=found["EndpointStatus"],
        config=found.get("EndpointConfigName", ""),
        failure=found.get("FailureReason"),
        created=found["CreationTime"].timestamp(),
        changed=found["LastModifiedTime"].timestamp(),
        pending_config=pending.get("EndpointConfigName"),
        running={
            variant["VariantName"]: int(variant.get("CurrentInstanceCount") or 0)
            for variant in found.get("ProductionVariants") or []
        },
    )


def description(aws: Aws, kind: ResourceKind, name: str) -> dict[str, Any]:
    """The answer of the resource's Describe call. Raises Missing when there is none."""
    found = aws.call("sagemaker", f"describe_{_NOUN[kind]}", **{f"{kind}Name": name})
    if kind == "EndpointConfig" and not found["ProductionVariants"]:
        raise CloudError(f"the configuration {name} has no variant", "create it again")
    return found


def tags_of(aws: Aws, arn: str) -> dict[str, str]:
    """The tags of a SageMaker resource."""
    listed = aws.items("sagemaker", "list_tags", "Tags", ResourceArn=arn)
    return {entry["Key"]: entry["Value"] for entry in listed}


def owner(aws: Aws, kind: ResourceKind, name: str) -> str | None:
    """The resource's deployment id ("" without one); ``None`` when it does not exist."""
    try:
        found = description(aws, kind, name)
    except Missing:
        return None
    return tags_of(aws, found[f"{kind}Arn"]).get(ID_TAG, "")


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

    An existing resource of the same deployment is left as it is: names contain a hash of the
    content. An endpoint waits for its configuration to become visible, by ``clock``. Raises
    Refused when another owner has the name.
    """
    own = {"Key": ID_TAG, "Value": deployment_id}
    tags = [*parameters.get("Tags", ()), own, *more_tags]
    given = {**parameters, "Tags": tags}
    try:
        _once_visible(lambda: aws.call("sagemaker", f"create_{_NOUN[kind]}", **given), clock)
    except AlreadyExists as error:
        try:
            found = owner(aws, kind, name)
        except AccessDenied as denied:
            denied.rejected = False  # it may be ours
            raise
        if found != deployment_id:
            raise Refused(
                f"the {kind} {name} already exists and was not created by this deployment",
                "choose another --name",
                code="name-in-use",
            ) from error


def _once_visible(request: Callable[[], object], clock: Clock | None) -> None:
    """Send a request that names an endpoint configuration created a moment ago, again until
    SageMaker sees it: what was created is visible everywhere only after some seconds."""
    for pause in VISIBLE_AFTER_SECONDS:
        try:
            request()
            return
        except Missing as error:
            if not _UNSEEN.search(error.message):
                raise
        (clock or Clock()).sleep(pause)
    request()


def update(
    aws: Aws, parameters: dict[str, Any], instance_count: int, clock: Clock | None = None
) -> None:
    """Move the endpoint to another configuration, once that is visible (by ``clock``).

    Several instances are replaced in the smallest batches that SageMaker accepts (5 % of them,
    API_RollingUpdatePolicy), because a second fleet of scarce GPUs is rarely available; a single
    instance is replaced by starting its successor first.
    """
    batch = {"Type": "INSTANCE_COUNT", "Value": update_batch_size(instance_count)}
    rolling = {"RollingUpdatePolicy": {"MaximumBatchSize": batch, "WaitIntervalInSeconds": 60}}
    given = {key: parameters[key] for key in ("EndpointName", "EndpointConfigName")}
    if instance_count > 1:
        given["DeploymentConfig"] = parameters.get("DeploymentConfig", rolling)
    _once_visible(lambda: aws.call("sagemaker", "update_endpoint", **given), clock)


def update_batch_size(instance_count: int) -> int:
    """How many additional instances an endpoint uses during an update."""
    return math.ceil(instance_count / 20)


def retag(aws: Aws, arn: str, tags: Sequence[Tag]) -> None:
    """Update the tags of an updated endpoint (UpdateEndpoint accepts none)."""
    if tags:
        aws.call("sagemaker", "add_tags", ResourceArn=arn, Tags=list(tags))


def delete(aws: Aws, kind: ResourceKind, name: str) -> None:
    """Request deletion; tolerates what is gone."""
    with suppress(Missing):
        aws.call("sagemaker", f"delete_{_NOUN[kind]}", **{f"{kind}Name": name})
