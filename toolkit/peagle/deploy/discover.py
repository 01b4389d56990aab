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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from uuid import uuid4

from peagle.aws import s3, sagemaker
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.aws.regions import tagged
from peagle.aws.sagemaker import ID_TAG, Endpoint, ResourceKind
from peagle.catalog.tables import InstanceTable
from peagle.deploy import limits
from peagle.deploy.desired import UPLOADS
from peagle.deploy.diff import Change, changes
from peagle.deploy.resources import found_resources
from peagle.deploy.revisions import (
    COMPARISON_SUFFIX,
    candidate_share,
    is_comparison,
    of_variant,
    owner_of,
    proof_in,
    revision_in_service,
    roles_by_tags,
    weights_of,
)
from peagle.deploy.state import (
    Deployment,
    Resource,
    Revision,
    RunningComparison,
    Served,
    settings_of,
)
from peagle.errors import UserError
from peagle.render.requests import DEPLOYMENT_TAG, PAIR_TAG, PLAN_TAG, REVISION_TAG, VARIANT
from peagle.s3uri import S3Uri
from peagle.text import sanitize
from peagle.weights.bucket import Bucket
from peagle_serve.contract import is_s3_uri

_VERSION_TAG = re.compile(r":(?:server-)?v?(\d+\.\d+\.\d+)\b")
"""vLLM's version in the tag of AWS's images, such as ``vllm:0.28.0-gpu-py312-cu130``."""


@dataclass(frozen=True)
class Live:
    """An endpoint with what belongs to it in SageMaker; each description is read once. Raises
    AccessDenied where one may not be read."""

    aws: Aws
    endpoint: Endpoint

    @cached_property
    def tags(self) -> dict[str, str]:
        """The endpoint's tags."""
        return sagemaker.tags_of(self.aws, self.endpoint.arn)

    @cached_property
    def config(self) -> dict[str, Any]:
        return sagemaker.description(self.aws, "EndpointConfig", self.endpoint.endpoint_config)

    @cached_property
    def model(self) -> dict[str, Any]:
        live = self.endpoint
        name = live.revision if live.hosts_components else model_in(self.config)
        return sagemaker.description(self.aws, "Model", name)

    def served(self, instances: InstanceTable | None = None) -> Served:
        """What it serves, with the price in ``instances`` of the instances that run."""
        tags: Mapping[str, str] = {}
        with suppress(AccessDenied):
            tags = self.tags
        described = (self.model, self.config, tags, self.endpoint, instances)
        return served_by_descriptions(self.aws.region, *described)


def changes_of_live(record: Deployment, live: Endpoint, revision: Revision) -> tuple[Change, ...]:
    """What ``revision`` changes of what the endpoint serves now; nothing where that is unknown."""
    now = revision_in_service(record, live.revision)
    if now is None:
        return ()
    served = now.served
    if live.instance_count and served.instance_count:  # as planned while none runs
        served = served.with_instances(live.instance_count)
    changed = changes(served, revision.served)
    if now.role and now.role != revision.role:
        changed += (Change("role", now.role, revision.role),)
    return changed


def served_by_descriptions(
    region: str,
    model: Mapping[str, Any],
    config: Mapping[str, Any],
    tags: Mapping[str, str],
    live: Endpoint | None = None,
    instances: InstanceTable | None = None,
) -> Served:
    """What a model and a configuration serve; with the instances that run if ``live`` serves that
    configuration, else with those that the configuration starts."""
    variants = config["ProductionVariants"]
    serves = live is not None and live.endpoint_config == config["EndpointConfigName"]
    component = live.component if live is not None and serves else None
    startup = component.specification.get("StartupParameters") if component else None
    counts = {
        variant["VariantName"]: int(variant.get("InitialInstanceCount") or 1)
        for variant in variants
    }
    configured = sum(counts.values())
    if live is not None and serves:
        counts |= {name: count for name, count in live.running.items() if count}
    read = settings_of(model, config, startup)
    match = _VERSION_TAG.search(read["image"])
    return Served(
        name=tags.get(DEPLOYMENT_TAG, live.name if live else ""),
        region=region,
        pair=tags.get(PAIR_TAG, ""),
        vllm=match[1] if match else None,
        instance_count=sum(counts.values()),
        copies=component.desired_copies if component else None,
        configured_count=None if configured == sum(counts.values()) else configured,
        usd_per_hour=_price(variants, counts, instances, region) if instances else None,
        **read,
    )


