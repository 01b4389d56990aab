"""Finds deployments in the account by their tags, whichever machine or template made them.

The tags are the truth; a record on this machine is a cache. A deployment that is found here
becomes the same ``Deployment`` as that of a record, so that every command works on it. Only
what ``peagle deploy`` made may be changed by this toolkit (``owner`` is empty); the resources of a
template are shown and proved, and changed by their owner.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import uuid4

from peagle.aws import sagemaker
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.aws.regions import find_by_tag
from peagle.aws.sagemaker import ID_TAG, Endpoint, ResourceKind
from peagle.catalog.tables import InstanceTable
from peagle.deploy.diff import Change, compare_served
from peagle.deploy.kinds import TaggedDeployment
from peagle.deploy.resources import (
    ALARMS,
    BUCKET,
    CAPTURE,
    DASHBOARD,
    FILTERS,
    ROLE,
    SCHEDULE,
    WEIGHTS,
    is_uploaded,
)
from peagle.deploy.revisions import (
    COMPARISON_SUFFIX,
    candidate_share,
    is_comparison,
    proof_in,
    read_owner,
    read_variant_weights,
    revision_in_service,
    roles_by_tags,
)
from peagle.deploy.scaling import budget_in, end_in, with_end_in
from peagle.deploy.state import (
    Deployment,
    Resource,
    Revision,
    RunningComparison,
    Served,
    parse_values,
)
from peagle.render.requests import DEPLOYMENT_TAG, PAIR_TAG, PLAN_TAG, REVISION_TAG, VARIANT
from peagle.s3uri import S3Uri

_VERSION_TAG = re.compile(r":(?:server-)?v?(\d+\.\d+\.\d+)\b")
"""vLLM's version in the tag of AWS's images, such as ``vllm:0.28.0-gpu-py312-cu130``."""

_ENDPOINT_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")

_KINDS: dict[str, ResourceKind] = {
    "endpoint": "Endpoint",
    "endpoint-config": "EndpointConfig",
    "model": "Model",
}
"""The kinds in ARNs."""

Prices = Callable[[], InstanceTable | None]
"""Loads the table of instances with their prices; called only when a price is needed."""


@dataclass(frozen=True)
class Live:
    """An endpoint with what belongs to it in SageMaker; each description is read once. Raises
    AccessDenied where one may not be read."""

    aws: Aws
    endpoint: Endpoint

    @cached_property
    def tags(self) -> dict[str, str]:
        return sagemaker.read_tags(self.aws, self.endpoint.arn)

    @cached_property
    def config(self) -> dict[str, Any]:
        return sagemaker.description(self.aws, "EndpointConfig", self.endpoint.endpoint_config)

    @cached_property
    def model(self) -> dict[str, Any]:
        live = self.endpoint
        name = live.revision if live.hosts_components else _model_in(self.config)
        return sagemaker.description(self.aws, "Model", name)

    def served(self, instances: InstanceTable | None = None) -> Served:
        """What it serves, with the price in ``instances`` of the instances that run."""
        tags: Mapping[str, str] = {}
        with suppress(AccessDenied):
            tags = self.tags
        region = self.aws.region
        return _served(region, self.model, self.config, tags, self.endpoint, instances)


def compare_live(record: Deployment, live: Endpoint, revision: Revision) -> tuple[Change, ...]:
    """What ``revision`` changes of what the endpoint serves now; nothing where that is unknown."""
    now = revision_in_service(record, live.revision)
    if now is None:
        return ()
    served = now.served
    if live.instance_count and served.instance_count:  # as planned while none runs
        served = served.with_instances(live.instance_count)
    changed = compare_served(served, revision.served)
    if now.role and now.role != revision.role:
        changed += (Change("role", now.role, revision.role),)
    return changed


def _model_in(config: Mapping[str, Any]) -> str:
    """The model of a configuration's first variant; empty for one of inference components."""
    return str(config["ProductionVariants"][0].get("ModelName", ""))


