"""What an endpoint serves, and a deployment as a record keeps it. Data only, without boto3.

A plan and the account's descriptions become the same ``Served``, so that they can be compared. The
tags in the account are the truth and the record is a cache: ``discover`` makes one of what another
machine deployed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import Field

from peagle.errors import PeagleError
from peagle.frozen import Frozen
from peagle.planning.plan import Plan
from peagle.proof import Proof
from peagle.render.requests import REVISION_TAG, requests, with_replaced
from peagle.text import json_object
from peagle.vllm.defaults import inferred_method
from peagle.vllm.environment import Value, engine_part, settings_in
from peagle_serve.contract import is_s3_uri

MAX_TIMEOUT_SECONDS = 3600
"""SageMaker's maximum of both timeouts; counts where a timeout is not set."""


class Served(Frozen):
    """The settings of one endpoint.

    ``pair`` is empty when unknown, ``k`` 0 without speculation. ``instance_count`` are the
    instances that run, or that a plan starts; ``configured_count`` is set where the configuration
    starts another number. ``copies`` are the engines on all instances, ``None`` without an
    inference component. ``settings`` are vLLM's arguments without the dashes, ``weights`` the S3
    prefixes by folder below ``/opt/ml``. ``usd_per_hour`` is the price of all instances.
    """

    name: str
    region: str
    pair: str
    method: str | None
    k: int
    image: str
    vllm: str | None
    ami: str | None
    instance_type: str
    instance_count: int
    copies: int | None = None
    configured_count: int | None = None
    max_model_len: int | None
    settings: dict[str, Value | None]
    variables: dict[str, str]
    weights: dict[str, str]
    startup_timeout_seconds: int | None
    download_timeout_seconds: int | None
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    network_isolation: bool = False
    kms_key: str | None = None
    usd_per_hour: float | None
    price_date: str | None = None

    @property
    def engines(self) -> int:
        """How many engines serve: the copies, or one on each instance."""
        return self.instance_count if self.copies is None else self.copies

    @property
    def per_instance(self) -> int:
        """How many copies fit on an instance; 1 where that is unknown."""
        instances = self.configured_count or self.instance_count
        return max(1, (self.copies or 1) // max(1, instances))

    @property
    def speculative_config(self) -> dict[str, Any]:
        """vLLM's ``--speculative-config``; empty without one."""
        return json_object(self.settings.get("speculative-config"))

    def with_instances(self, count: int) -> Served:
        """The same settings on ``count`` instances, and their price."""
        if count == self.instance_count:
            return self
        price = self.usd_per_hour
        if price is not None and self.instance_count:
            price = round(price / self.instance_count * count, 4)
        return self.model_copy(update={"instance_count": count, "usd_per_hour": price})


def served_by_plan(plan: Plan, filled: Mapping[str, str] | None = None) -> Served:
    """What ``plan`` serves once it is applied; ``filled`` replaces its placeholders and names."""
    model, config, _, *component = (
        with_replaced(request.parameters, filled or {}) for request in requests(plan)
    )
    startup = component[0]["Specification"]["StartupParameters"] if component else {}
    return Served(
        name=plan.name,
        region=plan.region,
        pair=plan.pair,
        vllm=plan.runtime.vllm,
        instance_count=plan.instance_count,
        copies=plan.engines if plan.copies else None,
        usd_per_hour=plan.price_per_hour_usd,
        price_date=plan.price_date,
        **parse_values(model, config, startup),
    )


def parse_values(
    model: Mapping[str, Any], config: Mapping[str, Any], startup: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The fields of ``Served`` that CreateModel and CreateEndpointConfig contain, or their
    descriptions; ``startup`` are an inference component's StartupParameters."""
    container = model.get("PrimaryContainer") or (model.get("Containers") or [{}])[0]
    variant = {**config["ProductionVariants"][0], **(startup or {})}
    environment = container.get("Environment") or {}
    settings = settings_in(environment)
    speculative = json_object(settings.get("speculative-config"))
    k, drafter = speculative.get("num_speculative_tokens"), speculative.get("model")
    method = speculative.get("method") or (inferred_method(str(drafter)) if drafter else None)
    length = settings.get("max-model-len")
    engine = engine_part(environment)
    vpc = model.get("VpcConfig") or {}
    sources = {"model": container.get("ModelDataSource")} | {
        f"additional-model-data-sources/{source['ChannelName']}": source
        for source in container.get("AdditionalModelDataSources") or []
    }
    return {
        "method": method if isinstance(method, str) else None,
        "k": k if type(k) is int and k >= 0 else 0,
        "image": container.get("Image", ""),
        "ami": variant.get("InferenceAmiVersion"),
        "instance_type": variant.get("InstanceType", ""),
        "max_model_len": length if type(length) is int else None,
        "settings": settings,
        "variables": {key: value for key, value in environment.items() if key not in engine},
        "weights": {
            folder: source["S3DataSource"]["S3Uri"]
            for folder, source in sources.items()
            if source and "S3DataSource" in source
        },
        "startup_timeout_seconds": variant.get("ContainerStartupHealthCheckTimeoutInSeconds"),
        "download_timeout_seconds": variant.get("ModelDataDownloadTimeoutInSeconds"),
        "subnets": tuple(sorted(vpc.get("Subnets") or ())),
        "security_groups": tuple(sorted(vpc.get("SecurityGroupIds") or ())),
        "network_isolation": bool(model.get("EnableNetworkIsolation")),
        "kms_key": config.get("KmsKeyId"),
    }


def weight_prefixes(served: Served) -> Iterator[str]:
    """The S3 prefixes that are mounted or streamed, each ending with a slash."""
    streamed = (served.settings.get("model"), served.speculative_config.get("model"))
    for place in (*served.weights.values(), *streamed):
        if isinstance(place, str) and is_s3_uri(place):
            yield f"{place.rstrip('/')}/"


def start_seconds(served: Served) -> int:
    """How long SageMaker waits for the download of mounted weights and the start-up together, in
    seconds."""
    timeouts = [served.startup_timeout_seconds]
    if served.weights:
        timeouts.append(served.download_timeout_seconds)
    return sum(MAX_TIMEOUT_SECONDS if seconds is None else seconds for seconds in timeouts)


ResourceType = Literal[
    "Endpoint", "Schedule", "SchedulerRole", "Dashboard", "Alarm", "MetricFilter", "LifecycleRule",
    "EndpointConfig", "Model", "S3Objects", "S3Bucket", "ScalableTarget", "LogGroup",
]  # fmt: skip

Moment = Annotated[float, Field(ge=0, lt=253_402_300_800, allow_inf_nan=False)]
"""Epoch seconds before the year 10000, which is where Python's dates end."""

_UTC = "%Y-%m-%dT%H:%M:%SZ"


def utc_text(moment: float) -> str:
    """``2026-11-22T20:15:00Z``, for epoch seconds."""
    return datetime.fromtimestamp(moment, UTC).strftime(_UTC)


def utc_moment(text: str) -> float | None:
    """The epoch seconds of such a text; ``None`` for any other."""
    try:
        return datetime.strptime(text, _UTC).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


class ResourceName(Frozen):
    """A resource of the account, by which users know it."""

    type: ResourceType
    name: str

    @property
    def text(self) -> str:
        """Such as ``Endpoint peagle-tiny``."""
        return f"{self.type} {self.name}"


class ListedResource(ResourceName):
    """A resource of a deployment, and whether AWS has confirmed its creation."""

    confirmed: bool


class Resource(ResourceName):
    """A resource in the account. ``made`` is false until AWS confirms its creation. ``revision`` is
    a fingerprint. ``keys`` are the objects of an ``S3Objects``, and ``contents`` is a hash of the
    files; the name of that, and of a ``LifecycleRule``, is an ``s3://`` prefix."""

    made: bool = False
    revision: str
    keys: tuple[str, ...] = ()
    contents: str = ""


class Revision(Frozen):
    """One plan as applied. ``fingerprint`` is a hash of the complete requests and of the uploaded
    files. ``plan`` is ``None`` for what another machine deployed. ``name`` is that of the endpoint
    configuration; with copies of the model it is the model's, and ``instances_config`` is the
    configuration that revisions share."""

    fingerprint: str
    served: Served
    plan: Plan | None
    role: str
    bucket: str | None
    model: str
    name: str
    instances_config: str = ""
    proof: Proof | None = None

    def resource(self, kind: ResourceType, name: str) -> Resource:
        """A resource of this revision, which AWS has not confirmed yet."""
        return Resource(type=kind, name=name, revision=self.fingerprint)

    @property
    def tag(self) -> dict[str, str]:
        """The tag of what it has in SageMaker."""
        return {"Key": REVISION_TAG, "Value": self.fingerprint}

    @property
    def endpoint_config(self) -> str:
        """The name of its endpoint configuration."""
        return self.instances_config or self.name

    @property
    def is_proved(self) -> bool:
        return self.proof is not None and self.proof.passed


class RunningComparison(Frozen):
    """A second variant of the endpoint. ``candidate`` is its revision, ``config`` the configuration
    with both, ``share`` the candidate's of the requests, and ``since`` when both began to serve, in
    epoch seconds."""

    candidate: Revision
    config: str
    share: float
    since: Moment | None = None


class Failure(Frozen):
    """The error that ended the last deploy; ``command`` is the fix as argv, if there is one."""

    message: str
    fix: str = ""
    command: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: PeagleError) -> Failure:
        return cls(message=error.message, fix=error.fix, command=tuple(error.command))


class Deployment(Frozen):
    """Everything known about one endpoint. ``peagle.deploy.revisions`` explains ``serving``,
    ``pending`` and ``previous``. ``billing_since`` is when the endpoint was requested and
    ``ends_at`` when EventBridge Scheduler deletes it, in epoch seconds. ``owner`` is the template
    or program that changes the endpoint; empty for this toolkit."""

    format: Literal[3] = 3
    id: str = Field(default_factory=lambda: uuid4().hex)
    name: str
    scope: str
    account: str
    region: str
    serving: Revision | None = None
    pending: Revision | None = None
    previous: Revision | None = None
    comparison: RunningComparison | None = None
    resources: tuple[Resource, ...] = ()
    billing_since: Moment | None = None
    owner: str = ""
    failure: Failure | None = None
    ends_at: Moment | None = None
    budget_usd: float | None = None

    def __repr__(self) -> str:
        pairs = ", ".join(dict.fromkeys(revision.served.pair for revision in self.revisions))
        return f"<Deployment {self.name} in {self.region}, {self.scope}: {pairs or 'nothing'}>"

    __str__ = __repr__

    @property
    def key(self) -> tuple[str, str, str]:
        """Scope, region and name: what ``load_record`` and ``deployment_lock`` take."""
        return self.scope, self.region, self.name

    @property
    def current(self) -> Revision:
        """The revision of the last deploy."""
        revision = self.pending or self.serving
        if revision is None:
            raise ValueError(f"the record of {self.name} has no revision")
        return revision

    @property
    def revisions(self) -> tuple[Revision, ...]:
        """The revisions whose configuration, model and weights are kept."""
        candidate = self.comparison.candidate if self.comparison else None
        revisions = (self.serving, self.pending, self.previous, candidate)
        return tuple(revision for revision in revisions if revision)

    @property
    def listed_resources(self) -> tuple[ListedResource, ...]:
        """The resources as ``--json`` shows them."""
        return tuple(
            ListedResource(type=resource.type, name=resource.name, confirmed=resource.made)
            for resource in self.resources
        )

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
        return tuple(resource for resource in self.resources if resource.type == kind)