def model_in(config: Mapping[str, Any]) -> str:
    """The model of a configuration's first variant; empty for one of inference components."""
    return str(config["ProductionVariants"][0].get("ModelName", ""))


def _price(
    variants: list[dict[str, Any]],
    counts: Mapping[str, int],
    instances: InstanceTable,
    region: str,
) -> float | None:
    """USD per hour of the instances of all variants; ``None`` if one price is unknown."""
    by_type = {
        instance.type: price.usd_per_hour
        for instance in instances.instances
        for price in instance.prices
        if price.region == region
    }
    prices = [by_type.get(variant.get("InstanceType", "")) for variant in variants]
    if None in prices:
        return None
    pairs = zip(prices, variants, strict=True)
    return round(sum((price or 0) * counts[variant["VariantName"]] for price, variant in pairs), 4)


Prices = Callable[[], InstanceTable | None]
"""Loads the table of instances with their prices; called only when a price is needed."""

_NO_VARIANT: Mapping[str, Any] = {"ProductionVariants": [{}]}
"""For a model without a configuration: its deploy ended before creating one."""


@dataclass(frozen=True)
class Found:
    """A resource with our tags, and its Describe call's answer."""

    kind: ResourceKind
    name: str
    tags: Mapping[str, str]
    description: Mapping[str, Any]


def revisions_of(
    region: str,
    resources: list[Found],
    live: Endpoint | None,
    endpoint_tags: Mapping[str, str],
    prices: Prices,
) -> list[Revision]:
    """The revision of every configuration, by the time of creation; of the models, where there is
    no configuration yet."""
    models = {resource.name: resource for resource in resources if resource.kind == "Model"}
    configs = [
        resource
        for resource in resources
        if resource.kind == "EndpointConfig" and _is_of_one_revision(resource)
    ]
    revisions = []
    shared = next(
        (config.description for config in configs if not model_in(config.description)), None
    )
    if shared is not None:  # the instances of copies: a revision is a model on them
        configs = []
    for resource in sorted(
        configs or models.values(), key=lambda resource: resource.description["CreationTime"]
    ):
        description = resource.description if configs else shared or _planned_config(resource.name)
        model = resource if resource.kind == "Model" else models.get(model_in(description))
        fingerprint = fingerprint_of(resource)
        described = model.description if model else {}
        served = served_by_descriptions(
            region, described, description, resource.tags, live, prices()
        )
        revisions.append(
            Revision(
                fingerprint=fingerprint,
                served=served,
                plan=None,
                role=described.get("ExecutionRoleArn", ""),
                bucket=bucket_of_weights(served),
                model=model.name if model else "",
                name=resource.name if shared else description["EndpointConfigName"],
                instances_config=shared["EndpointConfigName"] if shared else "",
                proof=proof_in(endpoint_tags, fingerprint),
            )
        )
    return revisions


def _is_of_one_revision(config: Found) -> bool:
    return not is_comparison(fingerprint_of(config))


def comparison_config(resources: list[Found], live: Endpoint | None) -> Found | None:
    """The configuration with two variants: the one in service, else any that is left."""
    configs = [
        resource
        for resource in resources
        if resource.kind == "EndpointConfig" and is_comparison(fingerprint_of(resource))
    ]
    in_service = (
        config
        for config in configs
        if live and config.name in (live.revision, live.pending_revision)
    )
    return next(in_service, configs[-1] if configs else None)


def with_first_variant(live: Endpoint, resources: list[Found], compares: Found) -> Endpoint:
    """The endpoint as if it served only the first of its two variants."""
    if live.pending_revision == compares.name:
        live = replace(live, pending_revision=None)
    if live.revision != compares.name:
        return live
    model = compares.description["ProductionVariants"][0].get("ModelName")
    alone = (
        resource.name
        for resource in resources
        if resource.kind == "EndpointConfig"
        and _is_of_one_revision(resource)
        and resource.description["ProductionVariants"][0].get("ModelName") == model
    )
    return replace(of_variant(live, VARIANT), revision=next(alone, ""))