def _served(
    region: str,
    model: Mapping[str, Any],
    config: Mapping[str, Any],
    tags: Mapping[str, str],
    live: Endpoint | None,
    instances: InstanceTable | None,
) -> Served:
    """What a model and a configuration, as described, serve; with the instances that run if
    ``live`` serves that configuration, else with those that the configuration starts."""
    name = live.name if live else ""
    if live is not None and live.endpoint_config != config["EndpointConfigName"]:
        live = None
    component = live.component if live else None
    variants = config["ProductionVariants"]
    counts = {each["VariantName"]: int(each.get("InitialInstanceCount") or 1) for each in variants}
    configured = sum(counts.values())
    counts |= {variant: count for variant, count in (live.running if live else {}).items() if count}
    running = sum(counts.values())
    usd_per_hour = None
    if instances:
        prices = {
            instance.type: price.usd_per_hour
            for instance in instances.instances
            for price in instance.prices
            if price.region == region
        }
        types = {each["VariantName"]: each.get("InstanceType", "") for each in variants}
        if prices.keys() >= {*types.values()}:
            total = sum(prices[types[variant]] * counts[variant] for variant in types)
            usd_per_hour = round(total, 4)
    startup = component["Specification"].get("StartupParameters") if component else None
    settings = parse_values(model, config, startup)
    version = _VERSION_TAG.search(settings["image"])
    return Served(
        name=tags.get(DEPLOYMENT_TAG, name),
        region=region,
        pair=tags.get(PAIR_TAG, ""),
        vllm=version[1] if version else None,
        instance_count=running,
        copies=live.desired_copies if live and component else None,
        configured_count=None if configured == running else configured,
        usd_per_hour=usd_per_hour,
        **settings,
    )


@dataclass(frozen=True)
class DescribedResource:
    """A resource with our tags, and its Describe call's answer."""

    kind: ResourceKind
    name: str
    tags: Mapping[str, str]
    description: Mapping[str, Any]

    @property
    def fingerprint(self) -> str:
        """The revision's fingerprint; for what a template made, the plan's."""
        return self.tags.get(REVISION_TAG) or self.tags.get(PLAN_TAG, "")

    @property
    def is_config(self) -> bool:
        """Whether it is the configuration of one revision."""
        return self.kind == "EndpointConfig" and not is_comparison(self.fingerprint)


def find_deployment(aws: Aws, name: str, prices: Prices = lambda: None) -> Deployment | None:
    """The deployment ``name`` of the account and region by its tags; ``None`` without any. The
    index of tags is minutes behind, so the endpoint is looked up itself. Raises AccessDenied."""
    resources = list(_find_tagged(aws, name))
    if all(resource.kind != "Endpoint" for resource in resources):
        endpoint = _describe(aws, "Endpoint", name)
        if endpoint and endpoint.tags.get(DEPLOYMENT_TAG) == name:
            resources.append(endpoint)
    return _deployment(aws, name, resources, prices) if resources else None


def current_deployment(
    aws: Aws,
    name: str,
    record: Deployment | None,
    prices: Prices = lambda: None,
    live: Endpoint | None = None,
    complete: bool = False,
) -> Deployment | None:
    """The record as the account has it now; without one, the deployment that the tags show. Where
    the endpoint was made again, has another owner, or serves an unknown configuration, the account
    replaces what the record says. With ``complete``, it has the resources and the previous revision
    that another machine has added since. ``live`` is the endpoint, if described already."""
    if record is None:
        return find_deployment(aws, name, prices)
    live = live or sagemaker.describe(aws, name)
    tags = sagemaker.readable_tags(aws, live)
    is_same = tags is None or (tags.get(ID_TAG, ""), read_owner(tags)) == (record.id, record.owner)
    if live and not (is_same and revision_in_service(record, live.revision)):
        tagged = find_deployment(aws, name, prices)
        serves = tagged is not None and tagged.serving is not None
        return with_resources(tagged, record.resources) if tagged and serves else record
    record = with_end_in(record, tags)
    if not complete:
        return record
    with suppress(AccessDenied):
        tagged = find_deployment(aws, name, prices)
        if tagged is not None and tagged.id == record.id:
            keys = {key for resource in record.of_type("S3Objects") for key in resource.keys}
            added = (r for r in tagged.resources if not r.keys or not keys.issuperset(r.keys))
            record = with_resources(record, added)
            serving = {side.serving and side.serving.fingerprint for side in (record, tagged)}
            if record.previous is None and len(serving) == 1:
                record = record.model_copy(update={"previous": tagged.previous})
    return record


def with_resources(deployment: Deployment, more: Iterable[Resource]) -> Deployment:
    """The deployment with those of the resources that it does not have."""
    listed = {(each.type, each.name) for each in deployment.resources}
    added = [each for each in more if (each.type, each.name) not in listed]
    return deployment.model_copy(update={"resources": (*deployment.resources, *added)})


def find_deployments(aws: Aws, prices: Prices = lambda: None) -> list[Deployment]:
    """All deployments of the account and region, by name, without what they have in S3. Raises what
    ``find_deployment`` does."""
    by_name: dict[str, list[DescribedResource]] = {}
    for resource in _find_tagged(aws):
        by_name.setdefault(resource.tags[DEPLOYMENT_TAG], []).append(resource)
    deployments = (
        _deployment(aws, name, resources, prices, stored=False)
        for name, resources in sorted(by_name.items())
        if is_endpoint_name(name)
    )
    return [deployment for deployment in deployments if deployment]


def is_endpoint_name(name: str) -> bool:
    """Whether SageMaker accepts the name (CreateEndpoint, EndpointName)."""
    return _ENDPOINT_NAME.fullmatch(name) is not None


def _find_tagged(aws: Aws, name: str | None = None) -> Iterator[DescribedResource]:
    """The resources with our tags that still exist."""
    for kind_in_arn, lower_name, tags in find_by_tag(aws, DEPLOYMENT_TAG, name, list(_KINDS)):
        kind = _KINDS[kind_in_arn]
        with suppress(Missing):
            description = sagemaker.description(aws, kind, lower_name)
            yield DescribedResource(kind, description[f"{kind}Name"], tags, description)


def _describe(aws: Aws, kind: ResourceKind, name: str) -> DescribedResource | None:
    """The resource with its tags; ``None`` when it does not exist."""
    if not name:
        return None
    try:
        description = sagemaker.description(aws, kind, name)
        tags = sagemaker.read_tags(aws, description[f"{kind}Arn"])
        return DescribedResource(kind, name, tags, description)
    except Missing:
        return None