def running_comparison(
    compares: Found, revisions: list[Revision], serving: Revision | None, live: Endpoint | None
) -> RunningComparison | None:
    """The comparison with that configuration; ``None`` once its candidate serves alone."""
    fingerprint = fingerprint_of(compares).removesuffix(COMPARISON_SUFFIX)
    candidate = next(
        (revision for revision in revisions if revision.fingerprint == fingerprint), None
    )
    if candidate is None or serving is None or candidate.fingerprint == serving.fingerprint:
        return None
    is_running = live is not None and live.serves_steadily(compares.name)
    return RunningComparison(
        candidate=candidate,
        config=compares.name,
        share=candidate_share(
            weights_of(compares.description["ProductionVariants"], "InitialVariantWeight")
        ),
        since=live.changed if live and is_running else None,
    )


def _planned_config(model: str) -> dict[str, Any]:
    """The configuration that deploy was about to create for the model."""
    variant = {"VariantName": VARIANT, "ModelName": model}
    return {"EndpointConfigName": "", "ProductionVariants": [variant]}


def fingerprint_of(resource: Found) -> str:
    """The revision's fingerprint; for what a template made, the plan's."""
    return resource.tags.get(REVISION_TAG) or resource.tags.get(PLAN_TAG, "")


def uploaded_weights(
    aws: Aws, models: Iterable[tuple[Mapping[str, Any], str]]
) -> Iterator[Resource]:
    """The uploaded weights of ``models`` (descriptions and fingerprints of their revisions), and
    their buckets where deploy created them or that cannot be read."""
    uploaded = {
        uri: fingerprint
        for model, fingerprint in models
        for uri in filter(_is_uploaded, settings_of(model, _NO_VARIANT)["weights"].values())
    }
    for uri, fingerprint in uploaded.items():
        prefix, keys = S3Uri.parse(uri).folder, tuple[str, ...]()
        with suppress(Missing):  # without its bucket
            keys = tuple(Bucket(aws, prefix.bucket).sizes(prefix.key))
        yield Resource(type="S3Objects", name=uri, made=True, revision=fingerprint, keys=keys)
    for bucket in sorted({S3Uri.parse(uri).bucket for uri in uploaded}):
        is_ours = True  # also where reading its tags is denied
        with suppress(AccessDenied):
            is_ours = s3.is_our_bucket(aws, bucket)
        if is_ours:
            yield Resource(type="S3Bucket", name=bucket, made=True, revision="")


def bucket_of_weights(served: Served) -> str | None:
    """The bucket of uploaded weights."""
    uploaded = filter(_is_uploaded, served.weights.values())
    return next((S3Uri.parse(uri).bucket for uri in uploaded), None)


def _is_uploaded(uri: str) -> bool:
    """Whether the prefix is one below which deploy uploads, so that destroy removes it."""
    return is_s3_uri(uri) and f"/{S3Uri.parse(uri).key}".startswith(UPLOADS)


_KINDS: dict[str, ResourceKind] = {
    "endpoint": "Endpoint",
    "endpoint-config": "EndpointConfig",
    "model": "Model",
}
"""The kinds in ARNs."""


def unknown_prices() -> None:
    """No table: prices are unknown."""


def find_deployment(aws: Aws, name: str, prices: Prices = unknown_prices) -> Deployment | None:
    """The deployment ``name`` of the account and region, without a record; ``None`` when no
    resource carries its tags.

    An endpoint of that name is also looked up itself: the index of tags is minutes behind. Raises
    AccessDenied when tags or descriptions may not be read: then it is unknown.
    """
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
    prices: Prices = unknown_prices,
    live: Endpoint | None = None,
) -> Deployment | None:
    """The record as the account has it now; without a record, the deployment that the tags show.

    A record whose endpoint was made again elsewhere, has another owner now, or serves a
    configuration that it does not know, is out of date: the account then replaces what the record
    says about revisions. ``live`` is the endpoint, if it was described already. Raises what
    ``find_deployment`` does.
    """
    if record is None:
        return find_deployment(aws, name, prices)
    live = live or sagemaker.describe(aws, name)
    if live is None:
        return record
    tags = sagemaker.readable_tags(aws, live)
    is_same = tags is None or (tags.get(ID_TAG, ""), owner_of(tags)) == (record.id, record.owner)
    if is_same and serves_known_config(record, live):
        return limits.with_end_in(record, tags)
    deployment = find_deployment(aws, name, prices)
    if deployment is None or deployment.serving is None:
        return record
    return with_resources(deployment, record.resources)