def _deployment(
    aws: Aws, name: str, resources: list[DescribedResource], prices: Prices, stored: bool = True
) -> Deployment | None:
    """One deployment from its tagged resources; ``None`` when these are gone. The endpoint's owner
    counts; without an endpoint, that of any resource. ``stored``: with what it has in S3."""
    endpoints = [resource for resource in resources if resource.kind == "Endpoint"]
    endpoints.sort(key=lambda resource: resource.name != name)
    live = sagemaker.with_component(aws, endpoints[0].description) if endpoints else None
    tags = (endpoints or resources)[0].tags
    described = [*resources, *_served_without_index(aws, resources, live)]
    owned = [resource for resource in described if resource.tags.get(DEPLOYMENT_TAG) == name]
    revisions = _revisions(aws.region, described, live, tags, prices)
    if not revisions:
        return None
    serving, pending, previous = roles_by_tags(revisions, live, tags)
    ends = (end_in(each) for each in ([tags] if endpoints else [r.tags for r in resources]))
    ends_at = max((end for end in ends if end is not None), default=None)
    owner, shown = read_owner(tags), serving or pending
    listed = [
        Resource(type=each.kind, name=each.name, made=True, revision=each.fingerprint)
        for each in owned
    ]
    outside = TaggedDeployment(
        name,
        shown.fingerprint if shown else "",
        [(each.description, each.fingerprint) for each in owned if each.kind == "EndpointConfig"],
        [(each.description, each.fingerprint) for each in owned if each.kind == "Model"],
        ends=ends_at is not None,
        copies=any(revision.instances_config for revision in revisions),
    )
    if not owner:
        kinds = (SCHEDULE, ROLE, *((ALARMS, FILTERS, DASHBOARD, CAPTURE) if stored else ()))
        for kind in kinds:
            with suppress(AccessDenied):
                listed += kind.find(aws, outside)
    if stored:
        listed += [*WEIGHTS.find(aws, outside), *BUCKET.find(aws, outside)]
    ids = (each.tags[ID_TAG] for each in (*endpoints, *owned) if ID_TAG in each.tags)
    compared = [e for e in described if e.kind == "EndpointConfig" and not e.is_config]
    in_service = (live.revision, live.pending_revision) if live else ()
    both = max(compared, key=lambda each: each.name in in_service, default=None)
    by_fingerprint = {f"{each.fingerprint}{COMPARISON_SUFFIX}": each for each in revisions}
    candidate, comparison = by_fingerprint.get(both.fingerprint) if both else None, None
    if both and candidate and serving and candidate is not serving:
        weights = read_variant_weights(
            both.description["ProductionVariants"], "InitialVariantWeight"
        )
        comparison = RunningComparison(
            candidate=candidate,
            config=both.name,
            share=candidate_share(weights),
            since=live.changed if live and live.serves_steadily(both.name) else None,
        )
    return Deployment(
        id=next(ids, None) or uuid4().hex,
        name=name,
        scope=aws.scope,
        account=aws.account,
        region=aws.region,
        serving=serving,
        pending=pending,
        previous=previous,
        comparison=comparison,
        resources=tuple(listed),
        billing_since=live.created if live else None,
        owner=owner,
        ends_at=ends_at,
        budget_usd=budget_in(tags),
    )


def _served_without_index(
    aws: Aws, resources: list[DescribedResource], live: Endpoint | None
) -> Iterator[DescribedResource]:
    """Configuration and model in service that the index of tags does not name yet."""
    if live is None:
        return
    indexed = {(resource.kind, resource.name): resource for resource in resources}
    config = indexed.get(("EndpointConfig", live.endpoint_config))
    if config is None:
        config = _describe(aws, "EndpointConfig", live.endpoint_config)
        if config is None:
            return
        yield config
    model = live.revision if live.hosts_components else _model_in(config.description)
    described = _describe(aws, "Model", model) if ("Model", model) not in indexed else None
    if described:
        yield described


def _revisions(
    region: str,
    resources: list[DescribedResource],
    live: Endpoint | None,
    endpoint_tags: Mapping[str, str],
    prices: Prices,
) -> list[Revision]:
    """The revision of every configuration, by the time of creation; of the models, where there is
    no configuration yet, or where copies share the configuration of their instances."""
    models = {resource.name: resource for resource in resources if resource.kind == "Model"}
    configs = [resource for resource in resources if resource.is_config]
    shared = next((each for each in configs if not _model_in(each.description)), None)
    if shared is not None:
        configs = []
    revisions = []
    for resource in sorted(configs or models.values(), key=lambda x: x.description["CreationTime"]):
        config = (shared or resource).description
        if not (shared or configs):  # the configuration that deploy was about to create
            variant = {"VariantName": VARIANT, "ModelName": resource.name}
            config = {"EndpointConfigName": "", "ProductionVariants": [variant]}
        model = resource if resource.kind == "Model" else models.get(_model_in(config))
        described = model.description if model else {}
        served = _served(region, described, config, resource.tags, live, prices())
        uploaded = filter(is_uploaded, served.weights.values())
        revisions.append(
            Revision(
                fingerprint=resource.fingerprint,
                served=served,
                plan=None,
                role=described.get("ExecutionRoleArn", ""),
                bucket=next((S3Uri.parse(uri).bucket for uri in uploaded), None),
                model=model.name if model else "",
                name=resource.name if shared else config["EndpointConfigName"],
                instances_config=shared.description["EndpointConfigName"] if shared else "",
                proof=proof_in(endpoint_tags, resource.fingerprint),
            )
        )
    return revisions