def complete_deployment(
    aws: Aws, record: Deployment, prices: Prices = unknown_prices
) -> Deployment:
    """The deployment with what the tags show besides: resources and the previous revision that
    another machine has added since; as it is known where the tags may not be read."""
    try:
        deployment = find_deployment(aws, record.name, prices)
    except AccessDenied:
        return record
    if deployment is None or deployment.id != record.id:
        return record
    keys = {key for resource in record.of_type("S3Objects") for key in resource.keys}
    more = [
        resource
        for resource in deployment.resources
        if not resource.keys or not keys.issuperset(resource.keys)
    ]
    complete = with_resources(record, tuple(more))
    serving = {side.serving.fingerprint if side.serving else "" for side in (record, deployment)}
    if record.previous is None and len(serving) == 1:
        return complete.model_copy(update={"previous": deployment.previous})
    return complete


def serves_known_config(record: Deployment, live: Endpoint) -> bool:
    """Whether the endpoint serves the configuration in service or being applied: else another
    machine or a template has changed it."""
    return revision_in_service(record, live.revision) is not None


def with_resources(deployment: Deployment, more: Iterable[Resource]) -> Deployment:
    """The deployment with those of the resources that it does not have."""
    listed = {(each.type, each.name) for each in deployment.resources}
    added = [each for each in more if (each.type, each.name) not in listed]
    return deployment.model_copy(update={"resources": (*deployment.resources, *added)})


class DamagedTags(UserError, code="tags-damaged"):
    """The tags or the description of a resource in the account cannot be those of a deployment.

    Fix: correct the tag that the message names, or remove it
    """


def find_deployments(
    aws: Aws, prices: Prices = unknown_prices
) -> tuple[list[Deployment], list[DamagedTags]]:
    """All deployments of the account and region, by name, without what they have in S3; and the
    errors about those whose tags are damaged, which hide no other. Raises what ``find_deployment``
    does."""
    by_name: dict[str, list[Found]] = {}
    for resource in _find_tagged(aws):
        by_name.setdefault(resource.tags[DEPLOYMENT_TAG], []).append(resource)
    deployments: list[Deployment] = []
    damaged: list[DamagedTags] = []
    for name, resources in sorted(by_name.items()):
        try:
            if not is_endpoint_name(name):
                raise ValueError(f"{sanitize(name, 80)!r} is not the name of an endpoint")
            deployment = _deployment(aws, name, resources, prices, stored=False)
        except (ValueError, TypeError, LookupError, OverflowError) as error:
            names = ", ".join(f"{resource.kind} {resource.name}" for resource in resources)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            message = f"the tag {DEPLOYMENT_TAG} of {names} in {aws.region} is damaged: {reason}"
            damaged.append(DamagedTags(message, "correct the tag, or remove it"))
            continue
        deployments += [deployment] if deployment else []
    return deployments, damaged


def is_endpoint_name(name: str) -> bool:
    """Whether SageMaker accepts the name (CreateEndpoint, EndpointName)."""
    return _ENDPOINT_NAME.fullmatch(name) is not None


_ENDPOINT_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")


def _find_tagged(aws: Aws, name: str | None = None) -> Iterator[Found]:
    """The resources with our tags that still exist. ARNs have names in lower case."""
    kinds = tuple(f"sagemaker:{kind}" for kind in _KINDS)
    for resource in tagged(aws, DEPLOYMENT_TAG, name, kinds):
        kind = _KINDS[resource.kind]
        try:
            description = sagemaker.description(aws, kind, resource.name)
        except Missing:
            continue
        yield Found(kind, description[f"{kind}Name"], resource.tags, description)


def _deployment(
    aws: Aws, name: str, resources: list[Found], prices: Prices, stored: bool = True
) -> Deployment | None:
    """One deployment from its tagged resources; ``None`` when these are gone. The endpoint's owner
    counts; without an endpoint, that of any resource. ``stored``: with what it has in S3."""
    endpoints = sorted(
        (resource for resource in resources if resource.kind == "Endpoint"),
        key=lambda resource: resource.name != name,
    )
    live = sagemaker.with_component(aws, endpoints[0].description) if endpoints else None
    tags = (endpoints or resources)[0].tags
    described = [*resources, *_served_without_index(aws, resources, live)] if live else resources
    compares, whole = comparison_config(described, live), live
    if live and compares:
        live = with_first_variant(live, described, compares)
    resources = [resource for resource in described if resource.tags.get(DEPLOYMENT_TAG) == name]
    ids = [
        resource.tags[ID_TAG] for resource in (*endpoints, *resources) if ID_TAG in resource.tags
    ]
    revisions = revisions_of(aws.region, described, live, tags, prices)
    if not revisions:
        return None
    roles = roles_by_tags(revisions, live, tags)
    compared = running_comparison(compares, revisions, roles.serving, whole) if compares else None
    ends_at = limits.latest_end([tags] if endpoints else [resource.tags for resource in resources])
    copies = any(revision.instances_config for revision in revisions)
    owner = owner_of(tags)
    models, configs = (
        [
            (resource.description, fingerprint_of(resource))
            for resource in resources
            if resource.kind == kind
        ]
        for kind in ("Model", "EndpointConfig")
    )
    shown = roles.serving or roles.pending
    in_service = shown.fingerprint if shown else ""
    return Deployment(
        id=ids[0] if ids else uuid4().hex,
        name=name,
        scope=aws.scope,
        account=aws.account,
        region=aws.region,
        serving=roles.serving,
        pending=roles.pending,
        previous=roles.previous,
        comparison=compared,
        resources=(
            *(
                Resource(
                    type=resource.kind,
                    name=resource.name,
                    made=True,
                    revision=fingerprint_of(resource),
                )
                for resource in resources
                if resource.kind != "Endpoint" or live is not None  # it was deleted meanwhile
            ),
            *(() if owner or ends_at is None else limits.limit_resources(aws.region, name, copies)),
            *(() if owner or not stored else found_resources(aws, name, in_service, configs)),
            *(uploaded_weights(aws, models) if stored else ()),
        ),
        billing_since=live.created if live else None,
        owner=owner,
        ends_at=ends_at,
        budget_usd=limits.budget_in(tags),
    )


def _served_without_index(aws: Aws, resources: list[Found], live: Endpoint) -> Iterator[Found]:
    """Configuration and model in service that the index of tags does not name: it is behind, or
    these carry no tags of ours."""
    indexed = {(resource.kind, resource.name): resource for resource in resources}
    config = indexed.get(("EndpointConfig", live.endpoint_config))
    if config is None:
        named = _describe(aws, "EndpointConfig", live.endpoint_config)
        config = named or _deleted_config(live, resources)
        yield config
    model = live.revision if live.hosts_components else model_in(config.description)
    described = _describe(aws, "Model", model) if ("Model", model) not in indexed else None
    if described:
        yield described


def _deleted_config(live: Endpoint, resources: list[Found]) -> Found:
    """A configuration that was deleted while it serves: what the endpoint still says of it."""
    tags = next(
        (
            resource.tags
            for resource in resources
            if (resource.kind, resource.name) == ("Endpoint", live.name)
        ),
        {},
    )
    variants = [{"VariantName": name} for name in live.running] or [{"VariantName": VARIANT}]
    description = {
        "EndpointConfigName": live.endpoint_config,
        "ProductionVariants": variants,
        "CreationTime": datetime.fromtimestamp(live.created, UTC),
    }
    kept_tags = {key: tags[key] for key in (PAIR_TAG, REVISION_TAG) if key in tags}
    return Found("EndpointConfig", live.endpoint_config, kept_tags, description)


def _describe(aws: Aws, kind: ResourceKind, name: str) -> Found | None:
    """The resource with its tags; ``None`` when it does not exist."""
    if not name:
        return None
    try:
        description = sagemaker.description(aws, kind, name)
        return Found(kind, name, sagemaker.tags_of(aws, description[f"{kind}Arn"]), description)
    except Missing:
        return None
